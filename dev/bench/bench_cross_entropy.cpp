// Softmax cross-entropy in place, whole and of one of four parts of the vocabulary (--tp), and the likeliest tokens.
// Unavoidable bytes: the logits once in, the gradient once out. Tokens are compared as words.

#include "dev/bench/bench.h"
#include "kernels/argmax.h"

// The second of kParts parts of V columns: three numbers of each row, then loss and gradient from those of all parts.
static void measure_part(rz::bench::Bench& b, int64_t N, int64_t V) {
    using namespace rz;
    constexpr int64_t kParts = 4;
    const std::string part = bench::joined({N, V});
    ops::LogitsCase c{N, V, {}, b.dtype(), 1, /*first=*/V, kParts * V};
    std::vector<int32_t> own;
    std::vector<float> stats;  // of rows whose largest logit is 6
    for (int64_t n = 0; n < N; ++n) c.targets.push_back(int32_t(n * 7919 % (kParts * V)));
    for (int64_t i = 0; i < kParts * N; ++i) {
        own.push_back(int32_t(i / N * V + i * 31 % V));
        stats.insert(stats.end(),
                     {6 + float(i % 5) / 8, float(V) / 60, i / N == i % N * 7919 % (kParts * V) / V ? 1.0f : 0.0f});
    }
    b.measure({"vocab_softmax", part}, vocab_softmax, [=](bench::Memory& m) { return c.softmax_of_part(m); });
    b.measure({"vocab_cross_entropy", part}, vocab_cross_entropy,
              [=](bench::Memory& m) { return c.loss_of_part(m, /*gradient=*/true, stats); });
    b.measure({"vocab_cross_entropy loss", part, double(kParts * N * kVocabStats * 4)}, vocab_cross_entropy,
              [=](bench::Memory& m) { return c.loss_of_part(m, /*gradient=*/false, stats); });
    b.measure({"vocab_argmax", part}, vocab_argmax, [=](bench::Memory& m) {
        return VocabArgmax{.best = m.out({"best", ops::kExact}, N, DType::f32),
                           .own = m.values(own),
                           .stats = m.values(stats),
                           .N = N,
                           .parts = kParts};
    });
    b.measure({"argmax", part}, argmax, [=](bench::Memory& m) {
        return Argmax{.best = m.out({"best", ops::kExact}, N, DType::f32),
                      .logits = m.in(N * V, c.dtype, 1, 2),
                      .N = N,
                      .V = V,
                      .dtype = c.dtype,
                      .first = V};
    });
}

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Fused softmax cross-entropy, loss and gradient; of a part of the vocabulary; argmax", "N,V",
                       {"2048x512", "512x32000"}, {"8192x32000", "4096x128256"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        ops::LogitsCase c{shape[0], shape[1], {}, b.dtype()};
        for (int64_t n = 0; n < c.N; ++n) c.targets.push_back(int32_t(n * 7919 % c.V));
        b.measure({"cross_entropy"}, cross_entropy, [=](bench::Memory& m) { return c.loss(m, /*gradient=*/true); });
        b.measure({"cross_entropy (loss)"}, cross_entropy,
                  [=](bench::Memory& m) { return c.loss(m, /*gradient=*/false); });
        if (c.V % 4 == 0) measure_part(b, c.N, c.V / 4);
    });
}
