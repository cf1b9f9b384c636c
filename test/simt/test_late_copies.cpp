// Offloading in the race build, with late copies: what goes to the host and comes back is copied on streams of its own,
// which run in any order that events allow, and as late as something waits for them. In whatever order, a toy model
// that is trained so has the bits of one that stays on the device, and no kernel reads what has not come yet.

#include <gtest/gtest.h>

#include "test/llama/layout_runs.h"
#include "test/simt/control.h"

namespace rz {
namespace {

using namespace layout_runs;

// Two clipped steps of two micro-batches. Tiles are small enough that a unit takes many; of five blocks' residuals,
// four go to the host and two come back.
Layout on_the_device() {
    Layout how = with(data_ranks(1, toy24(false, /*layers=*/5)),
                      "--zero 3 --dtype bf16 --recompute block --micro-batches 2 --steps 2");
    how.zero.offload_tile = 256;
    return how;
}

Outcome train_in_order(uint64_t seed, const Layout& how) {
    simt::seed_streams(seed);
    Mesh mesh(Device{DeviceKind::cuda, 0});
    LayoutRun run(how);
    run.on(mesh);
    return run.end();
}

TEST(LateCopies, OffloadingChangesNoBitInAnyOrderOfStreams) {
    const Outcome want = train_in_order(1, on_the_device());
    EXPECT_EQ(want.updates, 2);
    const Layout all = with(on_the_device(),
                            "--offload-optimizer stream --offload-params on --offload-grads on "
                            "--offload-activations on"),
                 zero_copy = with(on_the_device(), "--offload-optimizer zero-copy --offload-params on");
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(seed);
        expect_the_bits(train_in_order(seed, all), want);
    }
    expect_the_bits(train_in_order(3, zero_copy), want);
}

// The host's AdamW has other bits than the device's: the same in every order.
TEST(LateCopies, TheHostsAdamWHasTheSameBitsInAnyOrderOfStreams) {
    const Layout how = with(on_the_device(),
                            "--layers 3 --offload-optimizer cpu --offload-params on "
                            "--offload-grads on");
    const Outcome want = train_in_order(1, how);
    EXPECT_EQ(want.updates, 2);
    expect_the_bits(train_in_order(2, how), want);
}

}  // namespace
}  // namespace rz
