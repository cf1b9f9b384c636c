// A mix of sets of shards as the trainer reads it.

#include <gtest/gtest.h>

#include "llama/data/data_mix.h"
#include "test/checks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

class DataMixTest : public testing::Test {
   protected:
    // n tokens, counting from `first`: a sample names its place in its set.
    DataSet set(const std::string& name, int n, int first, uint64_t seed) {
        const std::string file = folder_ / (name + ".bin");
        write_counting_tokens(file, n, first);
        return {name, DataLoader(open_shards({file}, {.vocab = 100000}), 8, seed, 100000)};
    }
    DataMix mix(MixPlan plan) {
        std::vector<DataSet> sets;
        sets.push_back(set("a", 8 * 50 + 1, 0, 1));
        sets.push_back(set("b", 8 * 7 + 1, 10000, 2));
        return DataMix(std::move(sets), std::move(plan));
    }
    static MixShares shares(const char* a, const char* b) { return MixShares::parse({a, b}, "test"); }

    const TempFolder folder_;
};

TEST_F(DataMixTest, AnyCutOfAStepReadsTheSameSamples) {
    const DataMix m = mix(MixPlan({{0, shares("0.7", "0.3")}}));
    std::vector<int32_t> in(24 * 8), out(24 * 8), part_in(24 * 8), part_out(24 * 8);
    m.batch(100, 24, in.data(), out.data());
    for (const int64_t cut : {1, 2, 3, 8, 12}) {
        for (int64_t at = 0; at < 24; at += cut)
            m.batch(100 + at, cut, &part_in[size_t(at * 8)], &part_out[size_t(at * 8)]);
        EXPECT_EQ(part_in, in) << "in batches of " << cut;
        EXPECT_EQ(part_out, out);
    }
    EXPECT_EQ(out[0], in[1]);
}

TEST_F(DataMixTest, EachSetIsReadOnceInEveryEpochOfItsOwn) {
    const DataMix m = mix(MixPlan({{0, shares("0.7", "0.3")}}));
    std::vector<int> seen(20000, 0);
    std::vector<int32_t> in(8), out(8);
    for (int64_t i = 0; i < 1000; ++i) {
        m.batch(i, 1, in.data(), out.data());
        ++seen[size_t(in[0])];
    }
    // 700 samples of 50 are 14 epochs, 300 of 7 are 42 and 6 more.
    for (int s = 0; s < 50; ++s) EXPECT_EQ(seen[size_t(s * 8)], 14);
    for (int s = 0; s < 7; ++s) EXPECT_TRUE(seen[size_t(10000 + s * 8)] == 43 || seen[size_t(10000 + s * 8)] == 42);
    const std::vector<double> epochs = m.epochs(1000);
    EXPECT_DOUBLE_EQ(epochs[0], 14);
    EXPECT_DOUBLE_EQ(epochs[1], 300.0 / 7);
}

TEST_F(DataMixTest, ItsFingerprintNamesSetsAndSharesAndIsReadBack) {
    const DataMix m = mix(MixPlan({{0, shares("0.7", "0.3")}, {640, shares("0", "1")}}));
    const DataFingerprint f = m.fingerprint();
    EXPECT_EQ(DataFingerprint::from_json(f.to_json()), f);
    ASSERT_EQ(f.sets.size(), 2u);
    EXPECT_EQ(f.stages[1].first, 640);
    EXPECT_EQ(f.stages[1].shares[1], "1");
    DataFingerprint other = f;
    other.stages[1].shares = {"0.5", "0.5"};
    EXPECT_EQ(f.difference(other), "") << "shares may change";
    other.sets[1].name = "c";
    EXPECT_EQ(f.difference(other), "") << "a folder may be renamed";
    other.shards.back().hash ^= 1;
    EXPECT_TRUE(says(f.difference(other), "was b with"));
    EXPECT_TRUE(says(f.difference(other), "now c"));
    EXPECT_TRUE(says(f.difference(other), "other contents"));
}

}  // namespace
}  // namespace rz
