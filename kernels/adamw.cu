#include <algorithm>
#include <limits>

#include "kernels/adamw.h"
#include "kernels/bias_correction.h"
#include "kernels/chance.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/stochastic_rounding.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

struct Coefficients {
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float lr_m;          // lr / (1 - beta1^t)
    float sqrt_v_scale;  // 1 / sqrt(1 - beta2^t)
    float eps, lr_decay, lr;
};

struct Rounding {
    uint64_t seed, moments, master;  // Philox's key and streams
};

// First segment that ends after `offset`
__device__ __forceinline__ int64_t find_segment(const int64_t* ends, int64_t segments, int64_t offset) {
    int64_t low = 0, high = segments - 1;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (ends[middle] > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// w is updated by its gradient g; m and v with it. The root and the reciprocal are within a unit or two in the last
// place: the exact ones are dozens of instructions, and a step with 16-bit state would wait for them, not for memory.
__device__ __forceinline__ void update(const Coefficients& k, float g, float lr_decay, float& w, float& m, float& v) {
    m = k.beta1 * m + k.one_minus_beta1 * g;
    v = k.beta2 * v + k.one_minus_beta2 * g * g;
    const float ratio = m * ptx::rcp(ptx::sqrt(v) * k.sqrt_v_scale + k.eps);
    w -= k.lr_m * ratio + lr_decay * w;
}

// lr * decay of kVec elements from logical offset `at`, or 0 in segments without
template <int kVec>
__device__ __forceinline__ void decays_from(float (&out)[kVec], int64_t at, const int64_t* segment_end,
                                            const uint8_t* decays, int64_t segments, int64_t& segment, int64_t& end,
                                            float& now, float lr_decay) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) out[e] = now;
    if (at + kVec <= end) return;
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
        while (at + e >= end && segment < segments - 1) {
            end = segment_end[++segment];
            now = decays[segment] ? lr_decay : 0.0f;
        }
        out[e] = now;
    }
}

// Vectors per thread: a block covers kThreads * kVec * kRounds neighbouring elements
template <int kVec>
constexpr int kRounds = kVec == 1 ? 2 : 8 / kVec;

// param may be master itself, so nothing here is __restrict__, and everything is fetched before anything is stored. M
// and A, of the master and of the moments: float, or __nv_bfloat16 with stochastic rounding, in which case vectors lie
// at multiples of 4 of the logical offset.
template <class P, class M, class A, class G, int kVec>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(P* param, M* master, A* m, A* v, const G* grad, const float* grad_scale, int64_t n,
                 const int64_t* segment_end, const uint8_t* decays, int64_t segments, int64_t first, Coefficients k,
                 const double* correction, Rounding rounding) {
    constexpr int kStep = kThreads * kVec;
    const int64_t block = int64_t(blockIdx.x) * (kStep * kRounds<kVec>), begin = block + int(threadIdx.x) * kVec;
    Pack<G, kVec> grads[kRounds<kVec>];
    Pack<M, kVec> masters[kRounds<kVec>];
    Pack<A, kVec> ms[kRounds<kVec>], vs[kRounds<kVec>];
#pragma unroll
    for (int r = 0; r < kRounds<kVec>; ++r) {
        const int64_t i = begin + r * kStep;
        if (i >= n) break;
        grads[r].load(grad + i);
        masters[r].load(master + i);
        ms[r].load(m + i);
        vs[r].load(v + i);
    }
    const float scale = *grad_scale;
    if (!is_finite(scale)) return;
    if (correction) k.lr_m = float(double(k.lr) * correction[0]), k.sqrt_v_scale = float(correction[1]);
    int64_t segment = find_segment(segment_end, segments, first + block);  // the same for the whole block
    int64_t end = segment_end[segment];
    float decay = decays[segment] ? k.lr_decay : 0.0f;
#pragma unroll
    for (int r = 0; r < kRounds<kVec>; ++r) {
        const int64_t i = begin + r * kStep;
        if (i >= n) return;
        float g[kVec], w[kVec], m1[kVec], v1[kVec], lr_decay[kVec];
        grads[r].to(g);
        masters[r].to(w);
        ms[r].to(m1);
        vs[r].to(v1);
        decays_from(lr_decay, first + i, segment_end, decays, segments, segment, end, decay, k.lr_decay);
#pragma unroll
        for (int e = 0; e < kVec; ++e) update(k, g[e] * scale, lr_decay[e], w[e], m1[e], v1[e]);
        if constexpr (std::is_same_v<A, float>) {
            store(m + i, m1);
            store(v + i, v1);
        } else {
            uint32_t words[kVec];
            random_words(words, rounding.seed, first + i, rounding.moments);
            store_by_chance(m + i, m1, words, 0);
            store_by_chance(v + i, v1, words, 16);
        }
        if constexpr (std::is_same_v<M, float>) {
            store(master + i, w);
            if (static_cast<const void*>(param) != static_cast<const void*>(master)) store(param + i, w);
        } else {
            uint32_t words[kVec];
            random_words(words, rounding.seed, first + i, rounding.master);
            store_by_chance(master + i, w, words, 0);
        }
    }
}

template <class P, class M, class A, class G, int kVec>
void launch_adamw(const AdamW& a, const Coefficients& k, int64_t n, int64_t done, CudaStream stream) {
    launch(kernel<adamw_kernel<P, M, A, G, kVec>>,
           LaunchConfig(dim3(blocks_for(n, kThreads * kVec * kRounds<kVec>)), dim3(kThreads), 0, stream),
           static_cast<P*>(a.param) + done, static_cast<M*>(a.master) + done, static_cast<A*>(a.m) + done,
           static_cast<A*>(a.v) + done, static_cast<const G*>(a.grad) + done, a.grad_scale, n, a.segment_end, a.decays,
           a.segments, a.first + done, k, a.correction, Rounding{a.seed, moment_stream(a.step), master_stream(a.step)});
}

template <class P, class M, class A>
void launch_types(const AdamW& a, const Coefficients& k, CudaStream stream) {
    constexpr bool kByChance = sizeof(M) + sizeof(A) < 8;
    with_device_type(a.grad_dtype, [&]<class G>() {
        // 16 bytes of the widest type: where types differ, a warp's accesses still cover whole sectors of every array
        constexpr size_t kWidest = std::max({sizeof(P), sizeof(M), sizeof(A), sizeof(G)});
        constexpr int kVec = int(16 / kWidest);
        const bool wide = aligned_to(kVec * sizeof(M), a.master) && aligned_to(kVec * sizeof(A), a.m, a.v) &&
                          aligned_to(kVec * sizeof(P), a.param) && aligned_to(kVec * sizeof(G), a.grad) &&
                          (!kByChance || a.first % 4 == 0);
        const int64_t vectorised = wide ? a.n / kVec * kVec : 0;
        if (vectorised > 0) launch_adamw<P, M, A, G, kVec>(a, k, vectorised, 0, stream);
        if (vectorised < a.n) launch_adamw<P, M, A, G, 1>(a, k, a.n - vectorised, vectorised, stream);
    });
}

template <class P, class M>
void launch_adam_dtype(const AdamW& a, const Coefficients& k, CudaStream stream) {
    if (a.adam_dtype == DType::bf16)
        launch_types<P, M, __nv_bfloat16>(a, k, stream);
    else
        launch_types<P, M, float>(a, k, stream);
}

}  // namespace

void adamw_cuda(const AdamW& a, CudaStream stream) {
    if (a.n == 0) return;
    Coefficients k;
    k.beta1 = a.beta1, k.one_minus_beta1 = float(1.0 - double(a.beta1));
    k.beta2 = a.beta2, k.one_minus_beta2 = float(1.0 - double(a.beta2));
    k.lr_m = float(double(a.lr) * m_correction(double(a.beta1), a.step));
    k.sqrt_v_scale = float(v_correction(double(a.beta2), a.step));
    k.eps = std::max(a.eps, std::numeric_limits<float>::min());  // ptx::rcp takes subnormal numbers for zero
    k.lr_decay = float(double(a.lr) * double(a.weight_decay));
    k.lr = a.lr;
    if (a.master_dtype == DType::bf16)
        launch_adam_dtype<__nv_bfloat16, __nv_bfloat16>(a, k, stream);
    else
        with_device_type(a.param_dtype, [&]<class P>() { launch_adam_dtype<P, float>(a, k, stream); });
}

}  // namespace rz
