#include "kernels/adamw.h"

#include <cmath>

#include "kernels/bias_correction.h"
#include "kernels/checks.h"
#include "kernels/stochastic_rounding.h"

#define RZ_SIMD_FILE "kernels/adamw.cpp"
#include "kernels/cpu/simd.h"

#ifndef RZ_ADAMW_STEP
#define RZ_ADAMW_STEP
namespace rz {
// Factors of a step, worked out once in double.
struct AdamWFactors {
    float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
    float lr_m;          // lr / (1 - beta1^t)
    float sqrt_v_scale;  // 1 / sqrt(1 - beta2^t)
    float eps, lr_decay;
};
}  // namespace rz
#endif

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"
#include "kernels/cpu/simd_chance.h"

// Elements [begin, end), at most kBlock of them, which all decay or all don't.
template <class T, class M, class A, class G>
void update_run(const AdamW& a, const AdamWFactors& f, bool decays, int64_t begin, int64_t end) {
    constexpr bool kRoundMoments = !std::is_same_v<A, float>, kRoundMaster = !std::is_same_v<M, float>;
    M* w = static_cast<M*>(a.master);
    A* m = static_cast<A*>(a.m);
    A* v = static_cast<A*>(a.v);
    Chance moments, master;
    if constexpr (kRoundMoments) moments.fill(a.seed, a.first + begin, end - begin, moment_stream(a.step));
    if constexpr (kRoundMaster) master.fill(a.seed, a.first + begin, end - begin, master_stream(a.step));
    const G* grad = static_cast<const G*>(a.grad);
    T* param = static_cast<T*>(a.param);
    const bool write_param = a.param != a.master;
    const float keep = decays ? 1.0f - f.lr_decay : 1.0f;
    const auto update = [&](int64_t i, auto lanes) RZ_LAMBDA {
        const VecBits moment_chance = kRoundMoments ? moments.at(i - begin) : VecBits{};
        const VecBits master_chance = kRoundMaster ? master.at(i - begin) : VecBits{};
        // All is read before anything is written: the buffers lie at the same place of a page, and a CPU that compares
        // addresses by that alone lets a read wait for the writes before it.
        const Vec w_old = load(w + i, lanes), g = load(grad + i, lanes) * f.grad_scale;
        const Vec m_new = f.beta1 * load(m + i, lanes) + f.one_minus_beta1 * g;
        const Vec v_new = f.beta2 * load(v + i, lanes) + f.one_minus_beta2 * g * g;
        store_by_chance(m + i, m_new, moment_chance, lanes);
        store_by_chance(v + i, v_new, moment_chance >> 16, lanes);
        Vec root;
        for (int64_t j = 0; j < kLanes; ++j) root[j] = __builtin_sqrtf(v_new[j]);
        const Vec w_new = keep * w_old - f.lr_m * m_new / (root * f.sqrt_v_scale + f.eps);
        store_by_chance(w + i, w_new, master_chance, lanes);
        if (write_param) store(param + i, w_new, lanes);
    };
    for_vectors(end - begin, [&](int64_t i, auto lanes) RZ_LAMBDA { update(begin + i, lanes); });
}

template <class T, class M, class A, class G>
void adamw_t(const AdamW& a, const AdamWFactors& f) {
    constexpr int64_t kChunk = 32768;
    const int64_t chunks = ceil_div(a.n, kChunk);
#pragma omp parallel for schedule(static) if (a.n >= kSerialBelow)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        int64_t i = chunk * kChunk;
        const int64_t end = a.n - i < kChunk ? a.n : i + kChunk;
        int64_t low = 0, high = a.segments - 1;  // the segment of element i: the first that ends after it
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (a.segment_end[middle] > a.first + i)
                high = middle;
            else
                low = middle + 1;
        }
        for (int64_t s = low; i < end; ++s) {
            const int64_t segment_end = s < a.segments ? a.segment_end[s] - a.first : end;
            const int64_t stop = segment_end < end ? segment_end : end;
            const bool decays = s < a.segments && a.decays[s];
            constexpr bool kRounds = sizeof(M) + sizeof(A) < 8;
            for (; i < stop; i = !kRounds || stop - i < kBlock ? stop : i + kBlock)
                update_run<T, M, A, G>(a, f, decays, i, !kRounds || stop - i < kBlock ? stop : i + kBlock);
        }
    }
}

template <class T, class M>
void adamw_m(const AdamW& a, const AdamWFactors& f) {
    with_dtype(a.grad_dtype, [&]<class G>() {
        if (a.adam_dtype == DType::bf16)
            adamw_t<T, M, bf16, G>(a, f);
        else
            adamw_t<T, M, float, G>(a, f);
    });
}

void adamw(const AdamW& a, const AdamWFactors& f) {
    if (a.master_dtype == DType::bf16)
        adamw_m<bf16, bf16>(a, f);
    else
        with_dtype(a.param_dtype, [&]<class T>() { adamw_m<T, float>(a, f); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void adamw_cpu(const AdamW& a) {
    if (!std::isfinite(*a.grad_scale)) return;
    AdamWFactors f;
    f.grad_scale = *a.grad_scale;
    f.beta1 = a.beta1;
    f.one_minus_beta1 = float(1.0 - double(a.beta1));
    f.beta2 = a.beta2;
    f.one_minus_beta2 = float(1.0 - double(a.beta2));
    f.lr_m = float(double(a.lr) * (a.correction ? a.correction[0] : m_correction(double(a.beta1), a.step)));
    f.sqrt_v_scale = float(a.correction ? a.correction[1] : v_correction(double(a.beta2), a.step));
    f.eps = a.eps;
    f.lr_decay = float(double(a.lr) * double(a.weight_decay));
    RZ_SIMD_CALL(adamw, a, f);
}

void adamw(Stream& stream, const AdamW& a) {
    const char* op = "adamw";
    check_sizes(
        op, {{"n", a.n, 0}, {"step (1 is the first)", a.step, 1}, {"segments", a.segments, 1}, {"first", a.first, 0}});
    require(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1,
            "%s: beta1 %g and beta2 %g; both must be in [0, 1) (0.9 and 0.95 are usual)", op, double(a.beta1),
            double(a.beta2));
    require(a.eps > 0, "%s: eps is %g; it must be positive, or an element that never had a gradient divides by zero",
            op, double(a.eps));
    if (a.n == 0) return;
    check_pointers(op, {{"param", a.param, size_of(a.param_dtype)},
                        {"master", a.master, size_of(a.master_dtype)},
                        {"m", a.m, size_of(a.adam_dtype)},
                        {"v", a.v, size_of(a.adam_dtype)},
                        {"grad", a.grad, size_of(a.grad_dtype)},
                        {"grad_scale", a.grad_scale},
                        {"segment_end", a.segment_end},
                        {"decays", a.decays}});
    if (a.correction) check_pointer(op, "correction", a.correction, 8);
    require(a.master_dtype != DType::f16 && a.adam_dtype != DType::f16,
            "%s: masters are %s, moments %s; they may be fp32 or bf16", op, name_of(a.master_dtype),
            name_of(a.adam_dtype));
    require(a.param != a.master || a.param_dtype == a.master_dtype,
            "%s: param is the master itself, but one is %s and the other %s", op, name_of(a.param_dtype),
            name_of(a.master_dtype));
    require(a.master_dtype == DType::f32 || a.param == a.master,
            "%s: bf16 masters beside %s parameters; a bf16 master is the bf16 parameter itself", op,
            name_of(a.param_dtype));
    stream.run(a, adamw_cpu, RZ_CUDA_OP(adamw_cuda));
}

}  // namespace rz
#endif
