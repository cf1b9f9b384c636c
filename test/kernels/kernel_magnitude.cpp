// Ops that find the magnitude of what they store (kernels/magnitude.h): the largest of the stored numbers, to the bit.
#include "kernels/attention/attention.h"
#include "kernels/qk_norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

constexpr float kBefore = 1e-3f;  // what stands in the slot already: less than what comes

uint32_t* slot(KernelRun& run, const char* name, float before = kBefore) {
    return static_cast<uint32_t*>(run.inout(name, raw(std::vector<float>{before})));
}

// On each device: what it says of what it stored. Results of two devices may differ in a last bit, so magnitudes may.
void expect_largest(const Op& op, const std::vector<std::pair<std::string, std::string>>& pairs,
                    float before = kBefore) {
    for (const Device device : {Device{DeviceKind::cpu, 0}, Device{DeviceKind::cuda, 0}}) {
        if (device.is_cuda() && cuda_device_count() == 0) continue;
        const auto got = run_on(device, op);
        for (const auto& [name, of] : pairs) {
            double most = double(before);
            for (const double v : got.at(of).values) most = std::max(most, std::abs(v));
            EXPECT_EQ(got.at(name).values[0], most) << of << " on " << device.name();
        }
    }
}

struct Shape {
    int64_t rows, columns;
    DType dtype;
};

class Magnitude : public testing::TestWithParam<Shape> {};

TEST_P(Magnitude, OfANorm) {
    const auto [N, C, t] = GetParam();
    for (const bool with_residual : {false, true}) {
        const auto op = [&](KernelRun& run) {
            RmsnormForward a;
            a.y = run.output("y", N * C, t);
            a.rstd = run.output<float>("rstd", N, DType::f32);
            a.x = run.input(normal(N * C, t, 1));
            a.w = run.input(normal(C, t, 2));
            if (with_residual) a.residual = a.sum = run.inout("sum", normal(N * C, t, 3));
            a.N = N, a.C = C, a.eps = 1e-5f, a.dtype = t;
            a.amax = slot(run, "amax");
            rmsnorm_forward(run.stream(), a);
        };
        expect_largest(op, {{"amax", "y"}});
    }
}

TEST_P(Magnitude, OfANormsGradient) {
    const auto [N, C, t] = GetParam();
    const auto op = [&](KernelRun& run) {
        RmsnormBackward a;
        a.dx = run.inout("dx", normal(N * C, t, 4));
        a.dresidual = a.dx;
        a.dw = run.inout("dw", normal(C, t, 5));
        a.dy = run.input(normal(N * C, t, 3));
        a.x = run.input(normal(N * C, t, 1, 2));
        a.w = run.input(normal(C, t, 2));
        a.rstd = run.input<float>(normal(N, DType::f32, 6, 0.05f, 0.5f));
        a.scratch = static_cast<float*>(run.scratch(4 * rmsnorm_backward_scratch(C)));
        a.N = N, a.C = C, a.dtype = a.grad_dtype = t;
        a.amax = slot(run, "amax");
        rmsnorm_backward(run.stream(), a);
    };
    expect_largest(op, {{"amax", "dx"}});
}

TEST_P(Magnitude, OfSwigluAndItsGradient) {
    const auto [N, F, t] = GetParam();
    expect_largest(
        [&](KernelRun& run) {
            SwigluForward a;
            a.h = run.output("h", N * F, t);
            a.gate_up = run.input(normal(2 * N * F, t, 1));
            a.N = N, a.F = F, a.dtype = t;
            a.amax = slot(run, "amax");
            swiglu_forward(run.stream(), a);
        },
        {{"amax", "h"}});
    expect_largest(
        [&](KernelRun& run) {
            SwigluBackward a;
            a.dgate_up = run.inout("dgate_up", normal(2 * N * F, t, 1));
            a.gate_up = a.dgate_up;
            a.h = run.inout("h", normal(N * F, t, 2, 30));
            a.dh = a.h;
            a.N = N, a.F = F, a.dtype = t;
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
            std::vector<float> cosines(size_t(N * D / 2)), sines(cosines.size());
            rope_tables(cosines.data(), sines.data(), N, D, 10000, {});
            const auto op = [&, N = N, heads = heads, others = others, D = D](KernelRun& run) {
                Rope a;
                a.x = run.inout("x", normal(N * (heads + others) * D, t, 1));
                a.cos_table = run.input<float>(cosines);
                a.sin_table = run.input<float>(sines);
                a.N = a.T = N, a.heads = heads, a.D = D, a.row_stride = (heads + others) * D;
                a.inverse = true, a.dtype = t;
                a.amax = slot(run, "amax");
                rope(run.stream(), a);
            };
            expect_largest(op, {{"amax", "x"}});
        }
}

// Likewise with a norm of each head, and of all heads together.
TEST(Magnitude, OfNormedRows) {
    for (const DType t : {DType::bf16, DType::f16, DType::f32})
        for (const bool together : {false, true})
            for (const auto& [heads, others, D] : {std::array<int64_t, 3>{4, 2, 64}, {2, 9, 64}, {3, 3, 6}}) {
                constexpr int64_t N = 19;
                const int64_t row = (2 * heads + others) * D, gains = together ? 2 * heads : 2;
                const auto op = [&, heads = heads, D = D](KernelRun& run) {
                    QkNormBackward b{
                        .dx = run.inout("dx", normal(N * row, t, 4)),
                        .kept = run.input(normal(N * 2 * heads * D, t, 3)),
                        .dw = run.inout("dw", normal(gains * D, t, 5)),
                        .scratch = static_cast<float*>(run.scratch(4 * qk_norm_backward_scratch(D, gains))),
                        .grad_dtype = t};
                    b.norm = {.N = N, .T = N, .heads = heads, .kv_heads = heads, .D = D, .row_stride = row};
                    b.norm.wq = run.input(normal(gains / 2 * D, t, 1)),
                    b.norm.wk = run.input(normal(gains / 2 * D, t, 2));
                    b.norm.eps = 1e-6f, b.norm.dtype = t;
                    if (together) {
                        b.norm.squares = run.input<float>(normal(N * 2, DType::f32, 6, 1, 90));
                        b.dots = run.input<float>(normal(N * 2, DType::f32, 7));
                    }
                    b.amax = slot(run, "amax");
                    qk_norm_backward(run.stream(), b);
                };
                expect_largest(op, {{"amax", "dx"}});
            }
}

// Each head size has a kernel of its own, and reads its output tile again for this.
TEST(Magnitude, OfAnAttentionsOutput) {
    for (const AttentionKernels kernels : {AttentionKernels::fma, AttentionKernels::mma, AttentionKernels::wgmma})
        for (const DType t : {DType::bf16, DType::f16, DType::f32})
            for (const int64_t D : {64, 80, 96, 128, 200}) {
                const auto op = [&](KernelRun& run) {
                    AttentionForward a;
                    AttentionShape& s = a.shape;
                    s.B = D == 64 ? 2 : 1;
                    s.Tq = s.Tk = 37, s.H = 2 * s.B, s.K = s.B, s.D = D, s.dtype = t, s.scale = 0.125f;
                    s.q_row = s.o_row = s.H * s.D, s.kv_row = s.K * s.D;
                    s.q_batch = s.o_batch = s.Tq * s.q_row, s.kv_batch = s.Tk * s.kv_row;
                    s.fastest = kernels;
                    a.o = run.output("o", s.B * s.o_batch, t);
                    a.lse = run.output<float>("lse", s.B * s.H * s.Tq, DType::f32);
                    a.q = run.input(normal(s.B * s.q_batch, t, 1));
                    a.k = run.input(normal(s.B * s.kv_batch, t, 2));
                    a.v = run.input(normal(s.B * s.kv_batch, t, 3));
                    a.amax = slot(run, "amax");
                    attention_forward(run.stream(), a);
                };
                expect_largest(op, {{"amax", "o"}});
            }
}

// The slot keeps its value where it is larger; a NaN is above all numbers (a maximum by comparison drops it).
TEST(Magnitude, JoinsWhatIsThereAndSeesNaN) {
    const auto op = [](float before, float bad) {
        return [=](KernelRun& run) {
            Data gate_up = normal(2 * 64 * 40, DType::bf16, 1);
            if (bad != 0) gate_up.set(2 * 40 + 5, bad);
            SwigluForward a;
            a.h = run.output("h", 64 * 40, DType::bf16);
            a.gate_up = run.input(gate_up);
            a.N = 64, a.F = 40, a.dtype = DType::bf16;
            a.amax = slot(run, "amax", before);
            swiglu_forward(run.stream(), a);
        };
    };
    expect_largest(op(1e6f, 0), {{"amax", "h"}}, 1e6f);
    for (const Device device : {Device{DeviceKind::cpu, 0}, Device{DeviceKind::cuda, 0}}) {
        if (device.is_cuda() && cuda_device_count() == 0) continue;
        EXPECT_TRUE(std::isnan(run_on(device, op(0, NAN)).at("amax").values[0])) << device.name();
        EXPECT_EQ(run_on(device, op(0, INFINITY)).at("amax").values[0], double(INFINITY)) << device.name();
    }
}

}  // namespace
}  // namespace rz::test
