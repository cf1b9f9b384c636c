// RMSNorm of q's and k's heads with RoPE. Unavoidable bytes: forward reads the heads and writes them twice (rotated,
// and as they were); backward reads those and the gradient, and writes the gradient. All heads together are read once
// more, for their sums.

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("RMSNorm of the query and key heads with RoPE", "B,T,H,K,D",
                       {"8x256x8x4x32", "4x128x8x8x64", "1x2048x16x8x128"}, {"8x1024x16x8x128", "2x4096x32x8x128"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4];
        const ops::QkNormCase c{B * T, T, H, K, D, K * D, b.dtype()};
        b.measure({"qk_norm_forward"}, qk_norm_forward, [=](bench::Memory& m) { return c.forward(m); });
        b.measure({"qk_sums"}, qk_sums, [=](bench::Memory& m) { return c.sums(m); });
        b.measure({"qk_norm_backward"}, qk_norm_backward, [=](bench::Memory& m) { return c.backward(m); });
    });
}
