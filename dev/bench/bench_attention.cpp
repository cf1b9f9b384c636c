// Causal attention. Operations counted: the visible half of 4 B H T^2 D forward, 2.5 times that backward. The join of
// two parts (--cp-exchange ring) by its bytes: a part in, the sum in and out. The variant with largest logits is a
// CPU's.

#include "dev/bench/bench.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/attention/attention_largest.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Causal grouped-query attention forward and backward", "B,T,H,K,D",
                       {"8x256x8x4x32", "4x128x8x8x64", "1x2048x8x4x64", "1x2048x4x4x128"},
                       {"8x2048x16x16x128", "4x4096x16x16x128", "2x8192x16x16x128", "8x2048x32x8x64"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4];
        const DType t = b.dtype();
        const ops::AttentionCase c{B, T, T, H, K, D, t, /*packed=*/true};
        const bool check = 2.0 * double(B * H * T) * double(T) * double(D) < 2e11;
        const auto named = [=](const char* op) { return bench::Row{.op = op, .check = check}; };
        b.measure(named("attention_forward"), attention_forward, [=](bench::Memory& m) { return c.forward(m); });
        b.measure(named("attention_forward, magnitudes"), attention_forward,
                  [=](bench::Memory& m) { return bench::with_magnitude(m, c.forward(m)); });
        if (!b.device().is_cuda())
            b.measure(named("attention_largest"), attention_largest, [=](bench::Memory& m) {
                return AttentionLargest{c.forward(m), m.out({"largest", {0, c.kScores}}, B * H * T, DType::f32)};
            });
        b.measure({"attention_merge"}, attention_merge, [=](bench::Memory& m) {
            return c.merge(m, m.in(B * T * H * D, t, 7), m.in(B * H * T, DType::f32, 8));
        });
        b.measure(named("attention_backward"), attention_backward, [=](bench::Memory& m) {
            const AttentionForward f = c.forward(m);
            attention_forward(m.stream(), f);
            AttentionBackward a = c.backward(m, f);
            a.kept_bytes = attention_kept_bytes(a.shape, m.device());
            if (a.kept_bytes > 0) a.kept = m.scratch(a.kept_bytes);
            return a;
        });
    });
}
