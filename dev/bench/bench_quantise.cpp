// From 16 bits to fp8: the magnitude (2 bytes in), codes (2 in, 1 out), codes and transposed codes (2 in, 2 out), and
// the transposition of codes (1 in, 1 out). With tiles a pass finds magnitudes and writes codes: of the numbers, or of
// their transpose; the bytes of their scales are not counted. With --dtype fp32 4 bytes are read.

#include "dev/bench/bench.h"
#include "kernels/fp8/fold_scales.h"

int main(int argc, char** argv) {
    using namespace rz;
    using ops::Tensors;
    bench::Bench bench("Quantisation to fp8", "rows,columns", {"2048x688", "512x1280", "2048x5632"},
                       {"8192x4096", "8192x28672", "28672x4096"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t rows = shape[0], columns = shape[1], n = rows * columns;
        const DType t = b.dtype();
        const auto slot = [](Tensors& m, float amax) {
            return m.values(std::vector<Fp8Scale>{Fp8Scale{1, std::bit_cast<uint32_t>(amax), {0, 0}}});
        };
        b.measure({"abs_max"}, abs_max, [=](Tensors& m) { return AbsMax{slot(m, 0), m.in(n, t, 1), n, t}; });
        const ops::QuantiseCase plain{rows, columns, t}, both{rows, columns, t, true, true},
            transposed{rows, columns, t, false, true};
        b.measure({"quantise"}, quantise, [=](Tensors& m) { return plain.whole(m, slot(m, 4), Fp8::e4m3); });
        b.measure({"quantise, transposed too"}, quantise,
                  [=](Tensors& m) { return both.whole(m, slot(m, 4), Fp8::e4m3); });
        b.measure({"transpose8"}, transpose8, [=](Tensors& m) {
            std::vector<uint8_t> codes;  // four in a word are no NaN
            for (int64_t i = 0; i < n; ++i) codes.push_back(uint8_t(i * 31 % 120));
            return Transpose8{ops::QuantiseCase::bytes(m, "y", n), m.values(codes), rows, columns};
        });
        b.measure({"fold_scales (8 ranks)", "256", 256 * 9 * 16.0}, fold_scales, [=](Tensors& m) {
            std::vector<Fp8Scale> parts;
            for (uint32_t i = 0; i < 8 * 256; ++i)
                parts.push_back({1, std::bit_cast<uint32_t>(1 + float(i * 37 % 256)), {0, 0}});
            FoldScales a{};
            a.scales = m.out({"scales", ops::kExact}, 256 * 4, DType::f32), a.parts = m.values(parts);
            a.ranks = 8, a.n = 256, a.type = Fp8::e4m3;
            return a;
        });
        if (rows % kFp8Tile || columns % kFp8Tile) return;
        b.measure({"quantise_blocks, 1 x 128"}, quantise_blocks,
                  [=](Tensors& m) { return plain.blocks(m, Fp8Tiles::rows); });
        b.measure({"quantise_blocks, 128 x 128"}, quantise_blocks,
                  [=](Tensors& m) { return plain.blocks(m, Fp8Tiles::squares); });
        b.measure({"quantise_mx"}, quantise_mx, [=](Tensors& m) { return plain.mx(m); });
        b.measure({"quantise_mx, transposed"}, quantise_mx, [=](Tensors& m) { return transposed.mx(m); });
    });
}
