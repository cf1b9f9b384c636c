#include "kernels/bias.h"
#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32,
              kRows = 8;  // threads of a block of the sum: each has a vector of columns, and every 8th row

// One thread per kVec elements
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(T* x, const T* bias, int64_t vectors, int per_row) {
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (item >= vectors) return;
    float v[kVec], b[kVec];
    load(v, x + item * kVec);
    load(b, bias + item % per_row * kVec);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] += b[k];
    store(x + item * kVec, v);
}

// partial (parts, C) = the column sums of each run of rows: thread row j adds rows j, j + 8, ... in order, then the
// eight sums are added in order.
template <class T, int kVec>
__global__ void __launch_bounds__(kColumns* kRows)
    bias_backward_kernel(float* partial, const T* dy, int64_t N, int C, int parts) {
    __shared__ float sums[kRows][kColumns][kVec];
    const int part = int(blockIdx.y), c = (int(blockIdx.x) * kColumns + int(threadIdx.x)) * kVec;
    const int64_t end = (part + 1) * N / parts;
    float sum[kVec] = {};
    if (c < C) {
#pragma unroll 4
        for (int64_t n = part * N / parts + threadIdx.y; n < end; n += kRows) {
            float v[kVec];
            load(v, dy + n * C + c);
#pragma unroll
            for (int k = 0; k < kVec; ++k) sum[k] += v[k];
        }
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) sums[threadIdx.y][threadIdx.x][k] = sum[k];
    __syncthreads();
    if (threadIdx.y != 0 || c >= C) return;
    for (int j = 1; j < kRows; ++j)
#pragma unroll
        for (int k = 0; k < kVec; ++k) sum[k] += sums[j][threadIdx.x][k];
    store(partial + int64_t(part) * C + c, sum);
}

// dbias += the parts, in order
template <class G>
__global__ void __launch_bounds__(kThreads) bias_sum_kernel(G* dbias, const float* partial, int parts, int C) {
    const int c = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (c >= C) return;
    float sum = 0;
#pragma unroll 8
    for (int p = 0; p < parts; ++p) sum += partial[int64_t(p) * C + c];
    dbias[c] = from_float<G>(to_float(dbias[c]) + sum);
}

template <class T, int kVec>
void launch_add(const AddBias& a, CudaStream stream) {
    const int64_t vectors = a.N * a.C / kVec;
    launch(kernel<add_bias_kernel<T, kVec>>,
           LaunchConfig(dim3(blocks_for(vectors, kThreads)), dim3(kThreads), 0, stream), static_cast<T*>(a.x),
           static_cast<const T*>(a.bias), vectors, int(a.C / kVec));
}

template <class T, int kVec>
void launch_backward(const BiasBackward& a, int parts, CudaStream stream) {
    const dim3 grid(blocks_for(a.C, kColumns * kVec), unsigned(parts));
    launch(kernel<bias_backward_kernel<T, kVec>>, LaunchConfig(grid, dim3(kColumns, kRows), 0, stream), a.scratch,
           static_cast<const T*>(a.dy), a.N, int(a.C), parts);
}

}  // namespace

void add_bias_cuda(const AddBias& a, CudaStream stream) {
    if (a.N == 0 || a.C == 0) return;
    require(a.C <= 0x7fffffff, "add_bias: C=%lld is beyond 2^31", static_cast<long long>(a.C));
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.C % kVecOf<T> == 0 && aligned_to(16, a.x, a.bias);
        wide ? launch_add<T, kVecOf<T>>(a, stream) : launch_add<T, 1>(a, stream);
    });
}

void bias_backward_cuda(const BiasBackward& a, CudaStream stream) {
    if (a.N == 0 || a.C == 0) return;
    require(a.C <= 0x7fffffff, "bias_backward: C=%lld is beyond 2^31", static_cast<long long>(a.C));
    const int parts = int(a.N < kBiasBackwardParts ? a.N : kBiasBackwardParts);
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.C % kVecOf<T> == 0 && aligned_to(16, a.dy, a.scratch);
        wide ? launch_backward<T, kVecOf<T>>(a, parts, stream) : launch_backward<T, 1>(a, parts, stream);
    });
    with_device_type(a.grad_dtype, [&]<class G>() {
        launch(kernel<bias_sum_kernel<G>>, LaunchConfig(dim3(blocks_for(a.C, kThreads)), dim3(kThreads), 0, stream),
               static_cast<G*>(a.dbias), static_cast<const float*>(a.scratch), parts, int(a.C));
    });
}

}  // namespace rz
