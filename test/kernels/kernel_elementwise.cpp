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
            for (const int64_t n : kLengths)
                compare_on_devices([&](KernelRun& run) {
                    cast(run.stream(), {run.out("out", n, to), run.in(n, from, uint64_t(n)), n, to, from});
                });
}

TEST(Elementwise, CastMatchesCpuUnalignedAndInPlace) {
    const int64_t n = 501;
    compare_on_devices([&](KernelRun& run) {
        float* out = run.out("out", n + 1, DType::f32);
        const bf16* x = run.in(n + 3, DType::bf16, 1);
        cast(run.stream(), {out + 1, x + 3, n, DType::f32, DType::bf16});
    });
    compare_on_devices([&](KernelRun& run) {
        void* x = run.inout("out", n + 3, DType::bf16, 1);
        cast(run.stream(), {x, x, n, DType::f16, DType::bf16});
    });
}

TEST(Elementwise, ReduceAddMatchesCpu) {
    for (const DType out : kTypes)
        for (const DType wire : kTypes)
            for (const int64_t n : kLengths)
                compare_on_devices([&](KernelRun& run) {  // out is a: one hop of the ring
                    ReduceAdd a;
                    a.a = a.out = run.inout("out", n, out, 1);
                    a.b = run.in(n, wire, 2);
                    a.n = n, a.scale = 0.5f, a.out_dtype = a.a_dtype = out, a.b_dtype = wire;
                    reduce_add(run.stream(), a);
                });
    compare_on_devices([&](KernelRun& run) {  // unaligned
        const float* x = run.in(100, DType::f32, 1);
        const bf16* y = run.in(100, DType::bf16, 2);
        ReduceAdd a;
        a.out = run.out("out", 99, DType::f32);
        a.a = x + 1, a.b = y + 1;
        a.n = 99, a.out_dtype = a.a_dtype = DType::f32, a.b_dtype = DType::bf16;
        reduce_add(run.stream(), a);
    });
}

TEST(Elementwise, EmaMatchesCpu) {
    for (const int64_t n : kLengths)
        for (const int64_t offset : {0, 1})
            for (const float scale : {0.5f, NAN})
                compare_on_devices([&](KernelRun& run) {
                    float* average = run.inout("average", n + offset, DType::f32, 1);
                    const float* x = run.in(n + offset, DType::f32, 2);
                    ema(run.stream(), {.average = average + offset,
                                       .x = x + offset,
                                       .grad_scale = run.values<float>({scale}),
                                       .n = n,
                                       .weight = 0.001f});
                });
}

TEST(Elementwise, SumRowsMatchesCpu) {
    for (const DType in : kTypes)
        for (const DType out : kTypes)
            for (const int64_t rows : {1, 2, 3, 8})
                for (const int64_t n : {int64_t(5), int64_t(1000)}) {
                    const int64_t stride = n + (n == 5 ? 2 : 24);  // scalars, or vectors
                    compare_on_devices([&](KernelRun& run) {
                        SumRows a;
                        a.out = run.out("out", n, out);
                        a.x = run.in((rows - 1) * stride + n, in, 3);
                        a.rows = rows, a.n = n, a.stride = stride, a.scale = 0.125f, a.out_dtype = out, a.dtype = in;
                        sum_rows(run.stream(), a);
                    });
                }
}

TEST(Elementwise, RandomNormalGivesTheCpusBits) {
    for (const DType t : kTypes)
        for (const int64_t first : {0, 4, 3, 1001})
            for (const int64_t n : {1, 6, 8, 2047})
                compare_on_devices([&](KernelRun& run) {
                    RandomNormal a;
                    a.x = run.out("x", n, t);
                    if (first % 2 == 0) a.x32 = run.out("x32", n, DType::f32);
                    a.n = n, a.first = first, a.seed = 0x123456789abcdefull, a.stream = 5, a.mean = 0.25f;
                    a.std = 0.02f, a.dtype = t;
                    random_normal(run.stream(), a);
                });
}

}  // namespace
}  // namespace rz::test
