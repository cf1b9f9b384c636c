#pragma once
// Which GPU, or which stand-in for one, runs the tests.

#ifdef RZ_CUDA
#include <cuda_runtime_api.h>
#endif

#include "kernels/runtime/device.h"

namespace rz::test {

// 10 x major + minor of the CUDA device's compute capability; 0 without a device.
inline int compute_capability() {
    int major = 0, minor = 0;
#ifdef RZ_CUDA
    if (cuda_device_count() == 0) return 0;
    require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
                cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess,
            "the device does not say its compute capability");
#endif
    return 10 * major + minor;
}

}  // namespace rz::test
