// Conversion, the ring's reduce-add, the direct sum of rows, random initial weights, the sum of a message's bits, rows
// packed for a message, the sum of a step's losses. Unavoidable bytes: inputs once in, outputs once out.

#include "dev/bench/bench.h"
#include "kernels/bit_sum.h"
#include "kernels/copy_rows.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("cast, reduce_add, sum_rows, random_normal, ema, bit_sum, copy_rows, sum_f32", "n",
                       {"262144", "16000000"}, {"16000000", "256000000"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0];
        const DType t = b.dtype(), f32 = DType::f32;
        using Tensors = ops::Tensors;
        b.measure({"cast fp32 ->"}, cast, [=](Tensors& m) {
            return Cast{m.out("out", n, t), m.in(n, f32, 1), n, t, f32};
        });
        b.measure({"reduce_add"}, reduce_add, [=](Tensors& m) {
            ReduceAdd a{};
            a.out = m.out("out", n, t), a.a = m.in(n, t, 1), a.b = m.in(n, t, 2), a.n = n;
            a.out_dtype = a.a_dtype = a.b_dtype = t;
            return a;
        });
        b.measure({"sum_rows (4)"}, sum_rows, [=](Tensors& m) {
            SumRows a{};
            a.out = m.out("out", n, t), a.x = m.in(4 * n, t, 1), a.rows = 4, a.n = n, a.stride = n;
            a.out_dtype = a.dtype = t;
            return a;
        });
        b.measure({"random_normal"}, random_normal, [=](Tensors& m) {
            return RandomNormal{.x = m.out("x", n, t), .n = n, .seed = 1, .stream = 2, .std = 1, .dtype = t};
        });
        if (t == f32)
            b.measure({"ema"}, ema, [=](Tensors& m) {
                return Ema{.average = m.inout("average", n, t, 1),
                           .x = m.in(n, t, 2),
                           .grad_scale = m.in(1, t, 3),
                           .n = n,
                           .weight = 0.001f};
            });
        b.measure({"bit_sum"}, bit_sum, [=](Tensors& m) {
            return BitSum{.sum = m.scratch(8), .data = m.in(n, t, 1), .bytes = n * size_of(t)};
        });
        const int64_t columns = 256, rows = n / columns;  // every second 256 elements, as keys in rows of qkv
        if (rows > 0)
            b.measure({"copy_rows"}, copy_rows, [=](Tensors& m) {
                CopyRows a{};
                a.out = m.out("out", rows * columns, t), a.x = m.in(2 * rows * columns, t, 1);
                a.rows = rows, a.columns = a.out_stride = columns, a.stride = 2 * columns;
                a.out_dtype = a.dtype = t;
                return a;
            });
        b.measure({.op = "sum_f32", .check = false}, sum_f32, [=](Tensors& m) {
            return SumF32{.out = m.values(std::vector<double>{0}), .x = m.in(n, f32, 1), .n = n};
        });
    });
}
