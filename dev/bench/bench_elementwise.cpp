// Conversion, the ring's reduce-add, the direct sum of rows, random initial weights, the sum of a message's bits.
// Unavoidable bytes: inputs once in, outputs once out.

#include "dev/bench/bench.h"
#include "kernels/bit_sum.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("cast, reduce_add, sum_rows, random_normal, bit_sum", "n", {"262144", "16000000"},
                       {"16000000", "256000000"});
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
        b.measure({"bit_sum", text, narrow}, [=](bench::Memory& m) {
            const BitSum a{
                .sum = static_cast<uint64_t*>(m.scratch(8)), .data = m.random(n, t, 1), .bytes = n * size_of(t)};
            return [a](Stream& s) { bit_sum(s, a); };
        });
    });
}
