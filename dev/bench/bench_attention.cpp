// Causal attention. Operations counted: the visible half of 4 B H T^2 D forward, 2.5 times that backward. The join of
// two parts (--cp-exchange ring) by its bytes: a part in, the sum in and out. The variant with largest logits is a
// CPU's.

#include "kernels/attention/attention.h"

#include "dev/bench/bench.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/attention/attention_largest.h"
#include "kernels/attention/attention_merge.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Causal grouped-query attention forward and backward", "B,T,H,K,D",
                       {"8x256x8x4x32", "4x128x8x8x64", "1x2048x8x4x64", "1x2048x4x4x128"},
                       {"8x2048x16x16x128", "4x4096x16x16x128", "2x8192x16x16x128", "8x2048x32x8x64"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4], row = (H + 2 * K) * D;
        const DType t = b.dtype();
        const AttentionShape s{
            B, T, T, H, K, D, row, T * row, row, T * row, H * D, T * H * D, float(1 / std::sqrt(double(D))), t};
        const double flops = 2.0 * double(B * H * T) * double(T) * double(D);
        // 16-bit types round the probabilities too, at another place on each device.
        const double tolerance = t == DType::f32 ? 0x1p-16 : t == DType::bf16 ? 0x1p-5 : 0x1p-8;
        const bool check = flops < 2e11;
        const auto at = [t](const void* p, int64_t offset) {
            return static_cast<void*>(const_cast<char*>(static_cast<const char*>(p)) + offset * size_of(t));
        };
        const auto forward = [=](bench::Memory& m) {
            const void* qkv = m.random(B * T * row, t, 1);
            return AttentionForward{m.output(B * T * H * D, t, "o"),
                                    m.output<float>(B * H * T, DType::f32, "lse"),
                                    qkv,
                                    at(qkv, H * D),
                                    at(qkv, (H + K) * D),
                                    s};
        };
        for (const bool measured : {false, true})  // magnitudes of o, for quantisation to fp8
            b.measure({measured ? "attention_forward, magnitudes" : "attention_forward", bench::joined(shape), 0, flops,
                       tolerance, check},
                      [=](bench::Memory& m) {
                          AttentionForward a = forward(m);
                          if (measured) a.amax = static_cast<uint32_t*>(m.scratch(16));
                          return [a](Stream& stream) { attention_forward(stream, a); };
                      });
        if (!b.device().is_cuda())
            b.measure({"attention_largest", bench::joined(shape), 0, flops, tolerance, check}, [=](bench::Memory& m) {
                const AttentionLargest a{forward(m), m.output<float>(B * H * T, DType::f32, "largest")};
                return [a](Stream& stream) { attention_largest(stream, a); };
            });
        const double merged = double(B * H * T) * (double(D * (8 + size_of(t))) + 12);
        b.measure({"attention_merge", bench::joined(shape), merged}, [=](bench::Memory& m) {
            const AttentionMerge a{.o = m.random<float>(B * T * H * D, DType::f32, 3, 1, "o"),
                                   .lse = m.random<float>(B * H * T, DType::f32, 4, 1, "lse"),
                                   .part_o = m.random(B * T * H * D, t, 5),
                                   .part_lse = m.random<float>(B * H * T, DType::f32, 6),
                                   .B = B,
                                   .T = T,
                                   .H = H,
                                   .D = D,
                                   .o_batch = T * H * D,
                                   .part_batch = T * H * D,
                                   .first = false,
                                   .dtype = t};
            return [a](Stream& stream) { attention_merge(stream, a); };
        });
        b.measure({"attention_backward", bench::joined(shape), 0, 2.5 * flops, tolerance, check},
                  [=](bench::Memory& m) {
                      const AttentionForward f = forward(m);
                      attention_forward(m.stream(), f);
                      void* dqkv = m.output(B * T * row, t, "dqkv");
                      AttentionBackward a{dqkv,
                                          at(dqkv, H * D),
                                          at(dqkv, (H + K) * D),
                                          m.random(B * T * H * D, t, 2),
                                          f.q,
                                          f.k,
                                          f.v,
                                          f.o,
                                          f.lse,
                                          m.scratch(attention_backward_workspace(s)),
                                          s};
                      a.kept_bytes = attention_kept_bytes(s, m.stream().device());
                      if (a.kept_bytes > 0) a.kept = m.scratch(a.kept_bytes);
                      return [a](Stream& stream) { attention_backward(stream, a); };
                  });
    });
}
