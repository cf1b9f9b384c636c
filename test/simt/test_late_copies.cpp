// Offloading in the race build, with late copies: what goes to the host and comes back is copied on streams of its own,
// which run in any order that events allow, and as late as something waits for them. In whatever order, a toy model
// that is trained so has the bits of one that stays on the device, and no kernel reads what has not come yet.

#include <gtest/gtest.h>

#include "test/simt/control.h"
#include "test/zero/zero_case.h"

namespace rz {
namespace {

using zero_case::Case;
using zero_case::Result;

// Two clipped steps of two micro-batches. Tiles are small enough that a unit takes many; of five blocks' residuals,
// four go to the host and two come back.
Case on_the_device() {
    Case c;
    c.zero.stage = 3;
    c.zero.param_dtype = DType::bf16;
    c.zero.offload_tile = 256;
    c.recompute = Recompute::block;
    c.layers = 5;
    c.micro_batches = 2;
    c.steps = 2;
    return c;
}

Result train_in_order(uint64_t seed, const Case& how) {
    simt::seed_streams(seed);
    const Device device{DeviceKind::cuda, 0};
    Mesh mesh(device);
    return zero_case::train(mesh, how);
}

TEST(LateCopies, OffloadingChangesNoBitInAnyOrderOfStreams) {
    const Result want = train_in_order(1, on_the_device());
    EXPECT_EQ(want.updates, 2);
    Case all = on_the_device(), zero_copy = on_the_device();
    all.zero.offload_optimizer = OffloadOptimizer::stream;
    all.zero.offload_params = all.zero.offload_grads = all.offload = true;
    zero_copy.zero.offload_optimizer = OffloadOptimizer::zero_copy;
    zero_copy.zero.offload_params = true;
    for (uint64_t seed = 1; seed <= 2; ++seed) EXPECT_TRUE(train_in_order(seed, all) == want) << "seed " << seed;
    EXPECT_TRUE(train_in_order(3, zero_copy) == want);
}

// The host's AdamW has other bits than the device's: the same in every order.
TEST(LateCopies, TheHostsAdamWHasTheSameBitsInAnyOrderOfStreams) {
    Case c = on_the_device();
    c.layers = 3;
    c.zero.offload_optimizer = OffloadOptimizer::cpu;
    c.zero.offload_params = c.zero.offload_grads = true;
    const Result want = train_in_order(1, c);
    EXPECT_EQ(want.updates, 2);
    EXPECT_TRUE(train_in_order(2, c) == want);
}

}  // namespace
}  // namespace rz
