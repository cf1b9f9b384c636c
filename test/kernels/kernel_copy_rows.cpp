// Copy of rows: the CUDA kernel against the CPU op, which is tested against the formula.
#include "kernels/copy_rows.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t rows, columns, out_stride, stride;
    DType out_dtype, dtype;
};

class CopyRowsTest : public testing::TestWithParam<Case> {};

void check(const Case& c) {
    const Data x = normal(c.rows * c.stride, c.dtype, 1), before = normal(c.rows * c.out_stride, c.out_dtype, 2);
    const auto op = [&](KernelRun& run) {
        copy_rows(run.stream(), {.out = run.inout("out", before),
                                 .x = run.input(x),
                                 .rows = c.rows,
                                 .columns = c.columns,
                                 .out_stride = c.out_stride,
                                 .stride = c.stride,
                                 .out_dtype = c.out_dtype,
                                 .dtype = c.dtype});
    };
    const auto cpu = run_on(kCpu, op).at("out").values;
    for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t j = 0; j < c.out_stride; ++j) {
            Data one = zeros(1, c.out_dtype);
            if (j < c.columns) one.set(0, float(x.at(i * c.stride + j)));
            ASSERT_EQ(cpu[size_t(i * c.out_stride + j)], j < c.columns ? one.at(0) : before.at(i * c.out_stride + j));
        }
    compare_on_devices(op, {{"out", {}}});
}

TEST_P(CopyRowsTest, RowsArriveAndWhatLiesBetweenStays) { check(GetParam()); }

TEST(CopyRowsTypes, RowsArriveForEveryPair) {
    std::string why;
    if (cuda_device_count(&why) == 0) GTEST_SKIP() << why;
    for (const DType out : {DType::f32, DType::bf16, DType::f16})
        for (const DType in : {DType::f32, DType::bf16, DType::f16})
            for (const int64_t columns : {5, 16}) {  // scalars, vectors
                SCOPED_TRACE(std::string(name_of(out)) + " from " + name_of(in));
                check({3, columns, 24, 16, out, in});
            }
}

constexpr auto f32 = DType::f32, b16 = DType::bf16, h16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(Shapes, CopyRowsTest,
                         testing::Values(Case{1, 1, 1, 1, f32, f32}, Case{5, 24, 24, 72, f32, f32},
                                         Case{7, 300, 304, 512, b16, b16}, Case{3, 33, 40, 35, b16, f32},
                                         Case{9, 64, 192, 64, b16, f32}, Case{4, 16, 16, 16, f32, b16},
                                         Case{4, 20, 28, 24, h16, f32}, Case{2, 8, 8, 8, h16, h16}));

}  // namespace
}  // namespace rz::test
