// Embedding. Unavoidable bytes: forward reads and writes N rows; backward reads N rows, and reads and writes the fp32
// gradient of each distinct token's row. Tokens are drawn from a 1/rank distribution, as in text.

#include "kernels/embedding.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Token embedding forward and backward", "N,C,V",
                       {"2048x256x512", "512x512x32000", "4096x2048x32000"}, {"8192x2048x32000", "8192x4096x128256"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t N = shape[0], C = shape[1], V = shape[2];
        const DType t = b.dtype();
        std::vector<float> normals(static_cast<size_t>(N));
        random_normal_cpu({.x = normals.data(), .n = N, .seed = 9, .stream = 0, .std = 1, .dtype = DType::f32});
        std::vector<int32_t> tokens, rows(normals.size()), starts(normals.size() + 1), ids(normals.size());
        for (float z : normals)
            tokens.push_back(int32_t(std::min(
                double(V - 1), std::exp(0.5 * std::erfc(-double(z) / std::sqrt(2)) * std::log(double(V))) - 1)));
        const int64_t distinct = embedding_plan(tokens.data(), N, V, rows.data(), starts.data(), ids.data());
        const double row = double(C * size_of(t));
        b.measure({"embedding_forward", bench::joined(shape), 2 * double(N) * row}, [&](bench::Memory& m) {
            const EmbeddingForward a{.x = m.output(N * C, t, "x"),
                                     .table = m.random(V * C, t, 1),
                                     .tokens = m.values(tokens),
                                     .N = N,
                                     .C = C,
                                     .V = V,
                                     .dtype = t};
            return [a](Stream& s) { embedding_forward(s, a); };
        });
        b.measure({"embedding_backward", bench::joined(shape), double(N) * row + 8.0 * double(distinct * C)},
                  [&](bench::Memory& m) {
                      const EmbeddingBackward a{.dtable = m.random(V * C, DType::f32, 1, 1, "dtable"),
                                                .dx = m.random(N * C, t, 2),
                                                .rows = m.values(rows),
                                                .starts = m.values(starts),
                                                .ids = m.values(ids),
                                                .distinct = distinct,
                                                .N = N,
                                                .C = C,
                                                .V = V,
                                                .dtype = t,
                                                .grad_dtype = DType::f32};
                      return [a](Stream& s) { embedding_backward(s, a); };
                  });
    });
}
