// Mixes of sets: counts, order and stages, against shares in exact arithmetic.

#include <gtest/gtest.h>

#include <cstdlib>

#include "llama/data/mix.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

MixShares shares(const std::vector<std::string>& text) { return MixShares::parse(text, "test"); }
MixPlan plan(const std::vector<std::string>& text) { return MixPlan({{0, shares(text)}}); }

const std::vector<std::vector<std::string>> kMixes = {
    {"1"},
    {"0.7", "0.3"},
    {"0.5", "0.5"},
    {"0.333", "0.333", "0.334"},
    {"0.9", "0.05", "0.03", "0.02"},
    {"0.4", "0.3", "0.15", "0.1", "0.05"},
    {"0.999999", "0.000001"},
    {"0.2", "0", "0.8"},
    {"0.123457", "0.376543", "0.25", "0.25"},
};

// |count * D - n * part| < D, that is |count - n * share| < 1, at every prefix; indices count up from 0.
TEST(Mix, CountsAreWithinOneSampleOfTheShareAtEverySample) {
    for (const auto& text : kMixes) {
        const MixPlan mix = plan(text);
        const MixShares s = mix.stages()[0].shares;
        std::vector<int64_t> count(text.size(), 0);
        const int64_t n = std::min<int64_t>(2 * s.period + 3, 1200000);
        for (int64_t i = 0; i < n; ++i) {
            const MixPlan::SetSample place = mix.at(i);
            ASSERT_EQ(place.index, count[size_t(place.set)]) << "sample " << i;
            ++count[size_t(place.set)];
            for (size_t k = 0; k < count.size(); ++k)
                ASSERT_LT(std::llabs(count[k] * s.period - (i + 1) * s.parts[k]), s.period)
                    << text[k] << " after " << i + 1 << " samples";
        }
        EXPECT_EQ(mix.taken(n), count);
    }
}

TEST(Mix, AStartAnywhereSeesWhatARunFromTheBeginningSees) {
    const MixPlan mix({{0, shares({"0.7", "0.3"})},
                       {1001, shares({"0.2", "0.8"})},
                       {1001, shares({"0.1", "0.9"})},
                       {5003, shares({"1", "0"})}});
    std::vector<int64_t> count{0, 0};
    for (int64_t i = 0; i < 9000; ++i) {
        EXPECT_EQ(mix.taken(i), count) << i;
        const MixPlan::SetSample place = mix.at(i);
        ASSERT_EQ(place.index, count[size_t(place.set)]) << i;
        ++count[size_t(place.set)];
    }
    const int64_t far = int64_t(1) << 40;
    EXPECT_EQ(mix.at(far).set, 0);
    EXPECT_EQ(mix.at(far).index, mix.taken(far)[0]);
}

TEST(Mix, SharesChangeAtTheirSampleAndKeepTheirCountsFromThere) {
    const MixPlan mix({{0, shares({"0.9", "0.1"})}, {100, shares({"0.25", "0.75"})}});
    EXPECT_EQ(mix.taken(100), (std::vector<int64_t>{90, 10}));
    EXPECT_EQ(mix.taken(200), (std::vector<int64_t>{115, 85}));
}

TEST(Mix, SharesThatDoNotSumToOneAreRefusedWithTheNearest) {
    const std::string error = error_of([] { shares({"0.7", "0.4"}); });
    EXPECT_TRUE(says(error, "weights 0.7, 0.4 sum to 1.1"));
    EXPECT_TRUE(says(error, "0.636, 0.364"));
    for (const char* bad : {"", ".", "-0.1", "1.5", "0.1234567", "1e-3", "a", "0,5", "nan"})
        EXPECT_NE(error_of([&] { shares({bad, "0.5"}); }), "") << bad;
}

TEST(Mix, RequestsAndChangesAreParsed) {
    const MixRequest mix = parse_mix("data/a:0.7,/b:c:.3");
    EXPECT_EQ(mix.folders, (std::vector<std::string>{"data/a", "/b:c"}));
    EXPECT_EQ(mix.shares, (std::vector<std::string>{"0.7", ".3"}));
    EXPECT_EQ(parse_mix("data/a:b").folders, (std::vector<std::string>{"data/a:b"})) << "a folder with a colon";
    EXPECT_EQ(parse_mix("data/a:1").folders, (std::vector<std::string>{"data/a"}));
    EXPECT_TRUE(says(error_of([] { parse_mix("a:0.7,b"); }), "has no share"));
    EXPECT_TRUE(says(error_of([] { parse_mix("a:0.7,a:0.3"); }), "twice"));

    const auto changes = parse_mix_changes("1000:0.5,0.5;2000:0,1", 2);
    ASSERT_EQ(changes.size(), 2u);
    EXPECT_EQ(changes[1].step, 2000);
    EXPECT_EQ(changes[1].shares, (std::vector<std::string>{"0", "1"}));
    EXPECT_TRUE(says(error_of([] { parse_mix_changes("1000:0.5,0.5", 3); }), "--data has 3 sets"));
    EXPECT_TRUE(says(error_of([] { parse_mix_changes("9:0.5,0.5;9:1,0", 2); }), "nearest: 10"));
    EXPECT_TRUE(says(error_of([] { parse_mix_changes("9:0.5,0.6", 2); }), "sum to 1.1"));
    EXPECT_TRUE(says(error_of([] { parse_mix_changes("x", 2); }), "STEP:SHARE"));
}

}  // namespace
}  // namespace rz
