// Biases: CUDA kernels against the CPU ops.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::BiasCase;
class Bias : public testing::TestWithParam<Case> {};

TEST_P(Bias, AddMatchesCpu) {
    compare_on_devices([&](KernelRun& run) { add_bias(run.stream(), GetParam().add(run)); });
}

TEST_P(Bias, BackwardMatchesCpu) {
    compare_on_devices([&](KernelRun& run) { bias_backward(run.stream(), GetParam().backward(run)); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Bias,
                         testing::Values(Case{1, 1, DType::f32, DType::f32},    //
                                         Case{3, 37, DType::bf16, DType::f32},  // scalars
                                         Case{5, 37, DType::f16, DType::f16},
                                         Case{70, 256, DType::bf16, DType::bf16},  // more rows than parts
                                         Case{131, 264, DType::bf16, DType::f32},  // a second, ragged tile of columns
                                         Case{65, 24, DType::f16, DType::f16},     //
                                         Case{200, 12, DType::f32, DType::f32}));

}  // namespace
}  // namespace rz::test
