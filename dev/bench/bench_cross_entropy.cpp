// Softmax cross-entropy in place. Unavoidable bytes: the logits once in, the gradient once out.

#include "kernels/cross_entropy.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Fused softmax cross-entropy, loss and gradient", "N,V", {"2048x512", "512x32000"},
                       {"8192x32000", "4096x128256"});
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
    });
}
