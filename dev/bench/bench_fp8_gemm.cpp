// The three products of a linear layer in fp8: of codes alone, and with the quantisation of both operands as training
// does it; beside bench_gemm's in 16 bits. 2 M N K operations. Recipes tensor (fp8_gemm), block (fp8_block_gemm) and mx
// (fp8_mx_gemm) where the device has them.

#include "dev/bench/bench.h"
#include "kernels/fp8/fp8_gemm.h"
#include "llama/model/linear_fp8.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("fp8 products: M rows, N outputs, K inputs of a linear layer", "M,N,K",
                       {"256x512x256", "512x768x256"}, {"8192x6144x4096", "8192x28672x4096", "8192x4096x14336"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t M = shape[0], N = shape[1], K = shape[2];
        const double flops = 2.0 * double(M) * double(N) * double(K);
        const bool check = flops < 2e10;  // the CPU takes its time
        const std::string missing = fp8_missing(b.device());
        if (!missing.empty()) return (void)std::printf("%s\n", missing.c_str());
        b.measure({"fp8 y = x W^T, codes", bench::joined(shape), 0, flops, 0, check}, [=](bench::Memory& m) {
            const auto codes = [&](int64_t rows, uint64_t seed, const Fp8Scale*& scale) {
                uint8_t* y = m.out("", rows * K / 4, DType::f32);
                Fp8Scale* s = m.values(std::vector<Fp8Scale>{Fp8Scale{1, std::bit_cast<uint32_t>(6.0f), {0, 0}}});
                quantise(m.stream(), {.y = y,
                                      .scale = s,
                                      .x = m.in(rows * K, DType::bf16, seed),
                                      .rows = rows,
                                      .columns = K,
                                      .type = Fp8::e4m3,
                                      .dtype = DType::bf16});
                scale = s;
                return y;
            };
            Fp8Gemm g{};
            g.a = codes(M, 1, g.a_scale), g.b = codes(N, 2, g.b_scale);
            g.c = m.out("c", M * N, DType::bf16);
            g.M = M, g.N = N, g.K = K, g.c_dtype = DType::bf16, g.fast_accumulation = true;
            return [g](Stream& s) { fp8_gemm(s, g); };
        });
        for (const Fp8Recipe recipe : {Fp8Recipe::tensor, Fp8Recipe::block, Fp8Recipe::mx}) {
            static_assert(kFp8Tile == kMxMultiple);
            const bool fits = M % kFp8Tile == 0 && N % kFp8Tile == 0 && K % kFp8Tile == 0;
            if (recipe != Fp8Recipe::tensor && !fits) continue;
            if (recipe == Fp8Recipe::block && !fp8_blocks_missing(b.device()).empty()) continue;
            if (recipe == Fp8Recipe::mx && !fp8_mx_missing(b.device()).empty()) continue;
            for (const int which : {0, 1, 2}) {
                const char* names[] = {"y = x W^T", "dx = dy W", "dW += dy^T x"};
                // Codes on the two sides of a rounding differ by 6 %, one in thousands; sums hide them.
                b.measure(
                    {std::string("fp8 ") + name_of(recipe) + " " + names[which] + ", quantised", bench::joined(shape),
                     0, flops, 0x1p-7, check},
                    [=](bench::Memory& m) {
                        auto layer = std::make_shared<Fp8Linear>(m.device(), recipe, std::max({M * N, M * K, N * K}));
                        const void* x = m.in(M * K, DType::bf16, 1);
                        const void* w = m.in(N * K, DType::bf16, 2);
                        const void* dy = m.in(M * N, DType::bf16, 3);
                        const DType t = DType::bf16;
                        void* out = m.inout("out", (which == 0 ? M * N : which == 1 ? M * K : N * K), t, 4);
                        return [=](Stream& s) {
                            if (which == 0) layer->forward(s, out, x, w, M, K, N, t, t);
                            if (which == 1) layer->backward_input(s, out, dy, w, M, K, N, t, t);
                            if (which == 2) layer->backward_weight(s, out, dy, x, M, K, N, t, t);
                        };
                    });
            }
        }
    });
}
