#include "kernels/device_math.cuh"
#include "kernels/embedding.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    embedding_forward_kernel(T* x, const T* table, const int32_t* tokens, int64_t items, int C) {
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (item >= items) return;
    const int vectors = C / kVec;
    const int64_t row = items <= 0xffffffffLL ? int64_t(uint32_t(item) / uint32_t(vectors)) : item / vectors;
    Pack<T, kVec> pack;
    pack.load(table + int64_t(tokens[row]) * C + (item - row * vectors) * kVec);
    pack.store(x + item * kVec);
}

// Block (distinct token, slice of the columns): a thread owns kVec columns of the token's row and adds in row order.
template <class T, class G, int kVec>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(G* dtable, const T* dx, const int32_t* rows, const int32_t* starts, const int32_t* ids,
                              int C) {
    const int c = int(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
    if (c >= C) return;
    const int begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    if (begin == end) return;
    float sum[kVec] = {};
#pragma unroll 8
    for (int i = begin; i < end; ++i) {
        float v[kVec];
        load(v, dx + int64_t(rows[i]) * C + c);
#pragma unroll
        for (int k = 0; k < kVec; ++k) sum[k] += v[k];
    }
    G* out = dtable + int64_t(ids[blockIdx.x]) * C + c;
    float old[kVec];
    load(old, out);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] += old[k];
    store(out, sum);
}

template <class T, int kVec>
void launch_forward(const EmbeddingForward& a, CudaStream stream) {
    const int64_t items = a.N * (a.C / kVec);
    launch(embedding_forward_kernel<T, kVec>,
           LaunchConfig(dim3(blocks_for(items, kThreads)), dim3(kThreads), 0, stream), static_cast<T*>(a.x),
           static_cast<const T*>(a.table), a.tokens, items, int(a.C));
}

template <class T, class G, int kVec>
void launch_backward(const EmbeddingBackward& a, CudaStream stream) {
    const int threads = row_threads(a.C / kVec, 1, kThreads);
    const unsigned slices = blocks_for(a.C / kVec, threads);
    require(slices <= 65535, "embedding: C=%lld is beyond the grid", static_cast<long long>(a.C));
    launch(embedding_backward_kernel<T, G, kVec>,
           LaunchConfig(dim3(blocks_for(a.distinct, 1), slices), dim3(threads), 0, stream), static_cast<G*>(a.dtable),
           static_cast<const T*>(a.dx), a.rows, a.starts, a.ids, int(a.C));
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
        if (a.grad_dtype == DType::f32)
            wide ? launch_backward<T, float, kVecOf<T>>(a, stream) : launch_backward<T, float, 1>(a, stream);
        else  // the same as dtype
            wide ? launch_backward<T, T, kVecOf<T>>(a, stream) : launch_backward<T, T, 1>(a, stream);
    });
}

}  // namespace rz
