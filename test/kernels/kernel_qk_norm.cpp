// RMSNorm of heads, or of all of them together, with RoPE: CUDA kernels against the CPU op.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::QkNormCase;
class QkNormTest : public testing::TestWithParam<Case> {};

TEST_P(QkNormTest, ForwardMatchesCpu) {
    const Case c = GetParam();
    for (const bool keeps : {true, false})
        compare_on_devices([&](KernelRun& run) { qk_norm_forward(run.stream(), c.forward(run, keeps)); });
}

TEST_P(QkNormTest, BackwardMatchesCpu) {
    const Case c = GetParam();
    for (const bool adds : {true, false})
        compare_on_devices([&](KernelRun& run) { qk_norm_backward(run.stream(), c.backward(run, adds)); });
}

TEST_P(QkNormTest, SumsMatchCpu) {
    const Case c = GetParam();
    for (const bool squares : {true, false}) {
        if (!squares && c.ranks == 0) continue;
        compare_on_devices([&](KernelRun& run) { qk_sums(run.stream(), c.sums(run, squares)); });
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
                                         Case{6, 3, 3, 2, 62, 3, DType::f32, DType::f32},       // in nearly every lane
                                         Case{6, 3, 3, 2, 126, 3, DType::bf16, DType::bf16},    // and twice
                                         Case{6, 3, 3, 2, 126, 3, DType::f16, DType::f16},
                                         Case{9, 9, 3, 1, 64, 0, DType::bf16, DType::f32, true, true},
                                         Case{15, 5, 2, 1, 10, 1, DType::f32, DType::f32, true, true},
                                         Case{6, 3, 4, 2, 32, 64, DType::f32, DType::f32, false},  // no rotation
                                         // OLMo 2's
                                         Case{6, 3, 4, 4, 128, 512, DType::bf16, DType::f32, true, false, 1},
                                         Case{10, 5, 3, 1, 64, 64, DType::f32, DType::f32, true, true, 2},
                                         Case{6, 3, 2, 1, 6, 5, DType::f16, DType::f16, true, false, 4, 2},
                                         Case{6, 3, 3, 2, 62, 3, DType::f32, DType::f32, true, false, 2},
                                         Case{6, 3, 3, 2, 126, 3, DType::bf16, DType::f32, true, false, 1},
                                         Case{6, 3, 4, 2, 64, 64, DType::f16, DType::f16, true, false, 2},
                                         Case{4, 2, 5, 2, 80, 80, DType::bf16, DType::bf16, false, false, 3}));

}  // namespace
}  // namespace rz::test
