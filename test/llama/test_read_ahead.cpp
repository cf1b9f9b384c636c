// Batches read ahead: the same tokens in the same order, however slow the files are and whatever goes wrong.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/runtime/check.h"
#include "kernels/runtime/context.h"
#include "llama/data/read_ahead.h"

namespace rz {
namespace {

// Token = position; every batch takes a while, later ones less, so that threads finish out of order.
class SlowSource : public SampleSource {
   public:
    int64_t seq_len() const override { return 3; }
    int64_t vocab() const override { return 1 << 30; }
    void batch(int64_t position, int64_t count, int32_t* inputs, int32_t* targets) const override {
        std::this_thread::sleep_for(std::chrono::milliseconds(position % 4 == 0 ? 8 : 1));
        require(position != bad, "sample %lld can't be read", (long long)position);
        for (int64_t i = 0; i < count * 3; ++i) inputs[i] = int32_t(position * 100 + i), targets[i] = -inputs[i];
        ++batches;
    }
    int64_t targets(int64_t, int64_t count) const override { return count * 3; }
    mutable std::atomic<int> batches = 0;
    int64_t bad = -1;
};

TEST(ReadAhead, GivesBatchesInOrderWhateverThreadReadThem) {
    RankContext context;
    const Device device{DeviceKind::cpu, 0, &context};
    for (const int threads : {1, 4}) {
        SlowSource source;
        ReadAhead ahead(device, 2, 3, 2 * threads + 1, threads);
        ahead.start(source, [](int64_t i) { return 7 * i; });
        for (int64_t i = 0; i < 30; ++i) {
            const int32_t* tokens = ahead.take(7 * i);
            for (int k = 0; k < 6; ++k) {
                ASSERT_EQ(tokens[k], 700 * i + k) << "batch " << i << ", " << threads << " threads";
                ASSERT_EQ(tokens[6 + k], -tokens[k]);
            }
        }
        EXPECT_LE(source.batches, 30 + 2 * threads + 1) << "not further ahead than there is memory for";
    }
    EXPECT_EQ(context.memory.now(DeviceKind::cpu), 0) << "its memory is in the ledger, and goes with it";
}

// So that a step finds its batch there: nobody asks for one here.
TEST(ReadAhead, TheNextBatchesAreReadWithoutBeingAskedFor) {
    RankContext context;
    SlowSource source;
    ReadAhead ahead(Device{DeviceKind::cpu, 0, &context}, 1, 3, 5, 2);
    ahead.start(source, [](int64_t i) { return i; });
    const auto read = [&](int batches) {
        for (int tries = 0; tries < 60000 && source.batches < batches; ++tries)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return source.batches >= batches;
    };
    ASSERT_TRUE(read(5)) << "as many as there is memory for";
    ahead.take(0);
    ahead.take(1);
    EXPECT_TRUE(read(6)) << "the memory of batch 0 is free";
}

TEST(ReadAhead, ErrorComesWithItsBatchAndNotBefore) {
    RankContext context;
    SlowSource source;
    source.bad = 3;
    ReadAhead ahead(Device{DeviceKind::cpu, 0, &context}, 1, 3, 5, 2);
    ahead.start(source, [](int64_t i) { return i; });
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(*ahead.take(i), 100 * i);
    EXPECT_THROW(ahead.take(3), Error);
}

TEST(ReadAhead, AnotherPositionThanWasReadIsRefused) {
    RankContext context;
    SlowSource source;
    ReadAhead ahead(Device{DeviceKind::cpu, 0, &context}, 1, 3, 3, 1);
    ahead.start(source, [](int64_t i) { return i; });
    ahead.take(0);
    EXPECT_THROW(ahead.take(5), Error);
}

}  // namespace
}  // namespace rz
