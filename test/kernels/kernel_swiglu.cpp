// SwiGLU: CUDA kernels against the CPU op.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Case = ops::SwigluCase;
class Swiglu : public testing::TestWithParam<Case> {};

// The exponential's argument is rounded (|g| < 6: at most 6 * 1.44 * 2^-24 of the result), then come two approximations
// of 2^-22 and a few products, on each side: below 2^-19 of the value.
constexpr double kRelative = 1.0 / (1 << 19);

TEST_P(Swiglu, ForwardMatchesCpu) {
    const Case c = GetParam();
    compare_on_devices([&](KernelRun& run) { swiglu_forward(run.stream(), c.forward(run)); },
                       {{"h", {ulp(c.dtype) + kRelative, 0}}});
}

// The derivative of silu passes through zero near -1.28, where its two terms of about 0.3 cancel; |dh * up| < 20.
TEST_P(Swiglu, BackwardMatchesCpu) {
    const Case c = GetParam();
    for (const auto& [writes_h, in_place] : {std::pair(true, false), {true, true}, {false, false}}) {
        std::map<std::string, Tolerance> tolerances = {{"dgate_up", {ulp(c.dtype) + kRelative, 20 * kRelative}}};
        if (writes_h) tolerances["h"] = {ulp(c.dtype) + kRelative, 0};
        const auto op = [&, h = writes_h, in_place = in_place](KernelRun& run) {
            swiglu_backward(run.stream(), c.backward(run, h, in_place));
        };
        compare_on_devices(op, tolerances);
    }
}

// Far out the exponential overflows or vanishes; the result must be 0 or the gate itself, never NaN.
TEST(SwigluLimits, LargeGatesMatchCpu) {
    for (const DType t : {DType::f32, DType::bf16}) {
        Data gate_up = zeros(16, t);
        const float gates[8] = {-1e4f, -200, -100, -30, 30, 100, 200, 1e4f};
        for (int i = 0; i < 8; ++i) gate_up.set(i, gates[i]), gate_up.set(8 + i, 1);
        Data ones = zeros(8, t);
        for (int i = 0; i < 8; ++i) ones.set(i, 1);
        const auto op = [&](KernelRun& run) {
            SwigluBackward a;
            a.dgate_up = run.output("dgate_up", 16, t);
            a.h = run.output("h", 8, t);
            a.gate_up = run.input(gate_up);
            a.dh = run.input(ones);
            a.N = 1, a.F = 8, a.dtype = t;
            swiglu_backward(run.stream(), a);
        };
        // If sigmoid(gate) vanishes the device flushes it to zero and the CPU stops at e^-88.3 = 4.5e-39, its
        // exponential's bound: times a gate of 1e4 that is 4.5e-35.
        compare_on_devices(op,
                           {{"dgate_up", {ulp(t) + kRelative * 16, 5e-35}}, {"h", {ulp(t) + kRelative * 16, 5e-35}}});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Swiglu,
                         testing::Values(Case{1, 8, DType::bf16}, Case{1, 1, DType::f32}, Case{7, 1536, DType::bf16},
                                         Case{3, 1001, DType::bf16}, Case{5, 172, DType::f32}, Case{2, 40, DType::f16},
                                         Case{3, 33, DType::f32}, Case{3, 33, DType::f16}));

}  // namespace
}  // namespace rz::test
