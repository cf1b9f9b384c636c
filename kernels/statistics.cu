#include "kernels/cuda/device_math.cuh"
#include "kernels/statistics.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

// One thread block per segment. Neighbouring threads read neighbouring elements; segments need no alignment.
template <class T>
__global__ void __launch_bounds__(kThreads)
    segment_squares_kernel(double* sums, const T* x, const T* minus, const int64_t* bounds, int64_t first, int64_t n) {
    __shared__ double slots[32];
    const int64_t begin = max(bounds[blockIdx.x] - first, int64_t(0)), end = min(bounds[blockIdx.x + 1] - first, n);
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
        const double d = minus ? double(to_float(x[i])) - double(to_float(minus[i])) : double(to_float(x[i]));
        sum += d * d;
    }
    sum = block_sum(sum, slots, kThreads);
    if (threadIdx.x == 0) sums[blockIdx.x] += sum;
}

// One thread block: it reads as much as one op of many, and goes on beside nothing else.
constexpr int kMany = 1024;
__global__ void __launch_bounds__(kMany) block_statistics_kernel(BlockStatistics a) {
    __shared__ double sums[32];
    __shared__ float maxima[32];
    double sum = 0;
    for (int64_t r = threadIdx.x; r < a.rows; r += kMany)
        sum += 1 / (double(a.rstd[r]) * double(a.rstd[r])) - double(a.eps);
    float largest = -INFINITY;
    for (int64_t i = threadIdx.x; i < a.count; i += kMany) largest = fmaxf(largest, a.lse[i]);
    sum = block_sum(sum, sums, kMany);
    largest = block_max(largest, maxima, kMany);
    if (threadIdx.x != 0) return;
    *a.squares += sum;
    *a.largest = fmaxf(*a.largest, largest / a.sharpness);
}

}  // namespace

void segment_squares_cuda(const SegmentSquares& a, CudaStream stream) {
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<segment_squares_kernel<T>>,
               LaunchConfig(dim3(blocks_for(a.segments, 1)), dim3(kThreads), 0, stream), a.sums,
               static_cast<const T*>(a.x), static_cast<const T*>(a.minus), a.bounds, a.first, a.n);
    });
}

void block_statistics_cuda(const BlockStatistics& a, CudaStream stream) {
    launch(kernel<block_statistics_kernel>, LaunchConfig(dim3(1), dim3(kMany), 0, stream), a);
}

}  // namespace rz
