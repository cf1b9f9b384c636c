// SwiGLU: CUDA kernels against the CPU op.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::SwigluCase;
class Swiglu : public testing::TestWithParam<Case> {};

TEST_P(Swiglu, ForwardMatchesCpu) {
    const Case c = GetParam();
    compare_on_devices([&](KernelRun& run) { swiglu_forward(run.stream(), c.forward(run)); });
}

TEST_P(Swiglu, BackwardMatchesCpu) {
    const Case c = GetParam();
    for (const auto& [writes_h, in_place] : {std::pair(true, false), {true, true}, {false, false}})
        compare_on_devices([&, h = writes_h, in_place = in_place](KernelRun& run) {
            swiglu_backward(run.stream(), c.backward(run, h, in_place));
        });
}

// Far out the exponential overflows or vanishes; the result must be 0 or the gate itself, never NaN.
TEST(SwigluLimits, LargeGatesMatchCpu) {
    for (const DType t : {DType::f32, DType::bf16}) {
        Data gate_up = zeros(16, t), ones = zeros(8, t);
        const float gates[8] = {-1e4f, -200, -100, -30, 30, 100, 200, 1e4f};
        for (int i = 0; i < 8; ++i) gate_up.set(i, gates[i]), gate_up.set(8 + i, 1), ones.set(i, 1);
        const auto op = [&](KernelRun& run) {
            SwigluBackward a;
            a.dgate_up = run.out("dgate_up", 16, t);
            a.h = run.out("h", 8, t);
            a.gate_up = run.input(gate_up);
            a.dh = run.input(ones);
            a.N = 1, a.F = 8, a.dtype = t;
            swiglu_backward(run.stream(), a);
        };
        // If sigmoid(gate) vanishes the device flushes it to zero and the CPU stops at e^-88.3 = 4.5e-39, its
        // exponential's bound: times a gate of 1e4 that is 4.5e-35.
        const Tolerance close{ulp(t) + Case{1, 8, t}.error() * 16, 5e-35};
        compare_on_devices(op, {{"dgate_up", close}, {"h", close}});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Swiglu,
                         testing::Values(Case{1, 8, DType::bf16}, Case{1, 1, DType::f32}, Case{7, 1536, DType::bf16},
                                         Case{3, 1001, DType::bf16}, Case{5, 172, DType::f32}, Case{2, 40, DType::f16},
                                         Case{3, 33, DType::f32}, Case{3, 33, DType::f16}));

}  // namespace
}  // namespace rz::test
