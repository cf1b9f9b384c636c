#include "kernels/bit_sum.h"
#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;  // each adds to the sum once

__device__ __forceinline__ unsigned long long word_at(const unsigned char* p, int64_t i, int64_t bytes, bool aligned) {
    if (aligned && 8 * i + 8 <= bytes) return reinterpret_cast<const unsigned long long*>(p)[i];
    unsigned long long word = 0;
    for (int b = 0; b < 8 && 8 * i + b < bytes; ++b) word |= static_cast<unsigned long long>(p[8 * i + b]) << (8 * b);
    return word;
}

__global__ void __launch_bounds__(kThreads)
    bit_sum_kernel(unsigned long long* total, const unsigned char* p, int64_t bytes, bool aligned) {
    __shared__ unsigned long long slots[32];
    const int64_t words = (bytes + 7) / 8, stride = int64_t(gridDim.x) * kThreads;
    unsigned long long sum = blockIdx.x == 0 && threadIdx.x == 0 ? static_cast<unsigned long long>(bytes) : 0;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < words; i += stride)
        sum += word_at(p, i, bytes, aligned) * bit_sum_factor(i);
    sum = block_sum(sum, slots, kThreads);
    if (threadIdx.x == 0) atomicAdd(total, sum);
}

}  // namespace

void bit_sum_cuda(const BitSum& a, CudaStream stream) {
    const unsigned most = blocks_for(a.bytes + 1, 8 * kThreads);
    const unsigned blocks = most < kMostBlocks ? most : unsigned(kMostBlocks);
    launch(kernel<bit_sum_kernel>, LaunchConfig(dim3(blocks), dim3(kThreads), 0, stream),
           reinterpret_cast<unsigned long long*>(a.sum), static_cast<const unsigned char*>(a.data), a.bytes,
           reinterpret_cast<uintptr_t>(a.data) % 8 == 0);
}

}  // namespace rz
