#include "kernels/cross_entropy.h"

#include "kernels/checks.h"
#include "kernels/scratch.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/cross_entropy.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

constexpr int64_t kColumns = 1024;      // of a row at a time: maximum, then exponentials, while they are in the cache
constexpr int64_t kMostKept = 1 << 18;  // columns of a row whose exponentials are kept for the gradient: 1 MiB

struct RowSum {
    float max, sum;  // sum of exp(x - max)
    int64_t kept;    // from this column on `e` holds exp(x - max); before it, exponentials of an earlier maximum
};

// e: room for V exponentials, or nullptr
template <bool kKeep, class T>
RowSum softmax_sum(const T* x, int64_t V, float* e) {
    RowSum row{-__builtin_inff(), 0, 0};
    for (int64_t v0 = 0; v0 < V; v0 += kColumns) {
        const int64_t columns = V - v0 < kColumns ? V - v0 : kColumns;
        const T* chunk = x + v0;
        const float max = largest_of(chunk, columns, row.max);
        if (max > row.max) {
            row.sum *= exp(splat(row.max - max))[0];
            row.max = max;
            row.kept = v0;
        }
        Vec sums{};
        for_vectors(columns, [&](int64_t v, auto lanes) RZ_LAMBDA {
            Vec exponential = exp(load(chunk + v, lanes) - max);
            if constexpr (std::is_same_v<decltype(lanes), SomeLanes>)
                for (int64_t i = lanes.count; i < kLanes; ++i) exponential[i] = 0;
            if constexpr (kKeep) store(e + v0 + v, exponential, lanes);
            sums += exponential;
        });
        row.sum += sum_of(sums);
    }
    return row;
}

template <class T>
void cross_entropy_t(const CrossEntropy& a) {
    const float scale = a.loss_scale ? a.grad_scale * *a.loss_scale : a.grad_scale;
#pragma omp parallel for schedule(static) if (a.N * a.V >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        T* x = static_cast<T*>(a.logits) + n * a.V;
        const int32_t target = a.targets[n];
        if (target == kIgnoreTarget) {
            a.loss[n] = 0;
            if (a.z > 0) a.z_loss[n] = 0;
            if (a.write_gradient)
                for (int64_t v = 0; v < a.V; ++v) x[v] = T(0.0f);
            continue;
        }
        const bool keep = a.write_gradient && a.V <= kMostKept;
        float* e = keep ? static_cast<float*>(thread_scratch<3>(4 * a.V)) : nullptr;
        const RowSum row = keep ? softmax_sum<true>(x, a.V, e) : softmax_sum<false>(x, a.V, e);
        const float target_shifted = float(x[target]) - row.max;
        const float log_sum = __builtin_logf(row.sum), lse = log_sum + row.max;
        a.loss[n] = log_sum - target_shifted;
        const float weight = a.z > 0 ? 1.0f + 2 * a.z * lse : 1.0f;  // of the probabilities in the gradient
        if (a.z > 0) a.z_loss[n] = a.z * lse * lse;
        if (!a.write_gradient) continue;
        const int64_t kept = keep ? row.kept : a.V;
        const float factor = scale * weight / row.sum, max = row.max;
        for_vectors(kept, [&](int64_t v, auto lanes)
                              RZ_LAMBDA { store(x + v, exp(load(x + v, lanes) - max) * factor, lanes); });
        for_vectors(a.V - kept, [&](int64_t v, auto lanes)
                                    RZ_LAMBDA { store(x + kept + v, load(e + kept + v, lanes) * factor, lanes); });
        // p - 1 without cancellation only matters where p is near 1, and there fp32's 2^-24 is below the rounding.
        // An infinite loss gives a NaN, so that a finite gradient never hides it; else x - x is 0.
        x[target] =
            T((exp(splat(target_shifted))[0] / row.sum * weight - 1.0f + (target_shifted - target_shifted)) * scale);
    }
}

void cross_entropy(const CrossEntropy& a) {
    with_dtype(a.dtype, [&]<class T>() { cross_entropy_t<T>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void cross_entropy_cpu(const CrossEntropy& a) {
    for (int64_t n = 0; n < a.N; ++n)
        require((a.targets[n] >= 0 && a.targets[n] < a.V) || a.targets[n] == kIgnoreTarget,
                "cross_entropy: target %d of row %ld is outside the vocabulary of %ld (%d is ignored)", a.targets[n], n,
                a.V, kIgnoreTarget);
    RZ_SIMD_CALL(cross_entropy, a);
}

void sum_f32_cpu(const SumF32& a) {
    double sum = 0;
    for (int64_t i = 0; i < a.n; ++i) sum += double(a.x[i]);
    *a.out += sum;
}

void cross_entropy(Stream& stream, const CrossEntropy& a) {
    const char* op = "cross_entropy";
    check_sizes(op, {{"N", a.N, 0}, {"V", a.V, 1}});
    require(a.V <= INT32_MAX, "%s: V is %ld; targets are 32-bit", op, a.V);
    if (a.N == 0) return;
    check_pointers(op, {{"loss", a.loss}, {"logits", a.logits, 16}, {"targets", a.targets}});
    if (a.z > 0) check_pointer(op, "z_loss", a.z_loss, 4);
    stream.run(a, cross_entropy_cpu, RZ_CUDA_OP(cross_entropy_cuda));
}

void sum_f32(Stream& stream, const SumF32& a) {
    check_size("sum_f32", "n", a.n, 0);
    if (a.n == 0) return;
    check_pointers("sum_f32", {{"out", a.out}, {"x", a.x}});
    stream.run(a, sum_f32_cpu, RZ_CUDA_OP(sum_f32_cuda));
}

}  // namespace rz
#endif
