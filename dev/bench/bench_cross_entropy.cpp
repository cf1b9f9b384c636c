// Softmax cross-entropy in place, whole and of one of four parts of the vocabulary (--tp), and the likeliest tokens.
// Unavoidable bytes: the logits once in, the gradient once out. Tokens are compared as words.

#include "kernels/vocab_cross_entropy.h"

#include "dev/bench/bench.h"
#include "kernels/argmax.h"

// One of kParts parts of V columns: three numbers of each row, then loss and gradient from those of all parts.
static void measure_part(rz::bench::Bench& b, int64_t N, int64_t V) {
    using namespace rz;
    constexpr int64_t kParts = 4;
    const DType t = b.dtype();
    const std::vector<int64_t> part{N, V};
    const double logits = double(N * V * size_of(t));
    std::vector<int32_t> targets, own;
    std::vector<float> stats;  // of rows whose largest logit is 6
    for (int64_t n = 0; n < N; ++n) targets.push_back(int32_t(n * 7919 % (kParts * V)));
    for (int64_t i = 0; i < kParts * N; ++i) {
        own.push_back(int32_t(i / N * V + i * 31 % V));
        stats.insert(stats.end(),
                     {6 + float(i % 5) / 8, float(V) / 60, i / N == i % N * 7919 % (kParts * V) / V ? 1.0f : 0.0f});
    }
    b.measure({"vocab_softmax", bench::joined(part), logits}, [&](bench::Memory& m) {
        const VocabSoftmax a{.stats = m.output<float>(N * kVocabStats, DType::f32, "stats"),
                             .logits = m.random(N * V, t, 1, 2),
                             .targets = m.values(targets),
                             .N = N,
                             .V = V,
                             .first = V,
                             .dtype = t};
        return [a](Stream& s) { vocab_softmax(s, a); };
    });
    for (const bool gradient : {true, false})
        b.measure({gradient ? "vocab_cross_entropy" : "vocab_cross_entropy loss", bench::joined(part),
                   gradient ? 2 * logits : double(kParts * N * kVocabStats * 4)},
                  [&](bench::Memory& m) {
                      const VocabCrossEntropy a{.loss = m.output<float>(N, DType::f32, "loss"),
                                                .logits = m.random(N * V, t, 1, 2, "logits"),
                                                .stats = m.values(stats),
                                                .targets = m.values(targets),
                                                .N = N,
                                                .V = V,
                                                .first = V,
                                                .parts = kParts,
                                                .vocab = kParts * V,
                                                .grad_scale = 1,
                                                .write_gradient = gradient,
                                                .dtype = t};
                      return [a](Stream& s) { vocab_cross_entropy(s, a); };
                  });
    b.measure({"vocab_argmax", bench::joined(part), double(kParts * N * (kVocabStats + 1) * 4)}, [&](bench::Memory& m) {
        const VocabArgmax a{.best = m.output<int32_t>(N, DType::f32, "best"),
                            .own = m.values(own),
                            .stats = m.values(stats),
                            .N = N,
                            .parts = kParts};
        return [a](Stream& s) { vocab_argmax(s, a); };
    });
    b.measure({"argmax", bench::joined(part), logits}, [=](bench::Memory& m) {
        const Argmax a{.best = m.output<int32_t>(N, DType::f32, "best"),
                       .logits = m.random(N * V, t, 1, 2),
                       .N = N,
                       .V = V,
                       .dtype = t,
                       .first = V};
        return [a](Stream& s) { argmax(s, a); };
    });
}

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Fused softmax cross-entropy, loss and gradient; of a part of the vocabulary; argmax", "N,V",
                       {"2048x512", "512x32000"}, {"8192x32000", "4096x128256"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t N = shape[0], V = shape[1];
        const DType t = b.dtype();
        std::vector<int32_t> targets;
        for (int64_t n = 0; n < N; ++n) targets.push_back(int32_t(n * 7919 % V));
        for (bool gradient : {true, false})
            b.measure({gradient ? "cross_entropy" : "cross_entropy (loss)", bench::joined(shape),
                       (gradient ? 2 : 1) * double(N * V * size_of(t))},
                      [&](bench::Memory& m) {
                          const CrossEntropy a{.loss = m.output<float>(N, DType::f32, "loss"),
                                               .logits = m.random(N * V, t, 1, 2, "logits"),
                                               .targets = m.values(targets),
                                               .N = N,
                                               .V = V,
                                               .grad_scale = 1,
                                               .write_gradient = gradient,
                                               .dtype = t};
                          return [a](Stream& s) { cross_entropy(s, a); };
                      });
        if (V % 4 == 0) measure_part(b, N, V / 4);
    });
}
