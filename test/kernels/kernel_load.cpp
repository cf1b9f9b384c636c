// Every kernel of the program is loaded at its start (kernels/runtime/load.h).

#include <gtest/gtest.h>

#include "kernels/runtime/load.h"

// In test/ptx: how many kernels nvcc's code has registered that nobody has loaded or launched.
extern "C" int kernels_not_loaded() __attribute__((weak));

namespace rz {
namespace {

TEST(LoadKernels, LoadsEveryKernelOfTheProgram) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    const LoadedKernels loaded = load_kernels(Device{DeviceKind::cuda, 0});
    EXPECT_GT(loaded.count, 100);
    if (kernels_not_loaded) {
        EXPECT_EQ(kernels_not_loaded(), 0);
    }
    EXPECT_EQ(load_kernels(Device{DeviceKind::cpu}).count, 0);
}

}  // namespace
}  // namespace rz
