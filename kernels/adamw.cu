#include <cmath>

#include "kernels/adamw.h"
#include "kernels/device_math.cuh"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kRounds = 4;  // vectors per thread: a block covers kThreads * kVec * kRounds neighbouring elements

struct Coefficients {
    float lr, beta1, beta2, eps, decay;
    float m_correction, v_correction;  // 1 / (1 - beta^step)
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

// param may be master itself, so nothing here is __restrict__.
template <class P, class G, int kVec>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(P* param, float* master, float* m, float* v, const G* grad, const float* grad_scale, int64_t n,
                 const int64_t* segment_end, const uint8_t* decays, int64_t segments, int64_t first, Coefficients k) {
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
        store(m + i, m1);
        store(v + i, v1);
        store(master + i, w);
        if (static_cast<const void*>(param) != static_cast<const void*>(master)) store(param + i, w);
    }
}

template <class P, class G, int kVec>
void launch_adamw(const AdamW& a, const Coefficients& k, int64_t n, int64_t done, CudaStream stream) {
    launch(adamw_kernel<P, G, kVec>,
           LaunchConfig(dim3(blocks_for(n, kThreads * kVec * kRounds)), dim3(kThreads), 0, stream),
           static_cast<P*>(a.param) + done, a.master + done, a.m + done, a.v + done,
           static_cast<const G*>(a.grad) + done, a.grad_scale, n, a.segment_end, a.decays, a.segments, a.first + done,
           k);
}

}  // namespace

void adamw_cuda(const AdamW& a, CudaStream stream) {
    if (a.n == 0) return;
    Coefficients k{a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, 0, 0};
    k.m_correction = float(1.0 / (1.0 - std::pow(double(a.beta1), double(a.step))));
    k.v_correction = float(1.0 / (1.0 - std::pow(double(a.beta2), double(a.step))));
    with_device_type(a.param_dtype, [&]<class P>() {
        with_device_type(a.grad_dtype, [&]<class G>() {
            const bool wide = aligned_to(16, a.master, a.m, a.v) && aligned_to(4 * sizeof(P), a.param) &&
                              aligned_to(4 * sizeof(G), a.grad);
            const int64_t vectorised = wide ? a.n / 4 * 4 : 0;
            if (vectorised > 0) launch_adamw<P, G, 4>(a, k, vectorised, 0, stream);
            if (vectorised < a.n) launch_adamw<P, G, 1>(a, k, a.n - vectorised, vectorised, stream);
        });
    });
}

}  // namespace rz
