// RoPE in place. Unavoidable bytes: the rotated heads once in and once out. "magnitudes": of whole rows, for codes in
// fp8, so v's heads are read, too; bench_quantise's abs_max is what that saves.

#include "kernels/rope.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("RoPE on the query and key heads of packed qkv rows", "B,T,H,K,D",
                       {"8x256x8x4x32", "4x128x8x8x64", "1x2048x16x8x128"}, {"8x1024x16x16x128", "2x4096x32x8x128"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4];
        const DType t = b.dtype();
        std::vector<float> cosine(size_t(T * D / 2)), sine(cosine.size());
        rope_tables(cosine.data(), sine.data(), T, D, 500000, {});
        for (const bool measured : {false, true}) {
            const int64_t moved = 2 * (H + K) + (measured ? K : 0);
            b.measure(
                {measured ? "rope, magnitudes" : "rope", bench::joined(shape), double(B * T * moved * D * size_of(t))},
                [&](bench::Memory& m) {
                    const Rope a{.x = m.random(B * T * (H + 2 * K) * D, t, 1, 1, "x"),
                                 .cos_table = m.values(cosine),
                                 .sin_table = m.values(sine),
                                 .N = B * T,
                                 .T = T,
                                 .heads = H + K,
                                 .D = D,
                                 .row_stride = (H + 2 * K) * D,
                                 .dtype = t,
                                 .amax = measured ? static_cast<uint32_t*>(m.scratch(16)) : nullptr};
                    return [a](Stream& s) { rope(s, a); };
                });
        }
    });
}
