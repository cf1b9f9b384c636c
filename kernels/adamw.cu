#include <cmath>

#include "kernels/adamw.h"
#include "kernels/device_math.cuh"
#include "kernels/stochastic_rounding.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kRounds = 4;  // vectors per thread: a block covers kThreads * kVec * kRounds neighbouring elements

struct Coefficients {
    float lr, beta1, beta2, eps, decay;
    float m_correction, v_correction;  // 1 / (1 - beta^step)
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

// w is updated by its gradient g; m and v with it.
__device__ __forceinline__ void update(const Coefficients& k, float g, float decay, float& w, float& m, float& v) {
    m = k.beta1 * m + (1.0f - k.beta1) * g;
    v = k.beta2 * v + (1.0f - k.beta2) * g * g;
    w -= k.lr * (m * k.m_correction / (sqrtf(v * k.v_correction) + k.eps) + decay * w);
}

// The words of kVec elements from a logical offset: a whole group, or one of its elements
template <int kVec>
__device__ __forceinline__ void random_words(uint32_t (&out)[kVec], uint64_t seed, int64_t offset, uint64_t stream) {
    const PhiloxWords words = philox4x32(seed, uint64_t(offset) / 4, stream);
    if constexpr (kVec == 4) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[e] = words.w[e];
    } else {
        static_assert(kVec == 1);
        const int e = int(offset % 4);
        out[0] = e == 0 ? words.w[0] : e == 1 ? words.w[1] : e == 2 ? words.w[2] : words.w[3];
    }
}

template <int kVec>
__device__ __forceinline__ void store_by_chance(__nv_bfloat16* p, const float (&x)[kVec], const uint32_t (&words)[kVec],
                                                int shift) {
    uint16_t bits[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) bits[e] = stochastic_bf16(x[e], words[e] >> shift);
    Pack<__nv_bfloat16, kVec> pack;
    memcpy(pack.words, bits, sizeof bits);
    pack.store(p);
}

// param may be master itself, so nothing here is __restrict__. M and A, of the master and of the moments: float, or
// __nv_bfloat16 with stochastic rounding, in which case vectors lie at multiples of kVec of the logical offset.
template <class P, class M, class A, class G, int kVec>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(P* param, M* master, A* m, A* v, const G* grad, const float* grad_scale, int64_t n,
                 const int64_t* segment_end, const uint8_t* decays, int64_t segments, int64_t first, Coefficients k,
                 Rounding rounding) {
    const float scale = *grad_scale;
    if (!is_finite(scale)) return;
    const int64_t begin = int64_t(blockIdx.x) * (kThreads * kVec * kRounds);
    int64_t segment = find_segment(segment_end, segments, first + begin);  // the same for the whole block
    int64_t end = segment_end[segment];
    float decay = decays[segment] ? k.decay : 0.0f;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
        const int64_t i = begin + (round * kThreads + int(threadIdx.x)) * kVec;
        if (i >= n) return;
        float g[kVec], w[kVec], m1[kVec], v1[kVec];
        load(g, grad + i);
        load(w, master + i);
        load(m1, m + i);
        load(v1, v + i);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
            while (first + i + e >= end && segment < segments - 1) {
                end = segment_end[++segment];
                decay = decays[segment] ? k.decay : 0.0f;
            }
            update(k, g[e] * scale, decay, w[e], m1[e], v1[e]);
        }
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
    launch(adamw_kernel<P, M, A, G, kVec>,
           LaunchConfig(dim3(blocks_for(n, kThreads * kVec * kRounds)), dim3(kThreads), 0, stream),
           static_cast<P*>(a.param) + done, static_cast<M*>(a.master) + done, static_cast<A*>(a.m) + done,
           static_cast<A*>(a.v) + done, static_cast<const G*>(a.grad) + done, a.grad_scale, n, a.segment_end, a.decays,
           a.segments, a.first + done, k, Rounding{a.seed, moment_stream(a.step), master_stream(a.step)});
}

template <class P, class M, class A>
void launch_types(const AdamW& a, const Coefficients& k, CudaStream stream) {
    constexpr bool kRounds = sizeof(M) + sizeof(A) < 8;
    with_device_type(a.grad_dtype, [&]<class G>() {
        const bool wide = aligned_to(4 * sizeof(M), a.master) && aligned_to(4 * sizeof(A), a.m, a.v) &&
                          aligned_to(4 * sizeof(P), a.param) && aligned_to(4 * sizeof(G), a.grad) &&
                          (!kRounds || a.first % 4 == 0);
        const int64_t vectorised = wide ? a.n / 4 * 4 : 0;
        if (vectorised > 0) launch_adamw<P, M, A, G, 4>(a, k, vectorised, 0, stream);
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
    Coefficients k{a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, 0, 0};
    k.m_correction = float(1.0 / (1.0 - std::pow(double(a.beta1), double(a.step))));
    k.v_correction = float(1.0 / (1.0 - std::pow(double(a.beta2), double(a.step))));
    if (a.master_dtype == DType::bf16)
        launch_adam_dtype<__nv_bfloat16, __nv_bfloat16>(a, k, stream);
    else
        with_device_type(a.param_dtype, [&]<class P>() { launch_adam_dtype<P, float>(a, k, stream); });
}

}  // namespace rz
