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

// Error that a sum of K fp8 products, each at most `largest`, may have. The emulator adds in fp32, in another order.
// Hopper's tensor cores shift the products of an instruction to the exponent of the largest and keep 13 bits below it
// (DeepSeek-V3, section 3.3.2; seen on an H200): each product may lose 2^-13 of the largest.
inline double fp8_sum_error(int64_t K, double largest) {
#if defined(SIMT_EMU) || !defined(RZ_CUDA)
    return 8 * largest * double(K) * 0x1p-24;
#else
    return largest * double(K) * 0x1p-13;
#endif
}

}  // namespace rz::test
