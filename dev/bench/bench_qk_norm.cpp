// RMSNorm of q's and k's heads with RoPE. Unavoidable bytes: forward reads the heads and writes them twice (rotated,
// and as they were); backward reads those and the gradient, and writes the gradient.

#include "kernels/qk_norm.h"

#include "dev/bench/bench.h"
#include "kernels/rope.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("RMSNorm of the query and key heads with RoPE", "B,T,H,K,D",
                       {"8x256x8x4x32", "4x128x8x8x64", "1x2048x16x8x128"}, {"8x1024x16x8x128", "2x4096x32x8x128"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4], N = B * T;
        const DType t = b.dtype();
        std::vector<float> cosine(size_t(T * D / 2)), sine(cosine.size());
        rope_tables(cosine.data(), sine.data(), T, D, 1000000, {});
        const double heads = double(N * (H + K) * D * size_of(t));
        const auto norm = [=](bench::Memory& m) {
            return QkNorm{.N = N,
                          .T = T,
                          .heads = H,
                          .kv_heads = K,
                          .D = D,
                          .row_stride = (H + 2 * K) * D,
                          .wq = m.random(D, t, 5),
                          .wk = m.random(D, t, 6),
                          .cos_table = m.values(cosine),
                          .sin_table = m.values(sine),
                          .eps = 1e-6f,
                          .dtype = t};
        };
        b.measure({"qk_norm_forward", bench::joined(shape), 3 * heads}, [=](bench::Memory& m) {
            const QkNormForward a{.x = m.random(N * (H + 2 * K) * D, t, 1, 1, "x"),
                                  .kept = m.output(N * (H + K) * D, t, "kept"),
                                  .norm = norm(m)};
            return [a](Stream& s) { qk_norm_forward(s, a); };
        });
        // All heads together, which read them once more
        b.measure({"qk_sums", bench::joined(shape), heads}, [=](bench::Memory& m) {
            const QkSums a{.sums = static_cast<float*>(m.output(2 * N, DType::f32, "sums")),
                           .x = m.random(N * (H + 2 * K) * D, t, 1),
                           .norm = norm(m)};
            return [a](Stream& s) { qk_sums(s, a); };
        });
        b.measure({"qk_norm_backward", bench::joined(shape), 3 * heads}, [=](bench::Memory& m) {
            const QkNormBackward a{.dx = m.random(N * (H + 2 * K) * D, t, 1, 1, "dx"),
                                   .kept = m.random(N * (H + K) * D, t, 2),
                                   .dw = m.random(2 * D, DType::f32, 3, 1, "dw"),
                                   .scratch = static_cast<float*>(m.scratch(qk_norm_backward_scratch(D) * 4)),
                                   .grad_dtype = DType::f32,
                                   .norm = norm(m)};
            return [a](Stream& s) { qk_norm_backward(s, a); };
        });
    });
}
