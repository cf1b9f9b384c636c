#include "kernels/cross_entropy.h"
#include "kernels/cuda/softmax_row.cuh"
#include "kernels/runtime/cuda_check.h"

namespace rz {
namespace {

constexpr int kKeep = 8;  // vectors of a row that a thread keeps in registers:
                          // up to 128 KiB of logits per block
constexpr int kMostThreads = 1024,
              kHalfThreads = 512;  // at 64 registers one or two blocks per multiprocessor
constexpr float kLn2 = 0.693147180559945f;
constexpr int kSumThreads = 256;

// One block per row, and the row is read once: the maximum and the sum run
// along, and the logits wait for the gradient in registers (128 KiB), after
// them in `staged` vectors per thread of shared memory (another 98 to 227 KiB,
// by device: a row of 128256 in 16 bits fits where a block has 128 KiB). Only
// what is beyond both is read again. A thread reads only what it copied itself.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_kernel(float* loss, T* logits, const int32_t* targets, int V, float scale, const float* loss_scale,
                         float z, float* z_loss, bool write_gradient, int staged) {
    GPU_DYN_SMEM(smem);
    __shared__ float maxima[32];
    __shared__ float sums[32];
    constexpr int kVec = kVecOf<T>;
    const int threads = int(blockDim.x), thread = int(threadIdx.x);
    T* row = logits + int64_t(blockIdx.x) * V;
    const RowCut<T> cut(row, V);
    T* body = row + cut.head;
    Pack<T, kVec> kept[kKeep];  // on their way before anything is waited for
#pragma unroll
    for (int i = 0; i < kKeep; ++i)
        if (thread + i * threads < cut.vectors) kept[i].load(body + (thread + i * threads) * kVec);
    const int target = targets[blockIdx.x];

    const bool has_head = thread < cut.head, has_tail = cut.tail + thread < V;
    if (target == kIgnoreTarget) {
        if (thread == 0) {
            loss[blockIdx.x] = 0;
            if (z > 0) z_loss[blockIdx.x] = 0;
        }
        if (!write_gradient) return;
        Pack<T, kVec> zero;  // to what this thread has fetched above: others' may
                             // still be on its way
        zero.from({});
        if (has_head) row[thread] = from_float<T>(0.0f);
        if (has_tail) row[cut.tail + thread] = from_float<T>(0.0f);
#pragma unroll 1
        for (int i = thread; i < cut.vectors; i += threads) zero.store(body + i * kVec);
        return;
    }
    const float target_logit = to_float(row[target]);  // before anything is overwritten

    T* const stage = reinterpret_cast<T*>(smem) + thread * kVec;
    const int stage_stride = threads * kVec,
              rest = kKeep + staged;  // a thread's vectors from `rest` on are read again
#pragma unroll 1
    for (int i = 0; i < staged; ++i)
        if (const int at = thread + (kKeep + i) * threads; at < cut.vectors)
            ptx::cp_async16(stage + i * stage_stride, body + at * kVec);
    ptx::cp_async_commit();

    Softmax softmax;
    float one[1];
    if (has_head) load(one, row + thread), softmax.add(one);
    if (has_tail) load(one, row + cut.tail + thread), softmax.add(one);
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

    const RowSoftmax all(softmax, maxima, sums, threads);
    const float top = all.top, sum = all.sum;
    if (thread == 0) loss[blockIdx.x] = logf(sum) + fmaf(-target_logit, kLog2e, top) * kLn2;
    float weight = 1;  // of the probabilities in the gradient
    if (z > 0) {
        const float lse = logf(sum) + top * kLn2;
        if (thread == 0) z_loss[blockIdx.x] = z * lse * lse;
        weight += 2 * z * lse;
    }
    if (!write_gradient) return;
    if (loss_scale) scale *= *loss_scale;

#pragma unroll
    for (int i = 0; i < kKeep; ++i) {  // or 64 unpacked logits would be kept for
                                       // the gradient as well, and spilled
        ptx::forget(kept[i].words[0].x), ptx::forget(kept[i].words[0].y);
        ptx::forget(kept[i].words[0].z), ptx::forget(kept[i].words[0].w);
    }
    uint32_t again = threadIdx.x;  // or the addresses of the loads would be kept for the stores
    ptx::forget(again);
    const int self = int(again);
    const float inverse = 1.0f / sum * weight, factor = inverse * scale;
    if (has_head) load(one, row + self), store_gradient(row + self, one, top, factor);
    if (has_tail) load(one, row + cut.tail + self), store_gradient(row + cut.tail + self, one, top, factor);
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
        const int v = (self + i * threads) * kVec;
        if (self + i * threads >= cut.vectors) continue;
        float x[kVec];
        kept[i].to(x);
        store_gradient(body + v, x, top, factor);
    }
    for (int i = 0; i < staged && self + (kKeep + i) * threads < cut.vectors; ++i) {
        const int v = (self + (kKeep + i) * threads) * kVec;
        float x[kVec];
        load(x, stage + i * stage_stride);
        store_gradient(body + v, x, top, factor);
    }
    for (int i = self + rest * threads; i < cut.vectors; i += threads) {
        float x[kVec];
        load(x, body + i * kVec);
        store_gradient(body + i * kVec, x, top, factor);
    }
    // The target's own gradient comes last, from the thread that has just written
    // it as if it were none. x - x is 0, or NaN where the loss is infinite: a
    // finite gradient never hides it.
    if (thread == cut.owner(target, threads)) {
        const float whole = 1.0f + (target_logit - target_logit);
        row[target] = from_float<T>((ptx::ex2(fmaf(target_logit, kLog2e, -top)) * inverse - whole) * scale);
    }
}

// One block: thread t adds x[t], x[t + 256], ... in order, then the threads'
// sums are added in a fixed tree.
__global__ void __launch_bounds__(kSumThreads) sum_f32_kernel(double* out, const float* x, int64_t n) {
    __shared__ double slots[32];
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += kSumThreads) sum += double(x[i]);
    sum = block_sum(sum, slots, kSumThreads);
    if (threadIdx.x == 0) out[0] += sum;
}

int device_attribute(cudaDeviceAttr what) {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, what, device));
    return value;
}

struct Shape {
    int threads, staged;
};

// Two blocks per multiprocessor where what waits for the gradient fits into
// half of one: one fetches while the other computes. Else one block, and as
// much of its row in shared memory as there is room for.
Shape shape_of(int64_t vectors, bool write_gradient) {
    constexpr int kFixed = 2048;  // static shared memory, and the alignment after it
    const int half = row_threads(vectors, kKeep, kHalfThreads);
    const int64_t beyond = ceil_div(vectors, half) - kKeep;
    if (beyond <= 0) return {half, 0};
    if (!write_gradient) return {kMostThreads, 0};
    const int shared = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    if (16 * half * beyond <= shared / 2 - 1024 - kFixed) return {half, int(beyond)};  // 1024: the driver's, per block
    const int64_t rest = ceil_div(vectors, kMostThreads) - kKeep;
    const int64_t room = (device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kFixed) / (16 * kMostThreads);
    return {kMostThreads, int(rest < room ? rest : room)};
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& a, CudaStream stream) {
    if (a.N == 0 || a.V == 0) return;
    require(a.V <= 0x7fffffff, "cross_entropy: V=%lld is beyond 2^31", static_cast<long long>(a.V));
    with_device_type(a.dtype, [&]<class T>() {
        const auto [threads, staged] = shape_of(ceil_div(a.V, kVecOf<T>), a.write_gradient);
        launch(kernel<cross_entropy_kernel<T>>,
               LaunchConfig(dim3(blocks_for(a.N, 1)), dim3(threads), size_t(16 * threads * staged), stream), a.loss,
               static_cast<T*>(a.logits), a.targets, int(a.V), a.grad_scale, a.loss_scale, a.z, a.z_loss,
               a.write_gradient, staged);
    });
}

void sum_f32_cuda(const SumF32& a, CudaStream stream) {
    if (a.n == 0) return;
    launch(kernel<sum_f32_kernel>, LaunchConfig(dim3(1), dim3(kSumThreads), 0, stream), a.out, a.x, a.n);
}

}  // namespace rz
