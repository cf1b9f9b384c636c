// Ops that find the magnitude of what they store (kernels/magnitude.h): the largest of the stored numbers, to the bit.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

constexpr float kBefore = 1e-3f;  // what stands in the slot already: less than what comes

uint32_t* slot(KernelRun& run, const char* name, float before = kBefore) {
    return run.inout(name, raw(std::vector<float>{before}));
}

// On each device: what it says of what it stored. Results of two devices may differ in a last bit, so magnitudes may.
void expect_largest(const Op& op, const std::vector<std::pair<std::string, std::string>>& pairs,
                    float before = kBefore) {
    for (const Device& device : both_devices()) {
        const auto got = run_on(device, op);
        for (const auto& [name, of] : pairs) {
            double most = double(before);
            for (const double v : got.at(of).values) most = std::max(most, std::abs(v));
            EXPECT_EQ(got.at(name).values[0], most) << of << " on " << device.name();
        }
    }
}

// The same for an op of these arguments and its output `of`
template <class Args, class Make>
void expect_amax(void (*op)(Stream&, const Args&), const char* of, const Make& make) {
    expect_largest(
        [&](KernelRun& run) {
            Args a = make(run);
            a.amax = slot(run, "amax");
            op(run.stream(), a);
        },
        {{"amax", of}});
}

struct Shape {
    int64_t rows, columns;
    DType dtype;
};

class Magnitude : public testing::TestWithParam<Shape> {};

TEST_P(Magnitude, OfANorm) {
    const auto [N, C, t] = GetParam();
    for (const bool with_residual : {false, true}) {
        const ops::NormCase c{N, C, t, t, with_residual, /*in_place=*/true};
        expect_amax(rmsnorm_forward, "y", [&](KernelRun& run) { return c.forward(run); });
    }
}

TEST_P(Magnitude, OfANormsGradient) {
    const auto [N, C, t] = GetParam();
    const ops::NormCase c{N, C, t, t, /*residual=*/true, /*in_place=*/true};
    expect_amax(rmsnorm_backward, "dx", [&](KernelRun& run) { return c.backward(run); });
}

TEST_P(Magnitude, OfSwigluAndItsGradient) {
    const auto [N, F, t] = GetParam();
    const ops::SwigluCase c{N, F, t};
    expect_amax(swiglu_forward, "h", [&](KernelRun& run) { return c.forward(run); });
    expect_largest(
        [&](KernelRun& run) {
            SwigluBackward a = c.backward(run, /*writes_h=*/true, /*in_place=*/true);
            a.amax = slot(run, "amax"), a.h_amax = slot(run, "h amax");
            swiglu_backward(run.stream(), a);
        },
        {{"amax", "dgate_up"}, {"h amax", "h"}});
}

// One row of a warp, several rows in a thread block, several warps on a row, lengths that no vector divides.
INSTANTIATE_TEST_SUITE_P(Shapes, Magnitude,
                         testing::Values(Shape{1, 8, DType::bf16}, Shape{70, 33, DType::bf16},
                                         Shape{9, 1536, DType::bf16}, Shape{5, 344, DType::f32},
                                         Shape{6, 264, DType::f16}, Shape{3, 8200, DType::bf16}));

// Magnitudes of whole rows: of the heads that are rotated, and of those that follow, which are most or few.
TEST(Magnitude, OfRotatedRows) {
    for (const DType t : {DType::bf16, DType::f16, DType::f32})
        for (const auto& [N, heads, others, D] :
             {std::array<int64_t, 4>{70, 9, 3, 64}, {3, 1, 9, 64}, {1, 12, 0, 128}, {5, 3, 5, 6}}) {
            const ops::RopeCase c{N, N, heads, D, others * D, t};
            expect_amax(rope, "x", [&](KernelRun& run) { return c.args(run, /*inverse=*/true); });
        }
}

// Likewise with a norm of each head, and of all heads together.
TEST(Magnitude, OfNormedRows) {
    for (const DType t : {DType::bf16, DType::f16, DType::f32})
        for (const bool together : {false, true})
            for (const auto& [heads, others, D] : {std::array<int64_t, 3>{4, 2, 64}, {2, 9, 64}, {3, 3, 6}}) {
                const ops::QkNormCase c{19, 19, heads, heads, D, others * D, t, t, false, false, together};
                expect_amax(qk_norm_backward, "dx", [&](KernelRun& run) { return c.backward(run); });
            }
}

// Each head size has a kernel of its own, and reads its output tile again for this.
TEST(Magnitude, OfAnAttentionsOutput) {
    for (const AttentionKernels kernels : {AttentionKernels::fma, AttentionKernels::mma, AttentionKernels::wgmma})
        for (const DType t : {DType::bf16, DType::f16, DType::f32})
            for (const int64_t D : {64, 80, 96, 128, 200}) {
                const int64_t B = D == 64 ? 2 : 1;
                const ops::AttentionCase c{B, 37, 37, 2 * B, B, D, t};
                expect_amax(attention_forward, "o", [&](KernelRun& run) {
                    AttentionForward a = c.forward(run);
                    a.shape.fastest = kernels;
                    return a;
                });
            }
}

// The slot keeps its value where it is larger; a NaN is above all numbers (a maximum by comparison drops it).
TEST(Magnitude, JoinsWhatIsThereAndSeesNaN) {
    const auto op = [](float before, float bad) {
        return [=](KernelRun& run) {
            Data gate_up = normal(2 * 64 * 40, DType::bf16, 1);
            if (bad != 0) gate_up.set(2 * 40 + 5, bad);
            SwigluForward a;
            a.h = run.out("h", 64 * 40, DType::bf16);
            a.gate_up = run.input(gate_up);
            a.N = 64, a.F = 40, a.dtype = DType::bf16;
            a.amax = slot(run, "amax", before);
            swiglu_forward(run.stream(), a);
        };
    };
    expect_largest(op(1e6f, 0), {{"amax", "h"}}, 1e6f);
    for (const Device& device : both_devices()) {
        EXPECT_TRUE(std::isnan(run_on(device, op(0, NAN)).at("amax").values[0])) << device.name();
        EXPECT_EQ(run_on(device, op(0, INFINITY)).at("amax").values[0], double(INFINITY)) << device.name();
    }
}

}  // namespace
}  // namespace rz::test
