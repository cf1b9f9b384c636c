#include "kernels/vocab_cross_entropy.h"

#include "kernels/checks.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/vocab_cross_entropy.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

template <class T>
void vocab_softmax_t(const VocabSoftmax& a) {
#pragma omp parallel for schedule(static) if (a.N * a.V >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        const T* x = static_cast<const T*>(a.logits) + n * a.V;
        float* stats = a.stats + n * kVocabStats;
        const int64_t target = int64_t(a.targets[n]) - a.first;
        stats[2] = target >= 0 && target < a.V ? float(x[target]) : 0.0f;  // kIgnoreTarget is below every first
        const float max = largest_of(x, a.V, -__builtin_inff());
        // All masked: they add nothing, and exp(-inf + inf) would be no number.
        const float from = max == -__builtin_inff() ? 0.0f : max;
        Vec sums{};
        for_vectors(a.V, [&](int64_t v, auto lanes) RZ_LAMBDA {
            Vec e = exp(load(x + v, lanes) - from);
            if constexpr (std::is_same_v<decltype(lanes), SomeLanes>)
                for (int64_t i = lanes.count; i < kLanes; ++i) e[i] = 0;
            sums += e;
        });
        stats[0] = max;
        stats[1] = sum_of(sums);
    }
}

struct Row {
    float max, sum, target;
};

// The parts' numbers of a row, added in ascending order.
inline Row whole_row(const VocabCrossEntropy& a, int64_t n) {
    Row row{-__builtin_inff(), 0, 0};
    for (int64_t p = 0; p < a.parts; ++p) {
        const float max = a.stats[(p * a.N + n) * kVocabStats];
        row.max = max > row.max ? max : row.max;
    }
    for (int64_t p = 0; p < a.parts; ++p) {
        const float* stats = a.stats + (p * a.N + n) * kVocabStats;
        row.sum += stats[1] == 0 ? 0.0f : stats[1] * exp(splat(stats[0] - row.max))[0];
        row.target += stats[2];
    }
    return row;
}

template <class T>
void vocab_cross_entropy_t(const VocabCrossEntropy& a) {
    const float scale = a.loss_scale ? a.grad_scale * *a.loss_scale : a.grad_scale;
#pragma omp parallel for schedule(static) if (a.N * a.V >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        T* x = static_cast<T*>(a.logits) + n * a.V;
        if (a.targets[n] == kIgnoreTarget) {
            a.loss[n] = 0;
            if (a.z > 0) a.z_loss[n] = 0;
            if (a.write_gradient)
                for (int64_t v = 0; v < a.V; ++v) x[v] = T(0.0f);
            continue;
        }
        const Row row = whole_row(a, n);
        const float target_shifted = row.target - row.max;
        const float log_sum = __builtin_logf(row.sum), lse = log_sum + row.max;
        a.loss[n] = log_sum - target_shifted;
        const float weight = a.z > 0 ? 1.0f + 2 * a.z * lse : 1.0f;
        if (a.z > 0) a.z_loss[n] = a.z * lse * lse;
        if (!a.write_gradient) continue;
        const float factor = scale * weight / row.sum, max = row.max;
        for_vectors(
            a.V, [&](int64_t v, auto lanes) RZ_LAMBDA { store(x + v, exp(load(x + v, lanes) - max) * factor, lanes); });
        const int64_t target = int64_t(a.targets[n]) - a.first;
        if (target < 0 || target >= a.V) continue;
        // As in cross_entropy: an infinite loss gives a NaN, so that a finite gradient never hides it.
        x[target] =
            T((exp(splat(target_shifted))[0] / row.sum * weight - 1.0f + (target_shifted - target_shifted)) * scale);
    }
}

void vocab_softmax(const VocabSoftmax& a) {
    with_dtype(a.dtype, [&]<class T>() { vocab_softmax_t<T>(a); });
}

void vocab_cross_entropy(const VocabCrossEntropy& a) {
    with_dtype(a.dtype, [&]<class T>() { vocab_cross_entropy_t<T>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void vocab_softmax_cpu(const VocabSoftmax& a) { RZ_SIMD_CALL(vocab_softmax, a); }

void vocab_cross_entropy_cpu(const VocabCrossEntropy& a) {
    for (int64_t n = 0; n < a.N; ++n)
        require((a.targets[n] >= 0 && a.targets[n] < a.vocab) || a.targets[n] == kIgnoreTarget,
                "vocab_cross_entropy: target %d of row %ld is outside the vocabulary of %ld (%d is ignored)",
                a.targets[n], n, a.vocab, kIgnoreTarget);
    RZ_SIMD_CALL(vocab_cross_entropy, a);
}

void vocab_argmax_cpu(const VocabArgmax& a) {
    for (int64_t n = 0; n < a.N; ++n) {
        int64_t best = 0;
        for (int64_t p = 1; p < a.parts; ++p)
            if (a.stats[(p * a.N + n) * kVocabStats] > a.stats[(best * a.N + n) * kVocabStats]) best = p;
        a.best[n] = a.own[best * a.N + n];
    }
}

static void check_columns(const char* op, int64_t N, int64_t V, int64_t first) {
    check_sizes(op, {{"N", N, 0}, {"V", V, 1}, {"first", first, 0}});
    require(first <= INT32_MAX - V, "%s: columns %ld to %ld; targets are 32-bit", op, first, first + V);
}

void vocab_softmax(Stream& stream, const VocabSoftmax& a) {
    const char* op = "vocab_softmax";
    check_columns(op, a.N, a.V, a.first);
    if (a.N == 0) return;
    check_pointers(op, {{"stats", a.stats}, {"logits", a.logits, 16}, {"targets", a.targets}});
    stream.run(a, vocab_softmax_cpu, RZ_CUDA_OP(vocab_softmax_cuda));
}

void vocab_argmax(Stream& stream, const VocabArgmax& a) {
    const char* op = "vocab_argmax";
    check_sizes(op, {{"N", a.N, 0}, {"parts", a.parts, 1}});
    if (a.N == 0) return;
    check_pointers(op, {{"best", a.best}, {"own", a.own}, {"stats", a.stats}});
    stream.run(a, vocab_argmax_cpu, RZ_CUDA_OP(vocab_argmax_cuda));
}

void vocab_cross_entropy(Stream& stream, const VocabCrossEntropy& a) {
    const char* op = "vocab_cross_entropy";
    check_columns(op, a.N, a.V, a.first);
    check_size(op, "parts", a.parts, 1);
    require(a.vocab >= a.first + a.V && a.vocab <= INT32_MAX, "%s: columns %ld to %ld of a vocabulary of %ld", op,
            a.first, a.first + a.V, a.vocab);
    if (a.N == 0) return;
    check_pointers(op, {{"loss", a.loss}, {"logits", a.logits, 16}, {"stats", a.stats}, {"targets", a.targets}});
    if (a.z > 0) check_pointer(op, "z_loss", a.z_loss, 4);
    stream.run(a, vocab_cross_entropy_cpu, RZ_CUDA_OP(vocab_cross_entropy_cuda));
}

}  // namespace rz
#endif
