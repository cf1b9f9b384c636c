#include "kernels/cuda/device_math.cuh"
#include "kernels/embedding.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // per thread of the forward pass
constexpr int kRows = 8;     // of a token's that the backward pass fetches at a time

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) embedding_forward_kernel(T* x, const T* table, const int32_t* tokens,
                                                                     int64_t items, int C, int64_t V, int64_t token0) {
    const int64_t first = int64_t(blockIdx.x) * (kThreads * kVectors) + threadIdx.x;
    const int vectors = C / kVec;
    const T* source[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        const int64_t item = first + i * kThreads;
        if (item >= items) break;
        const int64_t row = items <= 0xffffffffLL ? int64_t(uint32_t(item) / uint32_t(vectors)) : item / vectors;
        const int64_t at = tokens[row] - token0;
        source[i] = uint64_t(at) < uint64_t(V) ? table + at * C + (item - row * vectors) * kVec : nullptr;
    }
    Pack<T, kVec> pack[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
        if (first + i * kThreads < items) source[i] ? pack[i].load(source[i]) : pack[i].from({});
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
        if (first + i * kThreads < items) pack[i].store(x + (first + i * kThreads) * kVec);
}

// Block (distinct token, slice of the columns): a thread owns kVec columns of the token's row and adds in row order. A
// warp fetches 32 row numbers at a time.
template <class T, class G, int kVec>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(G* dtable, const T* dx, const int32_t* rows, const int32_t* starts, const int32_t* ids,
                              int C, int64_t V, int64_t token0) {
    const int begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    const int64_t token = ids[blockIdx.x] - token0;
    if (begin == end || uint64_t(token) >= uint64_t(V)) return;
    const int c = int(blockIdx.y * blockDim.x + threadIdx.x) * kVec, lane = int(threadIdx.x % 32);
    const bool mine = c < C;  // the others only pass row numbers on
    G* out = dtable + token * C + c;
    Pack<G, kVec> old;
    if (mine) old.load(out);
    float sum[kVec] = {};
    for (int i = begin; i < end; i += 32) {
        const int here = min(32, end - i);
        const int row = lane < here ? rows[i + lane] : 0;
        for (int j = 0; j < here; j += kRows) {
            Pack<T, kVec> pack[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int64_t at = int64_t(__shfl_sync(kFullWarp, row, j + r)) * C + c;
                if (mine && j + r < here) pack[r].load(dx + at);
            }
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (j + r >= here) break;
                float v[kVec];
                pack[r].to(v);
#pragma unroll
                for (int k = 0; k < kVec; ++k) sum[k] += v[k];
            }
        }
    }
    if (!mine) return;
    float v[kVec];
    old.to(v);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] += v[k];
    store(out, sum);
}

template <class T, int kVec>
void launch_forward(const EmbeddingForward& a, CudaStream stream) {
    const int64_t items = a.N * (a.C / kVec);
    launch(kernel<embedding_forward_kernel<T, kVec>>,
           LaunchConfig(dim3(blocks_for(items, kThreads * kVectors)), dim3(kThreads), 0, stream), static_cast<T*>(a.x),
           static_cast<const T*>(a.table), a.tokens, items, int(a.C), a.V, a.first);
}

template <class T, class G, int kVec>
void launch_backward(const EmbeddingBackward& a, CudaStream stream) {
    const int threads = row_threads(a.C / kVec, 1, kThreads);
    const unsigned slices = blocks_for(a.C / kVec, threads);
    require(slices <= 65535, "embedding: C=%lld is beyond the grid", static_cast<long long>(a.C));
    launch(kernel<embedding_backward_kernel<T, G, kVec>>,
           LaunchConfig(dim3(blocks_for(a.distinct, 1), slices), dim3(threads), 0, stream), static_cast<G*>(a.dtable),
           static_cast<const T*>(a.dx), a.rows, a.starts, a.ids, int(a.C), a.V, a.first);
}

}  // namespace

void embedding_forward_cuda(const EmbeddingForward& a, CudaStream stream) {
    if (a.N == 0 || a.C == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.C % kVecOf<T> == 0 && aligned_to(16, a.x, a.table);
        wide ? launch_forward<T, kVecOf<T>>(a, stream) : launch_forward<T, 1>(a, stream);
    });
}

void embedding_backward_cuda(const EmbeddingBackward& a, CudaStream stream) {
    if (a.distinct == 0 || a.C == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.C % kVecOf<T> == 0 && aligned_to(16, a.dtable, a.dx);
        if (a.grad_dtype == DType::f32)  // 16 bytes of the gradient, or a warp's access would use half of each sector
            wide ? launch_backward<T, float, kVecOf<float>>(a, stream) : launch_backward<T, float, 1>(a, stream);
        else  // the same as dtype
            wide ? launch_backward<T, T, kVecOf<T>>(a, stream) : launch_backward<T, T, 1>(a, stream);
    });
}

}  // namespace rz
