// Embedding. Unavoidable bytes: forward reads and writes N rows; backward reads N rows, and reads and writes the fp32
// gradient of each distinct token's row. Tokens are drawn from a 1/rank distribution, as in text.

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Token embedding forward and backward", "N,C,V",
                       {"2048x256x512", "512x512x32000", "4096x2048x32000"}, {"8192x2048x32000", "8192x4096x128256"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t N = shape[0], C = shape[1], V = shape[2];
        std::vector<float> normals(static_cast<size_t>(N));
        random_normal_cpu({.x = normals.data(), .n = N, .seed = 9, .stream = 0, .std = 1, .dtype = DType::f32});
        std::vector<int32_t> tokens;
        for (float z : normals)
            tokens.push_back(int32_t(std::min(
                double(V - 1), std::exp(0.5 * std::erfc(-double(z) / std::sqrt(2)) * std::log(double(V))) - 1)));
        const ops::EmbeddingCase c{N, C, V, tokens, b.dtype()};
        b.measure({"embedding_forward"}, embedding_forward, [=](bench::Memory& m) { return c.forward(m); });
        b.measure({"embedding_backward"}, embedding_backward, [=](bench::Memory& m) { return c.backward(m); });
    });
}
