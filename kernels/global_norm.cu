#include "kernels/cuda/device_math.cuh"
#include "kernels/global_norm.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

// One thread block per block of the logical buffer. fp32 within a vector, double across.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(double* partial, const T* x, int64_t n, int64_t block, int64_t at) {
    __shared__ double slots[32];
    constexpr int kVec = kVecOf<T>;
    const int64_t first = int64_t(blockIdx.x) * block - at;  // negative where the block begins before x
    const int64_t begin = max(first, int64_t(0)), end = min(n, first + block);
    constexpr int kDeep = 4, kStep = kThreads * kVec;
    double sum = 0;
    const auto add = [&](const Pack<T, kVec>& pack) {
        float v[kVec], square = 0;
        pack.to(v);
#pragma unroll
        for (int k = 0; k < kVec; ++k) square += v[k] * v[k];
        sum += double(square);
    };
    int64_t i = begin + int64_t(threadIdx.x) * kVec;
    for (; i + (kDeep - 1) * kStep + kVec <= end; i += kDeep * kStep) {
        Pack<T, kVec> packs[kDeep];
#pragma unroll
        for (int d = 0; d < kDeep; ++d) packs[d].load(x + i + d * kStep);
#pragma unroll
        for (int d = 0; d < kDeep; ++d) add(packs[d]);
    }
    for (; i + kVec <= end; i += kStep) {
        Pack<T, kVec> pack;
        pack.load(x + i);
        add(pack);
    }
    const int64_t tail = begin + (end - begin) / kVec * kVec + threadIdx.x;
    if (tail < end) sum += double(to_float(x[tail])) * double(to_float(x[tail]));
    sum = block_sum(sum, slots, kThreads);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block: all threads fetch, thread 0 adds in order.
__global__ void __launch_bounds__(kThreads)
    clip_scale_kernel(float* norm, float* scale, const double* partial, const int32_t* order, int64_t count,
                      float average, const float* unscale, float max_norm) {
    __shared__ double fetched[kThreads];
    double sum = 0;
    for (int64_t begin = 0; begin < count; begin += kThreads) {
        const int here = int(min(count - begin, int64_t(kThreads)));
        if (int(threadIdx.x) < here) {
            const int64_t i = begin + threadIdx.x;
            fetched[threadIdx.x] = partial[order ? order[i] : i];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 8
            for (int i = 0; i < here; ++i) sum += fetched[i];
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    if (unscale) average *= *unscale;
    const float total = float(sqrt(sum) * double(average));
    *norm = total;
    const float clip = max_norm > 0 ? fminf(1.0f, max_norm / (total + 1e-6f)) : 1.0f;
    *scale = is_finite(total) ? average * clip : NAN;
}

}  // namespace

void sum_squares_cuda(const SumSquares& a, CudaStream stream) {
    if (a.n == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<sum_squares_kernel<T>>,
               LaunchConfig(dim3(blocks_for(a.at + a.n, a.block)), dim3(kThreads), 0, stream), a.partial,
               static_cast<const T*>(a.x), a.n, a.block, a.at);
    });
}

void clip_scale_cuda(const ClipScale& a, CudaStream stream) {
    launch(kernel<clip_scale_kernel>, LaunchConfig(dim3(1), dim3(kThreads), 0, stream), a.norm, a.scale, a.partial,
           a.order, a.count, a.average, a.unscale, a.max_norm);
}

}  // namespace rz
