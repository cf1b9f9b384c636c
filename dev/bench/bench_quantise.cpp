// From 16 bits to fp8: the magnitude (2 bytes in), codes (2 in, 1 out), codes and transposed codes (2 in, 2 out), and
// the transposition of codes (1 in, 1 out). With --dtype fp32 4 bytes are read.

#include "kernels/fp8/quantise.h"

#include "dev/bench/bench.h"

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
    });
}
