// RMSNorm of heads, or of all of them together, with RoPE: CUDA kernels against the CPU op.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::QkNormCase;
class QkNormTest : public testing::TestWithParam<Case> {};

// A mean of D squares in another order is off by less than 2^-18 of itself, so rstd by 2^-19; then come four products
// and a sum of two of them, values below 16, and one rounding to dtype.
TEST_P(QkNormTest, ForwardMatchesCpu) {
    const Case c = GetParam();
    for (const bool keeps : {true, false})
        compare_on_devices([&](KernelRun& run) { qk_norm_forward(run.stream(), c.forward(run, keeps)); },
                           {{"x", {ulp(c.dtype), 16 * std::ldexp(1.0, -18)}}});
}

// dx has terms of a few units that may cancel, each off by 2^-17 of itself; dw is a sum of N * heads products near 1.
TEST_P(QkNormTest, BackwardMatchesCpu) {
    const Case c = GetParam();
    for (const bool adds : {true, false}) {
        const double n = double(c.N * c.heads), sum = n * std::ldexp(4 * std::sqrt(n) + 4, -24) + std::ldexp(16.0, -17);
        compare_on_devices(
            [&](KernelRun& run) { qk_norm_backward(run.stream(), c.backward(run, adds)); },
            {{"dx", {ulp(c.dtype), 16 * std::ldexp(1.0, -17)}}, {"dw", {ulp(adds ? c.grad_dtype : DType::f32), sum}}});
    }
}

// Sums of heads * D products, which may cancel: each addition is off by 2^-24 of what there is then.
TEST_P(QkNormTest, SumsMatchCpu) {
    const Case c = GetParam();
    for (const bool squares : {true, false}) {
        if (!squares && c.ranks == 0) continue;
        const double n = double(c.heads * c.D);
        compare_on_devices([&](KernelRun& run) { qk_sums(run.stream(), c.sums(run, squares)); },
                           {{"sums", {0, n * std::ldexp(4 * std::sqrt(n) + 16, -24)}}});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QkNormTest,
                         testing::Values(Case{1, 1, 1, 1, 2, 0, DType::f32, DType::f32},        // one pair
                                         Case{14, 7, 9, 3, 64, 192, DType::bf16, DType::f32},   // a packed row
                                         Case{6, 3, 4, 2, 128, 256, DType::bf16, DType::bf16},  // Qwen3's
                                         Case{5, 5, 5, 1, 80, 80, DType::bf16, DType::f32},     //
                                         Case{6, 3, 3, 2, 96, 96, DType::f16, DType::f16},      //
                                         Case{2, 2, 2, 2, 256, 512, DType::f32, DType::f32},    // the widest
                                         Case{8, 4, 2, 1, 6, 5, DType::bf16, DType::f32},       // scalars
                                         Case{9, 9, 3, 1, 64, 0, DType::bf16, DType::f32, true, true},
                                         Case{15, 5, 2, 1, 10, 1, DType::f32, DType::f32, true, true},
                                         Case{6, 3, 4, 2, 32, 64, DType::f32, DType::f32, false},  // no rotation
                                         // OLMo 2's
                                         Case{6, 3, 4, 4, 128, 512, DType::bf16, DType::f32, true, false, 1},
                                         Case{10, 5, 3, 1, 64, 64, DType::f32, DType::f32, true, true, 2},
                                         Case{6, 3, 2, 1, 6, 5, DType::f16, DType::f16, true, false, 4, 2},
                                         Case{4, 2, 5, 2, 80, 80, DType::bf16, DType::bf16, false, false, 3}));

}  // namespace
}  // namespace rz::test
