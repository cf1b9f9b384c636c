#pragma once
// Magnitudes of what a kernel stores (kernels/magnitude.h): bits, compared as integers.

#include "kernels/cuda/device_math.cuh"

namespace rz {

__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }
template <int kN>
__device__ __forceinline__ uint32_t magnitude_bits(const float (&x)[kN]) {
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < kN; ++k) most = max(most, magnitude_bits(x[k]));
    return most;
}
__device__ __forceinline__ uint32_t warp_max_bits(uint32_t v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = max(v, __shfl_xor_sync(kFullWarp, v, d));
    return v;
}
// The largest of a warp, as it is stored in T, joins *amax. Rounding keeps order, so the largest is rounded alone.
template <class T>
__device__ __forceinline__ void warp_join(uint32_t* amax, uint32_t most) {
    most = warp_max_bits(most);
    if (threadIdx.x % 32 != 0 || most == 0) return;
    const uint32_t rounded = magnitude_bits(to_float(from_float<T>(__uint_as_float(most))));
    atomicMax(amax, rounded);  // of unsigned integers, whose order is that of the magnitudes
}
// Magnitude of a one-dimensional block, with one atomic operation; `slots` as block_sum's.
template <class T>
__device__ __forceinline__ void block_join(uint32_t* amax, uint32_t most, uint32_t* slots, int threads) {
    most = warp_max_bits(most);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    warp_join<T>(amax, int(threadIdx.x) < threads / 32 ? slots[threadIdx.x] : 0u);
}

}  // namespace rz
