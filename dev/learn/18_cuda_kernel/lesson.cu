// RMSNorm as a CUDA kernel: one block of 128 threads for each row. The emulator runs it where there is no GPU.
#include "dev/learn/18_cuda_kernel/kernel.h"
#include "kernels/cuda/gpu.cuh"

constexpr int kThreads = 128, kWarps = kThreads / 32;

__global__ void rmsnorm_kernel(float* y, const float* x, const float* w, int C, float eps) {
    __shared__ float of_warp[kWarps];
    const float* row = x + size_t(blockIdx.x) * C;
    float sum = 0;
    // >>> hole 1: thread t takes elements t, t + 128, t + 256, ...: neighbours read neighbours
#ifdef HOLE
    for (int i = 0; i < C; i += kThreads) sum += row[i] * row[i];
#else
    for (int i = int(threadIdx.x); i < C; i += kThreads) sum += row[i] * row[i];
#endif
    // <<<
    // Lane l adds what lane l ^ distance has: after five exchanges all 32 lanes of the warp have its sum.
    for (int distance = 16; distance > 0; distance /= 2) {
        // >>> hole 2: __shfl_xor_sync(0xffffffff, value, distance) is the value of that lane
#ifdef HOLE
        sum += sum;
#else
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
#endif
        // <<<
    }
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = sum;
    }
    // >>> hole 3: a warp must not read what another has not yet written
#ifdef HOLE
#else
    __syncthreads();
#endif
    // <<<
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += of_warp[warp];
    const float rstd = 1 / sqrtf(total / float(C) + eps);
    for (int i = int(threadIdx.x); i < C; i += kThreads) y[size_t(blockIdx.x) * C + i] = row[i] * rstd * w[i];
}

void rmsnorm(float* y, const float* x, const float* w, int rows, int C, float eps, cudaStream_t stream) {
    rz::launch(rz::kernel<rmsnorm_kernel>, rz::LaunchConfig(dim3(unsigned(rows)), dim3(kThreads), 0, stream), y, x, w,
               C, eps);
}
