// RoPE: CUDA kernel against the CPU op.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::RopeCase;
class RopeTest : public testing::TestWithParam<Case> {};

TEST_P(RopeTest, ForwardAndInverseMatchCpu) {
    const Case c = GetParam();
    for (const bool inverse : {false, true})
        compare_on_devices([&](KernelRun& run) { rope(run.stream(), c.args(run, inverse)); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         testing::Values(Case{1, 1, 1, 2, 0, DType::f32},          // one pair
                                         Case{14, 7, 12, 64, 192, DType::bf16},    // 9 + 3 heads of a packed row
                                         Case{9, 9, 20, 64, 320, DType::bf16},     // 15 + 5
                                         Case{5, 5, 6, 80, 0, DType::bf16},        //
                                         Case{6, 3, 5, 96, 96, DType::f16},        //
                                         Case{3, 3, 5, 128, 0, DType::f32, 1000},  // a cache's later position
                                         Case{8, 4, 3, 6, 5, DType::bf16, 2},      // scalars
                                         Case{8, 4, 3, 6, 5, DType::f16, 2},       //
                                         Case{18, 9, 3, 64, 0, DType::bf16, 0, true},
                                         Case{15, 5, 2, 6, 1, DType::f32, 4, true},
                                         Case{4, 4, 3, 8, 1, DType::f32}));  // an odd row stride

}  // namespace
}  // namespace rz::test
