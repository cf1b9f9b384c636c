#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "llama/data/data_loader.h"
#include "test/checks.h"
#include "test/llama/toy_run.h"

namespace {

namespace fs = std::filesystem;
using namespace rz;

class DataLoaderTest : public testing::Test {
   protected:
    // Shard i holds sizes[i] tokens; through all shards token value equals position.
    std::vector<TokenShard> counting_shards(const std::vector<int>& sizes, int first = 0) {
        std::vector<std::string> paths;
        for (int n : sizes) {
            paths.push_back(dir_ + "/s" + std::to_string(paths.size()) + ".bin");
            write_counting_tokens(paths.back(), n, first);
            first += n;
        }
        return open_shards(paths, {.vocab = kVocab});
    }

    static constexpr int64_t kVocab = 1 << 20;
    const TempFolder folder_;
    const std::string& dir_ = folder_.path;
};

TEST_F(DataLoaderTest, AFileThatChangesWhileItIsReadIsNamed) {
    const auto problem = [&](const std::function<void(const std::string&)>& change) {
        DataLoader loader(counting_shards({100, 100}), 8, 1, kVocab, DataOrder::kSequential);
        std::vector<int32_t> in(8), out(8);
        loader.batch(0, 1, in.data(), out.data());
        usleep(20000);  // the clock of the file system is coarse
        change(dir_ + "/s0.bin");
        const std::string error = error_of([&] { loader.batch(1, 1, in.data(), out.data()); });
        if (error.empty()) {
            EXPECT_EQ(in[0], 8);
        }
        return error;
    };
    EXPECT_EQ(problem([](const std::string&) {}), "");
    EXPECT_EQ(problem([](const std::string& path) { fs::remove(path); }), "") << "what is mapped stays";
    EXPECT_EQ(problem([](const std::string& path) {
                  fs::copy_file(path, path + "x");
                  fs::rename(path + "x", path);
              }),
              "");
    const std::string cut = problem([](const std::string& path) { fs::resize_file(path, 1100); });
    EXPECT_TRUE(says(cut, "s0.bin: was written to while it is in use (1424 bytes, now 1100)"));
    const std::string overwritten = problem([](const std::string& path) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(1200);
        file.put(7);
    });
    EXPECT_TRUE(says(overwritten, "s0.bin: was written to"));
}

// A host's ranks read through one page cache, so a shard comes from the file system once: nothing of it is copied into
// memory of a process's own.
TEST_F(DataLoaderTest, AShardIsReadThroughThePageCacheThatAllRanksShare) {
    constexpr int kTokens = 1 << 20;
    DataLoader loader(counting_shards({kTokens}), 1024, 1, kVocab, DataOrder::kSequential);
    std::vector<int32_t> in(1024), out(1024);
    for (int64_t i = 0; i < loader.samples(); ++i) loader.batch(i, 1, in.data(), out.data());
    std::ifstream maps("/proc/self/smaps");
    if (!maps) GTEST_SKIP() << "no /proc/self/smaps";
    int64_t resident = 0, own = 0;
    bool of_shard = false;
    for (std::string line; std::getline(maps, line);) {
        const std::string key = line.substr(0, line.find(' '));
        if (key.find('-') != std::string::npos) of_shard = line.ends_with(dir_ + "/s0.bin");  // the head of a mapping
        const int64_t bytes = 1024 * std::atoll(line.c_str() + std::min(key.size(), line.size()));
        if (of_shard && key == "Rss:") resident += bytes;
        if (of_shard && key == "Anonymous:") own += bytes;
    }
    EXPECT_GE(resident, 4 * kTokens * 9 / 10);
    EXPECT_EQ(own, 0);
}

TEST_F(DataLoaderTest, FifosAreNotWaitedFor) {
    const std::string path = dir_ + "/fifo.bin";
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_THROW(open_shards({path}, {.vocab = kVocab}), Error);
}

TEST_F(DataLoaderTest, SigbusIsNamed) {
    DataLoader loader(counting_shards({100}), 8, 1, kVocab);
    EXPECT_EXIT(raise(SIGBUS), testing::ExitedWithCode(70), "can't be read any more");
}

TEST(Permutation, IsABijectionForEverySize) {
    for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097})
        for (uint64_t seed : {0ull, 1ull, ~0ull})
            for (uint64_t epoch : {0, 1, 2}) {
                const Permutation p(n, seed, epoch);
                std::vector<bool> hit(n);
                for (int64_t i = 0; i < n; ++i) {
                    const int64_t j = p(i);
                    ASSERT_TRUE(j >= 0 && j < n && !hit[j]) << "n " << n << " seed " << seed << " i " << i;
                    hit[j] = true;
                }
            }
}

TEST(Permutation, AHugeDomainWorksAndValuesNeverChange) {
    const int64_t n = (1ll << 40) + 12345;
    const Permutation p(n, 42, 7);
    for (int64_t i : {int64_t(0), int64_t(1), n / 2, n - 1}) {
        EXPECT_GE(p(i), 0);
        EXPECT_LT(p(i), n);
    }
    // A stored checkpoint names a position in this order: it must never change.
    const Permutation fixed(1000, 1234, 5);
    const std::vector<int64_t> got{fixed(0), fixed(1), fixed(2), fixed(999)};
    EXPECT_EQ(got, (std::vector<int64_t>{159, 887, 319, 520}));
}

// Mean displacement and neighbour correlation of a uniform permutation: |p(i) - i| averages n/3, with a standard
// deviation of the mean below n / sqrt(18 n); the sign of p(i+1) - p(i) is + half of the time. Six deviations.
TEST(Permutation, LooksUniform) {
    constexpr int64_t n = 20000;
    const Permutation p(n, 3, 0), q(n, 3, 1);
    double displacement = 0;
    int64_t rising = 0, same_in_next_epoch = 0;
    for (int64_t i = 0; i < n; ++i) {
        displacement += std::abs(double(p(i) - i));
        rising += i > 0 && p(i) > p(i - 1);
        same_in_next_epoch += p(i) == q(i);
    }
    EXPECT_NEAR(displacement / n, n / 3.0, 6 * n / std::sqrt(18.0 * n));
    EXPECT_NEAR(double(rising), n / 2.0, 6 * std::sqrt(n / 12.0));
    EXPECT_LT(same_in_next_epoch, 12) << "expected 1 on average";
}

TEST_F(DataLoaderTest, SequentialWindowsWithTokenEqualToPosition) {
    // T = 4: shard of 9 -> 2 windows, 4 -> 0, 5 -> 1, 1 -> 0, 0 -> 0, 14 -> 3
    const DataLoader loader(counting_shards({9, 4, 5, 1, 0, 14}), 4, 1, kVocab, DataOrder::kSequential);
    EXPECT_EQ(loader.samples(), 6);
    EXPECT_EQ(loader.tokens(), 33);
    const int firsts[] = {0, 4, 13, 19, 23, 27};
    std::vector<int32_t> in(7 * 4, -1), out(7 * 4, -1);
    loader.batch(0, 7, in.data(), out.data());
    for (int b = 0; b < 7; ++b)
        for (int t = 0; t < 4; ++t) {
            EXPECT_EQ(in[b * 4 + t], firsts[b % 6] + t);
            EXPECT_EQ(out[b * 4 + t], firsts[b % 6] + t + 1);
        }
}

TEST_F(DataLoaderTest, EveryEpochHasEverySampleOnceInAnotherOrder) {
    const DataLoader loader(counting_shards({1001, 2501, 7}), 10, 99, kVocab);
    const int64_t n = loader.samples();
    ASSERT_EQ(n, 350);
    std::vector<int32_t> orders[3];
    for (int epoch = 0; epoch < 3; ++epoch) {
        std::vector<int32_t> in(n * 10), out(n * 10);
        loader.batch(epoch * n, n, in.data(), out.data());
        for (int64_t b = 0; b < n; ++b) orders[epoch].push_back(in[b * 10]);
        auto sorted = orders[epoch];
        std::sort(sorted.begin(), sorted.end());
        for (int64_t b = 0; b < n; ++b) ASSERT_EQ(sorted[b], b < 100 ? b * 10 : 1001 + (b - 100) * 10);
    }
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[1], orders[2]);
}

TEST_F(DataLoaderTest, OrderDoesNotDependOnRanksOrBatchSizes) {
    const DataLoader loader(counting_shards({5000}), 7, 5, kVocab);
    const int64_t total = 2 * loader.samples() + 24;  // crosses two epochs
    std::vector<int32_t> whole(total * 7), targets(total * 7);
    loader.batch(0, total, whole.data(), targets.data());
    for (int ranks : {1, 2, 3, 4}) {
        std::vector<int32_t> pieces(total * 7, -1), ignored(total * 7);
        const int64_t step = 12;  // global batch, split into `ranks` slices
        for (int64_t at = 0; at < total; at += step)
            for (int r = 0; r < ranks; ++r) {
                const int64_t count = std::min<int64_t>(step / ranks, total - at - r * (step / ranks));
                if (count <= 0) continue;
                const int64_t begin = at + r * (step / ranks);
                loader.batch(begin, count, pieces.data() + begin * 7, ignored.data());
            }
        EXPECT_EQ(pieces, whole) << ranks << " ranks";
    }
    const DataLoader again(counting_shards({5000}), 7, 5, kVocab), other(counting_shards({5000}), 7, 6, kVocab);
    EXPECT_EQ(again.sample_at(123456789), loader.sample_at(123456789));
    int equal = 0;
    for (int i = 0; i < 700; ++i) equal += other.sample_at(i) == loader.sample_at(i);
    EXPECT_LT(equal, 20) << "another seed gives another order";
}

TEST_F(DataLoaderTest, SequencesOfOneTokenFollowEachOther) {
    const DataLoader loader(counting_shards({4}), 1, 0, kVocab, DataOrder::kSequential);
    std::vector<int32_t> in(3, -1), out(3, -1);
    loader.batch(0, 3, in.data(), out.data());
    EXPECT_EQ(in, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(out, (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(DataLoaderTest, TooLittleDataNamesTheExactMinimum) {
    const std::string error = error_of([&] { DataLoader(counting_shards({10, 64}), 64, 0, kVocab); });
    EXPECT_TRUE(says(error, "has 64 tokens, but one sample of sequence length 64 takes 65"));
    EXPECT_TRUE(says(error, "--seq-len 63"));
    EXPECT_EQ(DataLoader(counting_shards({10, 64}), 63, 0, kVocab).samples(), 1);
}

// Datasets too large to be scanned at opening are checked batch by batch, also in a sample's last target.
TEST_F(DataLoaderTest, BadTokenInABatchIsNamed) {
    counting_shards({9});
    auto shards = open_shards({dir_ + "/s0.bin"}, {.vocab = 8, .scan_bytes = 0});
    const DataLoader loader(std::move(shards), 4, 0, 8, DataOrder::kSequential);
    int32_t in[4], out[4];
    EXPECT_NO_THROW(loader.batch(0, 1, in, out));
    EXPECT_TRUE(says(error_of([&] { loader.batch(1, 1, in, out); }), "s0.bin: token 8 (byte offset 1056) is 8"));
}

TEST_F(DataLoaderTest, FingerprintSeesEveryChange) {
    const auto fingerprint = [&](std::vector<int> sizes, int64_t T, uint64_t seed, int first = 0) {
        return DataLoader(counting_shards(sizes, first), T, seed, kVocab).fingerprint();
    };
    const auto base = fingerprint({100, 200}, 8, 1);
    EXPECT_EQ(base, fingerprint({100, 200}, 8, 1));
    EXPECT_EQ(base.difference(fingerprint({100, 200}, 8, 1)), "");
    EXPECT_EQ(DataFingerprint::from_json(base.to_json()), base);
    EXPECT_TRUE(says(base.difference(fingerprint({100, 200}, 9, 1)), "sequence length was 8, now 9"));
    EXPECT_TRUE(says(base.difference(fingerprint({100, 200}, 8, 2)), "seed was 1, now 2"));
    EXPECT_TRUE(says(base.difference(fingerprint({100, 201}, 8, 1)), "s1.bin had 1824 bytes, now 1828"));
    EXPECT_TRUE(says(base.difference(fingerprint({100, 200, 9}, 8, 1)), "2 data files, now 3"));
    EXPECT_TRUE(says(base.difference(fingerprint({100, 200}, 8, 1, 5)), "s0.bin has the same size but other contents"));
    EXPECT_THROW(DataFingerprint::from_json("{}"), Error);
    EXPECT_THROW(DataFingerprint::from_json("]"), Error);
}

}  // namespace
