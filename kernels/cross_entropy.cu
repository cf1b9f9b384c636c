#include "kernels/cross_entropy.h"
#include "kernels/device_math.cuh"
#include "kernels/runtime/cuda_check.h"

namespace rz {
namespace {

constexpr int kKeep = 8;  // vectors of a row that a thread keeps in registers: up to 128 KiB of logits per block
constexpr int kMostThreads = 1024;
constexpr int kSumThreads = 256;

// Running maximum m and sum of exp(x - m), for exp as 2^(x log2 e)
struct Softmax {
    float max = -INFINITY, sum = 0;

    template <int kN>
    __device__ __forceinline__ void add(const float (&x)[kN]) {
        float top = x[0];
#pragma unroll
        for (int k = 1; k < kN; ++k) top = fmaxf(top, x[k]);
        if (top > max) {
            sum *= ptx::ex2((max - top) * kLog2e);  // 0 the first time
            max = top;
        }
        if (top == -INFINITY) {  // masked logits, which add nothing, unless fmaxf has passed over a NaN
#pragma unroll
            for (int k = 0; k < kN; ++k) sum = x[k] == x[k] ? sum : x[k];
            return;
        }
#pragma unroll
        for (int k = 0; k < kN; ++k) sum += ptx::ex2((x[k] - max) * kLog2e);
    }
};

// A row of V elements at any address: scalars up to a 16-byte boundary, vectors, scalars. A thread takes at most one
// scalar at each end.
template <class T>
struct RowCut {
    static constexpr int kVec = kVecOf<T>;
    int head, vectors, tail;  // tail: first element after the vectors

    __device__ __forceinline__ RowCut(const T* row, int V) {
        const int misaligned = int(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
        head = min(V, (kVec - misaligned) % kVec);
        vectors = (V - head) / kVec;
        tail = head + vectors * kVec;
    }
};

template <class T, int kN>
__device__ __forceinline__ void store_gradient(T* p, float (&x)[kN], int at, int target, float max, float inverse,
                                               float scale) {
#pragma unroll
    for (int k = 0; k < kN; ++k) {
        // x - x is 0, or NaN where the loss is infinite: it never hides behind a finite gradient
        const float one = at + k == target ? 1.0f + (x[k] - x[k]) : 0.0f;
        x[k] = (ptx::ex2((x[k] - max) * kLog2e) * inverse - one) * scale;
    }
    store(p, x);
}

// One block per row, and the row is read once: the maximum and the sum run along, and the logits wait for the gradient in registers
// (128 KiB), behind them in `staged` vectors per thread of shared memory (another 98 to 227 KiB, by device: a row of 128256 in
// 16 bits fits where a block has 128 KiB). Only what is beyond both is read again. A thread reads only what it copied itself.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_kernel(float* loss, T* logits, const int32_t* targets, int V, float scale, bool write_gradient, int staged) {
    GPU_DYN_SMEM(smem);
    __shared__ float maxima[32];
    __shared__ float sums[32];
    constexpr int kVec = kVecOf<T>;
    const int threads = int(blockDim.x), thread = int(threadIdx.x);
    T* row = logits + int64_t(blockIdx.x) * V;
    const RowCut<T> cut(row, V);
    T* body = row + cut.head;
    const int target = targets[blockIdx.x];

    if (target == kIgnoreTarget) {
        if (thread == 0) loss[blockIdx.x] = 0;
        if (write_gradient)
            for (int v = thread; v < V; v += threads) row[v] = from_float<T>(0.0f);
        return;
    }
    const float target_logit = thread == 0 ? to_float(row[target]) : 0.0f;  // before anything is overwritten

    T* const stage = reinterpret_cast<T*>(smem) + thread * kVec;
    const int stage_stride = threads * kVec, rest = kKeep + staged;  // vectors of a thread from `rest` on are read again
    for (int i = 0; i < staged; ++i)
        if (const int at = thread + (kKeep + i) * threads; at < cut.vectors)
            ptx::cp_async16(stage + i * stage_stride, body + at * kVec);
    ptx::cp_async_commit();

    Softmax softmax;
    float head[1] = {}, tail[1] = {};
    const bool has_head = thread < cut.head, has_tail = cut.tail + thread < V;
    if (has_head) load(head, row + thread), softmax.add(head);
    if (has_tail) load(tail, row + cut.tail + thread), softmax.add(tail);
    Pack<T, kVec> kept[kKeep];
#pragma unroll
    for (int i = 0; i < kKeep; ++i)
        if (thread + i * threads < cut.vectors) kept[i].load(body + (thread + i * threads) * kVec);
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
        if (thread + i * threads >= cut.vectors) continue;
        float x[kVec];
        kept[i].to(x);
        softmax.add(x);
    }
    ptx::cp_async_wait<0>();
    for (int i = 0; i < staged && thread + (kKeep + i) * threads < cut.vectors; ++i) {
        float x[kVec];
        load(x, stage + i * stage_stride);
        softmax.add(x);
    }
    for (int i = thread + rest * threads; i < cut.vectors; i += threads) {
        float x[kVec];
        load(x, body + i * kVec);
        softmax.add(x);
    }

    const float max = block_max(softmax.max, maxima, threads);
    const float share = softmax.sum == 0 ? 0.0f : softmax.sum * ptx::ex2((softmax.max - max) * kLog2e);
    const float sum = block_sum(share, sums, threads);
    if (thread == 0) loss[blockIdx.x] = logf(sum) + (max - target_logit);
    if (!write_gradient) return;

#pragma unroll
    for (int i = 0; i < kKeep; ++i) {  // or 64 unpacked logits would be kept for the gradient as well, and spilled
        ptx::forget(kept[i].words[0].x), ptx::forget(kept[i].words[0].y);
        ptx::forget(kept[i].words[0].z), ptx::forget(kept[i].words[0].w);
    }
    const float inverse = 1.0f / sum;
    if (has_head) store_gradient(row + thread, head, thread, target, max, inverse, scale);
    if (has_tail) store_gradient(row + cut.tail + thread, tail, cut.tail + thread, target, max, inverse, scale);
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
        const int v = (thread + i * threads) * kVec;
        if (thread + i * threads >= cut.vectors) continue;
        float x[kVec];
        kept[i].to(x);
        store_gradient(body + v, x, cut.head + v, target, max, inverse, scale);
    }
    for (int i = 0; i < staged && thread + (kKeep + i) * threads < cut.vectors; ++i) {
        const int v = (thread + (kKeep + i) * threads) * kVec;
        float x[kVec];
        load(x, stage + i * stage_stride);
        store_gradient(body + v, x, cut.head + v, target, max, inverse, scale);
    }
    for (int i = thread + rest * threads; i < cut.vectors; i += threads) {
        float x[kVec];
        load(x, body + i * kVec);
        store_gradient(body + i * kVec, x, cut.head + i * kVec, target, max, inverse, scale);
    }
}

// One block: thread t adds x[t], x[t + 256], ... in order, then the threads' sums are added in a fixed tree.
__global__ void __launch_bounds__(kSumThreads) sum_f32_kernel(double* out, const float* x, int64_t n) {
    __shared__ double slots[32];
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += kSumThreads) sum += double(x[i]);
    sum = block_sum(sum, slots, kSumThreads);
    if (threadIdx.x == 0) out[0] += sum;
}

// Vectors per thread that shared memory can take of those that the registers can't
int staged_vectors(int64_t vectors, int threads) {
    const int64_t beyond = ceil_div(vectors, threads) - kKeep;
    if (beyond <= 0) return 0;
    int device = 0, bytes = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const int64_t room = (bytes - 2048) / (16 * threads);  // 2048: static shared memory, and the alignment behind it
    return int(beyond < room ? beyond : room);
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& a, CudaStream stream) {
    if (a.N == 0 || a.V == 0) return;
    require(a.V <= 0x7fffffff, "cross_entropy: V=%lld is beyond 2^31", static_cast<long long>(a.V));
    with_device_type(a.dtype, [&]<class T>() {
        const int threads = row_threads(ceil_div(a.V, kVecOf<T>), kKeep / 2, kMostThreads);
        const int staged = a.write_gradient ? staged_vectors(ceil_div(a.V, kVecOf<T>), threads) : 0;
        launch(cross_entropy_kernel<T>,
               LaunchConfig(dim3(blocks_for(a.N, 1)), dim3(threads), size_t(16 * threads * staged), stream), a.loss,
               static_cast<T*>(a.logits), a.targets, int(a.V), a.grad_scale, a.write_gradient, staged);
    });
}

void sum_f32_cuda(const SumF32& a, CudaStream stream) {
    if (a.n == 0) return;
    launch(sum_f32_kernel, LaunchConfig(dim3(1), dim3(kSumThreads), 0, stream), a.out, a.x, a.n);
}

}  // namespace rz
