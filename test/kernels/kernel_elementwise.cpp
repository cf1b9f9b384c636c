// Conversions, the ring's additions and random weights: CUDA kernels against the CPU ops. The same operations in the
// same order with the same roundings on both sides, so nothing here has a tolerance.
#include "kernels/elementwise.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr int64_t kLengths[] = {1, 7, 8, 1000, 2049};

TEST(Elementwise, CastBetweenEveryPairOfTypesMatchesCpu) {
    for (const DType from : kTypes)
        for (const DType to : kTypes)
            for (const int64_t n : kLengths) {
                const Data x = normal(n, from, uint64_t(n));
                const auto op = [&](KernelRun& run) {
                    Cast a{run.output("out", n, to), run.input(x), n, to, from};
                    cast(run.stream(), a);
                };
                compare_on_devices(op, {});
            }
}

TEST(Elementwise, CastMatchesCpuUnalignedAndInPlace) {
    const int64_t n = 501;
    const Data x = normal(n + 3, DType::bf16, 1);
    const auto unaligned = [&](KernelRun& run) {
        Cast a{run.output<float>("out", n + 1, DType::f32) + 1, run.input<char>(x) + 6, n, DType::f32, DType::bf16};
        cast(run.stream(), a);
    };
    compare_on_devices(unaligned, {});
    const auto in_place = [&](KernelRun& run) {
        Cast a{run.inout("out", x), nullptr, n, DType::f16, DType::bf16};
        a.x = a.out;
        cast(run.stream(), a);
    };
    compare_on_devices(in_place, {});
}

TEST(Elementwise, ReduceAddMatchesCpu) {
    for (const DType out : kTypes)
        for (const DType wire : kTypes)
            for (const int64_t n : kLengths) {
                const Data x = normal(n, out, 1), y = normal(n, wire, 2);
                const auto op = [&](KernelRun& run) {  // out is a: one hop of the ring
                    ReduceAdd a;
                    a.out = run.inout("out", x);
                    a.a = a.out;
                    a.b = run.input(y);
                    a.n = n, a.scale = 0.5f, a.out_dtype = a.a_dtype = out, a.b_dtype = wire;
                    reduce_add(run.stream(), a);
                };
                compare_on_devices(op, {});
            }
    const Data x = normal(100, DType::f32, 1), y = normal(100, DType::bf16, 2);
    const auto unaligned = [&](KernelRun& run) {
        ReduceAdd a;
        a.out = run.output<float>("out", 99, DType::f32);
        a.a = run.input<float>(x) + 1;
        a.b = run.input<char>(y) + 2;
        a.n = 99, a.out_dtype = a.a_dtype = DType::f32, a.b_dtype = DType::bf16;
        reduce_add(run.stream(), a);
    };
    compare_on_devices(unaligned, {});
}

TEST(Elementwise, EmaMatchesCpu) {
    for (const int64_t n : kLengths)
        for (const int64_t offset : {0, 1})
            for (const float scale : {0.5f, NAN}) {
                const Data average = normal(n + offset, DType::f32, 1), x = normal(n + offset, DType::f32, 2);
                const auto op = [&](KernelRun& run) {
                    ema(run.stream(), {.average = run.inout<float>("average", average) + offset,
                                       .x = run.input<float>(x) + offset,
                                       .grad_scale = run.input<float>(std::vector<float>{scale}),
                                       .n = n,
                                       .weight = 0.001f});
                };
                compare_on_devices(op, {});
            }
}

TEST(Elementwise, SumRowsMatchesCpu) {
    for (const DType in : kTypes)
        for (const DType out : kTypes)
            for (const int64_t rows : {1, 2, 3, 8})
                for (const int64_t n : {int64_t(5), int64_t(1000)}) {
                    const int64_t stride = n + (n == 5 ? 2 : 24);  // scalars, or vectors
                    const Data x = normal((rows - 1) * stride + n, in, 3);
                    const auto op = [&](KernelRun& run) {
                        SumRows a;
                        a.out = run.output("out", n, out);
                        a.x = run.input(x);
                        a.rows = rows, a.n = n, a.stride = stride, a.scale = 0.125f, a.out_dtype = out, a.dtype = in;
                        sum_rows(run.stream(), a);
                    };
                    compare_on_devices(op, {});
                }
}

TEST(Elementwise, RandomNormalGivesTheCpusBits) {
    for (const DType t : kTypes)
        for (const int64_t first : {0, 4, 3, 1001})
            for (const int64_t n : {1, 6, 8, 2047}) {
                const auto op = [&](KernelRun& run) {
                    RandomNormal a;
                    a.x = run.output("x", n, t);
                    a.x32 = first % 2 == 0 ? run.output<float>("x32", n, DType::f32) : nullptr;
                    a.n = n, a.first = first, a.seed = 0x123456789abcdefull, a.stream = 5, a.mean = 0.25f,
                    a.std = 0.02f;
                    a.dtype = t;
                    random_normal(run.stream(), a);
                };
                compare_on_devices(op, {});
            }
}

}  // namespace
}  // namespace rz::test
