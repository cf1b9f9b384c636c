// The order of work of the Hopper attention kernels: every item once, and blocks about equally busy.
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "kernels/attention/attention_order.h"

namespace rz {
namespace {

// As attention_forward_wgmma.cu and attention_backward_wgmma.cu state them
WorkShape forward_shape(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D) {
    const int64_t rows = D == 64 ? 192 : 128;
    return {B * H, H / K, (T + rows - 1) / rows, 4 * T * D, double(rows) / 128, 2};
}
WorkShape keys_shape(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D) {
    const double group = double(H / K);
    return {B * K, 1, (T + 127) / 128, 4 * T * D * (H / K), 2 * group, 2 * group + 3};
}
constexpr int kBlocks = 132;
constexpr int64_t kL2 = int64_t(50) << 20;

TEST(AttentionOrder, EveryItemComesOnce) {
    for (const int64_t heads : {1, 5, 12, 96})
        for (const int64_t tiles : {1, 2, 7})
            for (const int64_t bytes : {1 << 10, 3 << 20, 100 << 20})
                for (const int blocks : {1, 4, 132}) {
                    const WorkShape shape{heads, heads % 2 ? 1 : 2, tiles, bytes, 1, 1};
                    const WorkOrder order = choose_work_order(shape, blocks, kL2);
                    EXPECT_EQ(order.section % shape.together, 0);
                    std::set<std::pair<int, int>> seen;
                    for (int block = 0; block < order.blocks; ++block) {
                        int last = -1;
                        for (int round = 0; order.item(block, round) < order.items(); ++round) {
                            EXPECT_GT(order.item(block, round), last);  // or a block could stop too early
                            last = order.item(block, round);
                            const WorkItem w = order.at(last);
                            EXPECT_TRUE(w.head >= 0 && w.head < heads && w.rank >= 0 && w.rank < tiles);
                            EXPECT_TRUE(seen.emplace(w.head, w.rank).second) << w.head << " " << w.rank;
                        }
                    }
                    EXPECT_EQ(int64_t(seen.size()), heads * tiles);
                }
}

// Blocks that draw from a counter: each item goes to one of them, whenever each comes, and the counter is ready for the
// next kernel.
TEST(AttentionOrder, EveryItemIsDrawnOnceAndTheCounterReturns) {
    uint32_t counter = 0;
    const auto draw = [&](const WorkOrder& order) {  // as CUDA's atomicInc
        const uint32_t old = counter;
        counter = old >= order.last_draw() ? 0 : old + 1;
        return int(old);
    };
    for (const int64_t heads : {1, 5})
        for (const int late : {0, 1, 3}) {  // blocks that come when the others have ended
            const WorkOrder order = choose_work_order({heads, 1, 7, 1 << 20, 1, 1}, 4, kL2);
            std::vector<int> seen(size_t(order.items()));
            std::vector<bool> ended(size_t(order.blocks));
            const auto run = [&](int from, int to) {
                for (int left = to - from; left > 0;)
                    for (int block = from; block < to; ++block) {
                        if (ended[size_t(block)]) continue;
                        const int item = draw(order);
                        if (item < order.items())
                            ++seen[size_t(item)];
                        else
                            ended[size_t(block)] = true, --left;
                    }
            };
            run(late, order.blocks);
            EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << "those that are late are not needed";
            run(0, late);
            EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
            EXPECT_EQ(counter, 0u);
        }
}

TEST(AttentionOrder, SectionsFitInL2) {
    const WorkShape shape = forward_shape(8, 4096, 16, 16, 128);
    const WorkOrder order = choose_work_order(shape, kBlocks, kL2);
    EXPECT_LE(order.section * shape.bytes, kL2 / 2);
    EXPECT_GE(order.section * shape.bytes * 5, kL2);  // at least 2/5 of what there is
}

// The loss that is left is that of whole items: a block that has one more than the average.
TEST(AttentionOrder, BlocksAreEquallyBusy) {
    struct Case {
        int64_t B, T, H, K, D;
        double forward, keys;
    };
    for (const Case c : {Case{8, 2048, 16, 16, 128, 0.98, 0.98}, Case{4, 4096, 16, 16, 128, 0.99, 0.99},
                         Case{2, 8192, 16, 16, 128, 0.99, 0.99}, Case{8, 2048, 32, 8, 128, 0.99, 0.90},
                         Case{8, 1024, 16, 16, 64, 0.96, 0.96}, Case{1, 2048, 64, 8, 128, 0.97, 0.53},
                         Case{1, 8192, 64, 8, 128, 0.99, 0.89}, Case{1, 16384, 64, 8, 128, 0.99, 0.98}}) {
        const WorkShape forward = forward_shape(c.B, c.T, c.H, c.K, c.D), keys = keys_shape(c.B, c.T, c.H, c.K, c.D);
        EXPECT_GE(balance(choose_work_order(forward, kBlocks, kL2), forward), c.forward) << c.B << "x" << c.T;
        EXPECT_GE(balance(choose_work_order(keys, kBlocks, kL2), keys), c.keys) << c.B << "x" << c.T;
    }
}

TEST(AttentionOrder, BalanceOfAKnownOrder) {
    const WorkShape shape{3, 1, 2, 1, 3, 1};  // items of 4 and 1, of three heads
    EXPECT_DOUBLE_EQ(balance({3, 3, 2, 2}, shape), 15.0 / (2 * 8));
    EXPECT_DOUBLE_EQ(balance({3, 1, 2, 2}, shape), 15.0 / (2 * 9)) << "the last head's long one comes late";
}

}  // namespace
}  // namespace rz
