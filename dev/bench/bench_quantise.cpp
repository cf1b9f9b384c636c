// From 16 bits to fp8: the magnitude (2 bytes in), codes (2 in, 1 out), codes and transposed codes (2 in, 2 out), and
// the transposition of codes (1 in, 1 out). With tiles a pass finds magnitudes and writes codes: of the numbers, or of
// their transpose. With --dtype fp32 4 bytes are read.

#include "kernels/fp8/quantise.h"
#include "kernels/fp8/quantise_blocks.h"
#include "kernels/fp8/quantise_mx.h"

#include "dev/bench/bench.h"
#include "kernels/fp8/fold_scales.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Quantisation to fp8", "rows,columns", {"2048x688", "512x1280", "2048x5632"},
                       {"8192x4096", "8192x28672", "28672x4096"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t rows = shape[0], columns = shape[1], n = rows * columns;
        const DType t = b.dtype();
        const double in = double(n * size_of(t)), out = double(n);
        const auto codes = [=](bench::Memory& m, const char* name) {
            return m.output<uint8_t>(n / 4, DType::f32, name);  // compared as words
        };
        const auto slot = [=](bench::Memory& m, uint32_t amax) {
            return m.values(std::vector<Fp8Scale>{Fp8Scale{1, amax, {0, 0}}});
        };
        const uint32_t four = std::bit_cast<uint32_t>(4.0f);
        b.measure({"abs_max", bench::joined(shape), in}, [=](bench::Memory& m) {
            const AbsMax a{.scale = slot(m, 0), .x = m.random(n, t, 1), .n = n, .dtype = t};
            return [a](Stream& s) { abs_max(s, a); };
        });
        for (const bool transposed : {false, true})
            b.measure({transposed ? "quantise, transposed too" : "quantise", bench::joined(shape),
                       in + (transposed ? 2 : 1) * out},
                      [=](bench::Memory& m) {
                          const Quantise a{.y = codes(m, "y"),
                                           .y_t = transposed ? codes(m, "y_t") : nullptr,
                                           .scale = slot(m, four),
                                           .x = m.random(n, t, 1),
                                           .rows = rows,
                                           .columns = columns,
                                           .type = Fp8::e4m3,
                                           .dtype = t};
                          return [a](Stream& s) { quantise(s, a); };
                      });
        b.measure({"transpose8", bench::joined(shape), 2 * out}, [=](bench::Memory& m) {
            const Transpose8 a{
                .y = codes(m, "y"), .x = m.random<uint8_t>(n / 4, DType::f32, 1), .rows = rows, .columns = columns};
            return [a](Stream& s) { transpose8(s, a); };
        });
        b.measure({"fold_scales (8 ranks)", "256", 256 * 9 * 16.0}, [](bench::Memory& m) {
            std::vector<Fp8Scale> parts;
            for (uint32_t i = 0; i < 8 * 256; ++i)
                parts.push_back({1, std::bit_cast<uint32_t>(1 + float(i * 37 % 256)), {0, 0}});
            Fp8Scale* scales = static_cast<Fp8Scale*>(m.output(256 * 4, DType::f32, "scales"));
            const FoldScales a{.scales = scales, .parts = m.values(parts), .ranks = 8, .n = 256, .type = Fp8::e4m3};
            return [a](Stream& s) { fold_scales(s, a); };
        });
        if (rows % kFp8Tile || columns % kFp8Tile) return;
        for (const Fp8Tiles tiles : {Fp8Tiles::rows, Fp8Tiles::squares})
            b.measure({tiles == Fp8Tiles::rows ? "quantise_blocks, 1 x 128" : "quantise_blocks, 128 x 128",
                       bench::joined(shape), in + out + double(4 * fp8_scales_of(tiles, rows, columns))},
                      [=](bench::Memory& m) {
                          const int64_t scales = fp8_scales_of(tiles, rows, columns);
                          const QuantiseBlocks a{.y = codes(m, "y"),
                                                 .scales = m.output<float>(scales, DType::f32, "scales"),
                                                 .x = m.random(n, t, 1),
                                                 .rows = rows,
                                                 .columns = columns,
                                                 .tiles = tiles,
                                                 .dtype = t};
                          return [a](Stream& s) { quantise_blocks(s, a); };
                      });
        for (const bool transposed : {false, true})
            b.measure({transposed ? "quantise_mx, transposed" : "quantise_mx", bench::joined(shape),
                       in + out + double(mx_scales_of(rows, columns))},
                      [=](bench::Memory& m) {
                          QuantiseMx a{.x = m.random(n, t, 1), .rows = rows, .columns = columns, .dtype = t};
                          uint8_t* y = codes(m, "y");
                          auto* scales =
                              m.output<uint8_t>(mx_scales_of(rows, columns) / 4, DType::f32, "scales, four to a word");
                          (transposed ? a.y_t : a.y) = y, (transposed ? a.scales_t : a.scales) = scales;
                          return [a](Stream& s) { quantise_mx(s, a); };
                      });
    });
}
