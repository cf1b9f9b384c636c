// Conversion, the ring's reduce-add, the direct sum of rows, random initial weights, the sum of a message's bits, rows
// packed for a message, the sum of a step's losses. Unavoidable bytes: inputs once in, outputs once out.

#include "dev/bench/bench.h"
#include "kernels/bit_sum.h"
#include "kernels/copy_rows.h"
#include "kernels/cross_entropy.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("cast, reduce_add, sum_rows, random_normal, ema, bit_sum, copy_rows, sum_f32", "n",
                       {"262144", "16000000"}, {"16000000", "256000000"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0];
        const DType t = b.dtype();
        const std::string text = bench::joined(shape);
        const double narrow = double(n * size_of(t)), wide = double(n) * 4;
        b.measure({"cast fp32 ->", text, narrow + wide}, [=](bench::Memory& m) {
            const Cast a{.out = m.output(n, t, "out"),
                         .x = m.random(n, DType::f32, 1),
                         .n = n,
                         .out_dtype = t,
                         .dtype = DType::f32};
            return [a](Stream& s) { cast(s, a); };
        });
        b.measure({"reduce_add", text, 3 * narrow}, [=](bench::Memory& m) {
            const ReduceAdd a{.out = m.output(n, t, "out"),
                              .a = m.random(n, t, 1),
                              .b = m.random(n, t, 2),
                              .n = n,
                              .out_dtype = t,
                              .a_dtype = t,
                              .b_dtype = t};
            return [a](Stream& s) { reduce_add(s, a); };
        });
        b.measure({"sum_rows (4)", text, 5 * narrow}, [=](bench::Memory& m) {
            const SumRows a{.out = m.output(n, t, "out"),
                            .x = m.random(4 * n, t, 1),
                            .rows = 4,
                            .n = n,
                            .stride = n,
                            .out_dtype = t,
                            .dtype = t};
            return [a](Stream& s) { sum_rows(s, a); };
        });
        b.measure({"random_normal", text, narrow}, [=](bench::Memory& m) {
            const RandomNormal a{.x = m.output(n, t, "x"), .n = n, .seed = 1, .stream = 2, .std = 1, .dtype = t};
            return [a](Stream& s) { random_normal(s, a); };
        });
        if (t == DType::f32)
            b.measure({"ema", text, 12.0 * double(n)}, [=](bench::Memory& m) {
                const Ema a{.average = m.random<float>(n, t, 1, 1, "average"),
                            .x = m.random<float>(n, t, 2),
                            .grad_scale = m.random<float>(1, t, 3),
                            .n = n,
                            .weight = 0.001f};
                return [a](Stream& s) { ema(s, a); };
            });
        b.measure({"bit_sum", text, narrow}, [=](bench::Memory& m) {
            const BitSum a{
                .sum = static_cast<uint64_t*>(m.scratch(8)), .data = m.random(n, t, 1), .bytes = n * size_of(t)};
            return [a](Stream& s) { bit_sum(s, a); };
        });
        const int64_t columns = 256, rows = n / columns;  // every second 256 elements, as keys in rows of qkv
        if (rows > 0)
            b.measure({"copy_rows", text, 2 * double(rows * columns * size_of(t))}, [=](bench::Memory& m) {
                const CopyRows a{.out = m.output(rows * columns, t, "out"),
                                 .x = m.random(2 * rows * columns, t, 1),
                                 .rows = rows,
                                 .columns = columns,
                                 .out_stride = columns,
                                 .stride = 2 * columns,
                                 .out_dtype = t,
                                 .dtype = t};
                return [a](Stream& s) { copy_rows(s, a); };
            });
        b.measure({"sum_f32", text, wide, 0, 0, /*check=*/false}, [=](bench::Memory& m) {
            const SumF32 a{.out = m.values(std::vector<double>{0}), .x = m.random<float>(n, DType::f32, 1), .n = n};
            return [a](Stream& s) { sum_f32(s, a); };
        });
    });
}
