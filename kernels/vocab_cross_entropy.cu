#include "kernels/cuda/softmax_row.cuh"
#include "kernels/vocab_cross_entropy.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 512, kAhead = 4;  // 32 KiB of a row on their way

// f(first element, x) for every vector and each scalar at the ends of a row.
template <class T, class F>
__device__ __forceinline__ void for_row(const T* row, int V, const F& f) {
    constexpr int kVec = kVecOf<T>;
    const RowCut<T> cut(row, V);
    const int thread = int(threadIdx.x);
    float one[1];
    if (thread < cut.head) load(one, row + thread), f(thread, one);
    if (cut.tail + thread < V) load(one, row + cut.tail + thread), f(cut.tail + thread, one);
    for (int i = thread; i < cut.vectors; i += kAhead * kRowThreads) {
        Pack<T, kVec> ahead[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k)
            if (i + k * kRowThreads < cut.vectors) ahead[k].load(row + cut.head + (i + k * kRowThreads) * kVec);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
            if (i + k * kRowThreads >= cut.vectors) continue;
            float x[kVec];
            ahead[k].to(x);
            f(cut.head + (i + k * kRowThreads) * kVec, x);
        }
    }
}

// Rounding error: exp(x - max) as a multiple of 2^(x log2 e - top), `top` being max log2 e, rounded.
__device__ __forceinline__ float rounding_of(float max, float top) {
    return max == -INFINITY ? 1.0f : ptx::ex2(-fmaf(max, kLog2e, -top));
}

// One block per row, which is read once.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    vocab_softmax_kernel(float* stats, const T* logits, const int32_t* targets, int V, int first) {
    __shared__ float maxima[32];
    __shared__ float sums[32];
    const T* row = logits + int64_t(blockIdx.x) * V;
    Softmax softmax;
    for_row(row, V, [&](int, auto& x) { softmax.add(x); });
    const RowSoftmax all(softmax, maxima, sums, kRowThreads);
    if (threadIdx.x != 0) return;
    const int64_t target = int64_t(targets[blockIdx.x]) - first;  // kIgnoreTarget is below every first
    float* out = stats + int64_t(blockIdx.x) * kVocabStats;
    out[0] = all.max;
    out[1] = all.sum * rounding_of(all.max, all.top);
    out[2] = target >= 0 && target < V ? to_float(row[target]) : 0.0f;
}

// One block per row. Every thread adds the parts' numbers, in ascending order.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    vocab_cross_entropy_kernel(float* loss, T* logits, const float* stats, const int32_t* targets, int64_t N, int V,
                               int first, int parts, float scale, const float* loss_scale, float z, float* z_loss,
                               bool write_gradient) {
    if (loss_scale) scale *= *loss_scale;
    const int64_t n = blockIdx.x;
    T* row = logits + n * V;
    if (targets[n] == kIgnoreTarget) {
        if (threadIdx.x == 0) {
            loss[n] = 0;
            if (z > 0) z_loss[n] = 0;
        }
        if (!write_gradient) return;
        for_row(row, V, [&](int v, auto& x) {
            for (float& each : x) each = 0;
            store(row + v, x);
        });
        return;
    }
    // Unrolled by four, nvcc 13.0.88 reads in the second loop part[1] in place of part[0], part[3] in place of part[2].
    float max = -INFINITY, sum = 0, target_logit = 0;
    for (int p = 0; p < parts; ++p) max = fmaxf(max, stats[(p * N + n) * kVocabStats]);
#pragma unroll 1
    for (int p = 0; p < parts; ++p) {
        const float* part = stats + (p * N + n) * kVocabStats;
        sum += part[1] == 0 ? 0.0f : part[1] * expf(part[0] - max);
        target_logit += part[2];
    }
    const float shifted = target_logit - max;
    if (threadIdx.x == 0) loss[n] = logf(sum) - shifted;
    float weight = 1;  // of the probabilities in the gradient
    if (z > 0) {
        const float lse = logf(sum) + max;
        if (threadIdx.x == 0) z_loss[n] = z * lse * lse;
        weight += 2 * z * lse;
    }
    if (!write_gradient) return;
    const float top = max * kLog2e, factor = scale * weight / sum * rounding_of(max, top);
    for_row(row, V, [&](int v, auto& x) { store_gradient(row + v, x, top, factor); });
    // The target's own comes last, from the thread that has just written it. As
    // in cross_entropy: an infinite loss gives a NaN, so that a finite gradient
    // never hides it.
    const int64_t target = int64_t(targets[n]) - first;
    if (target >= 0 && target < V && int(threadIdx.x) == RowCut<T>(row, V).owner(int(target), kRowThreads))
        row[target] = from_float<T>((expf(shifted) / sum * weight - 1.0f + (shifted - shifted)) * scale);
}

// One thread per row.
__global__ void __launch_bounds__(kThreads)
    vocab_argmax_kernel(int32_t* best, const int32_t* own, const float* stats, int64_t N, int parts) {
    const int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (n >= N) return;
    float max = stats[n * kVocabStats];
    int32_t id = own[n];
    for (int p = 1; p < parts; ++p) {
        const float x = stats[(p * N + n) * kVocabStats];
        if (x > max) max = x, id = own[p * N + n];
    }
    best[n] = id;
}

}  // namespace

void vocab_argmax_cuda(const VocabArgmax& a, CudaStream stream) {
    if (a.N == 0) return;
    launch(kernel<vocab_argmax_kernel>, LaunchConfig(dim3(blocks_for(a.N, kThreads)), dim3(kThreads), 0, stream),
           a.best, a.own, a.stats, a.N, int(a.parts));
}

void vocab_softmax_cuda(const VocabSoftmax& a, CudaStream stream) {
    if (a.N == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<vocab_softmax_kernel<T>>, LaunchConfig(dim3(blocks_for(a.N, 1)), dim3(kRowThreads), 0, stream),
               a.stats, static_cast<const T*>(a.logits), a.targets, int(a.V), int(a.first));
    });
}

void vocab_cross_entropy_cuda(const VocabCrossEntropy& a, CudaStream stream) {
    if (a.N == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<vocab_cross_entropy_kernel<T>>,
               LaunchConfig(dim3(blocks_for(a.N, 1)), dim3(kRowThreads), 0, stream), a.loss, static_cast<T*>(a.logits),
               a.stats, a.targets, a.N, int(a.V), int(a.first), int(a.parts), a.grad_scale, a.loss_scale, a.z, a.z_loss,
               a.write_gradient);
    });
}

}  // namespace rz
