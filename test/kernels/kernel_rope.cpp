// RoPE: CUDA kernel against the CPU op.
#include "kernels/rope.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t B, T, heads, D, gap, first_position;
    DType dtype;
    bool own = false;  // every row has a position of its own
};

class RopeTest : public testing::TestWithParam<Case> {};

// Two products of values below 6 and their sum, fused or not: three roundings of at most 8; then one to dtype.
TEST_P(RopeTest, ForwardAndInverseMatchCpu) {
    const Case c = GetParam();
    const int64_t row = c.heads * c.D + c.gap, n = c.B * c.T * row, positions = c.first_position + c.T;
    const Data x = normal(n, c.dtype, 1);
    std::vector<float> cosines(size_t(positions * c.D / 2)), sines(cosines.size());
    rope_tables(cosines.data(), sines.data(), positions, c.D, 10000, {});
    for (const bool inverse : {false, true}) {
        const auto op = [&](KernelRun& run) {
            Rope a;
            a.x = run.inout("x", x);  // what lies between the rows must stay as it is
            a.cos_table = run.input<float>(cosines);
            a.sin_table = run.input<float>(sines);
            a.N = c.B * c.T, a.T = c.T, a.first_position = c.first_position;
            std::vector<int32_t> own;
            for (int64_t i = 0; i < a.N; ++i) own.push_back(int32_t(i * 7 % positions));
            if (c.own) a.positions = run.input<int32_t>(own);
            a.heads = c.heads, a.D = c.D, a.row_stride = row, a.inverse = inverse, a.dtype = c.dtype;
            rope(run.stream(), a);
        };
        compare_on_devices(op, {{"x", {ulp(c.dtype), 3 * 8 * std::ldexp(1.0, -24)}}});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         testing::Values(Case{1, 1, 1, 2, 0, 0, DType::f32},       // one pair
                                         Case{2, 7, 12, 64, 192, 0, DType::bf16},  // 9 + 3 heads of a packed row
                                         Case{1, 9, 20, 64, 320, 0, DType::bf16},  // 15 + 5
                                         Case{1, 5, 6, 80, 0, 0, DType::bf16},     //
                                         Case{2, 3, 5, 96, 96, 0, DType::f16},     //
                                         Case{1, 3, 5, 128, 0, 1000, DType::f32},  // a cache's later position
                                         Case{2, 4, 3, 6, 5, 2, DType::bf16},      // scalars
                                         Case{2, 4, 3, 6, 5, 2, DType::f16},       //
                                         Case{2, 9, 3, 64, 0, 0, DType::bf16, true},
                                         Case{3, 5, 2, 6, 1, 4, DType::f32, true},
                                         Case{1, 4, 3, 8, 1, 0, DType::f32}));  // an odd row stride

}  // namespace
}  // namespace rz::test
