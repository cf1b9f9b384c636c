// RMSNorm: CUDA kernels against the CPU op.
#include "kernels/rmsnorm.h"
#include "kernels/runtime/context.h"
#include "test/kernels/kernel_test.h"
#include "test/kernels/runs_source.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, C;
    DType dtype, grad_dtype;
    bool residual;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.N << "x" << c.C << "_" << name_of(c.dtype) << "_grad_" << name_of(c.grad_dtype)
               << (c.residual ? "_residual" : "");
}

class Rmsnorm : public testing::TestWithParam<Case> {};

// A row sum of C fp32 terms, in another order on each side, is off by at most (log2(C) + C / threads) roundings: for C
// up to 106504 here by less than 2^-17 of itself. That moves rstd by half as much; then come two products and one
// rounding to dtype, which may fall on the other side of a boundary (one ulp).
constexpr double kSum = 1.0 / (1 << 17);

TEST_P(Rmsnorm, ForwardMatchesCpu) {
    const Case c = GetParam();
    if (c.C > 50000 && runs_source()) GTEST_SKIP() << "for what nvcc makes of loops";
    const Data x = normal(c.N * c.C, c.dtype, 1), w = normal(c.C, c.dtype, 2, 0.3f, 1),
               residual = normal(c.N * c.C, c.dtype, 3);
    const auto op = [&](KernelRun& run) {
        RmsnormForward a;
        a.y = run.output("y", c.N * c.C, c.dtype);
        a.rstd = run.output<float>("rstd", c.N, DType::f32);
        a.x = run.input(x);
        a.w = run.input(w);
        if (c.residual) {
            a.residual = run.input(residual);
            a.sum = run.output("sum", c.N * c.C, c.dtype);
        }
        a.N = c.N, a.C = c.C, a.eps = 1e-5f, a.dtype = c.dtype;
        rmsnorm_forward(run.stream(), a);
    };
    // sum has no tolerance: one fp32 addition and one rounding are the same everywhere
    compare_on_devices(op, {{"y", {ulp(c.dtype) + kSum, 0}}, {"rstd", {kSum, 0}}});
}

TEST_P(Rmsnorm, ForwardInPlaceMatchesCpu) {
    const Case c = GetParam();
    if (c.C > 50000 && runs_source()) GTEST_SKIP() << "for what nvcc makes of loops";
    if (!c.residual) return;
    const Data x = normal(c.N * c.C, c.dtype, 1), w = normal(c.C, c.dtype, 2), residual = normal(c.N * c.C, c.dtype, 3);
    const auto op = [&](KernelRun& run) {
        RmsnormForward a;
        a.y = run.output("y", c.N * c.C, c.dtype);
        a.rstd = run.output<float>("rstd", c.N, DType::f32);
        a.x = run.input(x);
        a.w = run.input(w);
        a.residual = a.sum = run.inout("residual", residual);
        a.N = c.N, a.C = c.C, a.eps = 1e-5f, a.dtype = c.dtype;
        rmsnorm_forward(run.stream(), a);
    };
    compare_on_devices(op, {{"y", {ulp(c.dtype) + kSum, 0}}, {"rstd", {kSum, 0}}});
}

// dx: rstd (dy w - xhat mean) + dresidual has terms of a few units that may cancel, each off by 2^-17 of itself.
// dw: a sum of N products of about 1: N roundings at most, of a sum below 4 sqrt(N); then one rounding to grad_dtype.
TEST_P(Rmsnorm, BackwardMatchesCpu) {
    const Case c = GetParam();
    if (c.C > 50000) return;  // for the loops of the forward pass; scratch would be 100 MB
    const Data x = normal(c.N * c.C, c.dtype, 1, 2), w = normal(c.C, c.dtype, 2, 0.3f, 1),
               dy = normal(c.N * c.C, c.dtype, 3), dresidual = normal(c.N * c.C, c.dtype, 4),
               dw = normal(c.C, c.grad_dtype, 5), rstd = normal(c.N, DType::f32, 6, 0.05f, 0.5f);
    const auto op = [&](KernelRun& run) {
        RmsnormBackward a;
        a.dx = c.residual ? run.inout("dx", dresidual) : run.output("dx", c.N * c.C, c.dtype);
        a.dw = run.inout("dw", dw);
        a.dy = run.input(dy);
        a.x = run.input(x);
        a.w = run.input(w);
        a.rstd = run.input<float>(rstd);
        a.dresidual = c.residual ? a.dx : nullptr;
        a.scratch = static_cast<float*>(run.scratch(4 * rmsnorm_backward_scratch(c.C)));
        a.N = c.N, a.C = c.C, a.dtype = c.dtype, a.grad_dtype = c.grad_dtype;
        rmsnorm_backward(run.stream(), a);
    };
    const double n = double(c.N), dw_rounding = n * std::ldexp(4 * std::sqrt(n) + 4, -24);
    compare_on_devices(op, {{"dx", {ulp(c.dtype), 8 * kSum}}, {"dw", {ulp(c.grad_dtype), dw_rounding}}});
}

// The sum of dw, left for who adds it later; by a kernel that leaves multiprocessors to communication.
TEST_P(Rmsnorm, BackwardLeavesTheSumOfDw) {
    const Case c = GetParam();
    if (c.C > 50000) return;  // for the loops of the forward pass; scratch would be 100 MB
    const Data x = normal(c.N * c.C, c.dtype, 1, 2), w = normal(c.C, c.dtype, 2, 0.3f, 1),
               dy = normal(c.N * c.C, c.dtype, 3), rstd = normal(c.N, DType::f32, 6, 0.05f, 0.5f);
    const auto op = [&](KernelRun& run) {
        RmsnormBackward a;
        a.dx = run.output("dx", c.N * c.C, c.dtype);
        a.dw_sum = static_cast<float*>(run.output("dw_sum", c.C, DType::f32));
        a.dy = run.input(dy);
        a.x = run.input(x);
        a.w = run.input(w);
        a.rstd = run.input<float>(rstd);
        a.scratch = static_cast<float*>(run.scratch(4 * rmsnorm_backward_scratch(c.C)));
        a.N = c.N, a.C = c.C, a.dtype = c.dtype, a.grad_dtype = c.grad_dtype;
        rmsnorm_backward(run.stream(), a);
    };
    const double n = double(c.N);
    RankContext context;
    context.beside.left_free = 3;
    compare_on_devices(
        op,
        {{"dx", {ulp(c.dtype), 8 * kSum}}, {"dw_sum", {ulp(DType::f32), n * std::ldexp(4 * std::sqrt(n) + 4, -24)}}},
        &context);
}

// As many parts of dw as a GPU's multiprocessors make: the loop that adds them is unrolled by eight.
TEST(RmsnormParts, DwOfManyMatchesCpu) {
    struct Multiprocessors {  // the emulator's; a real device has what it has
        Multiprocessors() { setenv("SIMT_MULTIPROCESSORS", "32", 1); }
        ~Multiprocessors() { unsetenv("SIMT_MULTIPROCESSORS"); }
    } const many;
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
        const int64_t N = 600, C = 40;
        const Data x = normal(N * C, t, 1, 2), w = normal(C, t, 2, 0.3f, 1), dy = normal(N * C, t, 3),
                   dw = normal(C, t, 5), rstd = normal(N, DType::f32, 6, 0.05f, 0.5f);
        const auto op = [&](KernelRun& run) {
            RmsnormBackward a;
            a.dx = run.output("dx", N * C, t);
            a.dw = run.inout("dw", dw);
            a.dy = run.input(dy);
            a.x = run.input(x);
            a.w = run.input(w);
            a.rstd = run.input<float>(rstd);
            a.scratch = static_cast<float*>(run.scratch(4 * rmsnorm_backward_scratch(C)));
            a.N = N, a.C = C, a.dtype = a.grad_dtype = t;
            rmsnorm_backward(run.stream(), a);
        };
        const double n = double(N), dw_rounding = n * std::ldexp(4 * std::sqrt(n) + 4, -24);
        compare_on_devices(op, {{"dx", {ulp(t), 8 * kSum}}, {"dw", {ulp(t), dw_rounding}}});
    }
}
#ifdef SIMT_EMU
// The emulated GPU has four multiprocessors: each works on 16 parts at a time, four in a block.
TEST(RmsnormBesideCommunication, TakesTheOtherMultiprocessors) {
    const auto blocks = [](int left_free) {
        RankContext context;
        context.beside.left_free = left_free;
        const uint64_t before = simt::stats().blocks;
        run_on(Device{DeviceKind::cuda, 0, &context}, [](KernelRun& run) {
            const int64_t N = 300, C = 64;
            RmsnormBackward a;
            a.dx = run.output("dx", N * C, DType::f32);
            a.dw_sum = run.output<float>("dw_sum", C, DType::f32);
            a.dy = run.input(normal(N * C, DType::f32, 1));
            a.x = run.input(normal(N * C, DType::f32, 2));
            a.w = run.input(normal(C, DType::f32, 3));
            a.rstd = run.input<float>(normal(N, DType::f32, 4));
            a.scratch = static_cast<float*>(run.scratch(4 * rmsnorm_backward_scratch(C)));
            a.N = N, a.C = C, a.dtype = a.grad_dtype = DType::f32;
            rmsnorm_backward(run.stream(), a);
        });
        return int(simt::stats().blocks - before);
    };
    const int all = blocks(0);
    for (const int left_free : {1, 2, 3}) EXPECT_EQ(all - blocks(left_free), 4 * left_free);
    EXPECT_EQ(blocks(4), blocks(3)) << "at least one";
}
#endif

constexpr auto f32 = DType::f32, bf16_ = DType::bf16, f16_ = DType::f16;
INSTANTIATE_TEST_SUITE_P(Shapes, Rmsnorm,
                         testing::Values(Case{1, 8, bf16_, f32, false},       // one row, one vector
                                         Case{3, 1, f32, f32, true},          // one column
                                         Case{5, 6, bf16_, bf16_, true},      // no vectors
                                         Case{7, 576, bf16_, f32, true},      // a warp per row, ragged last block
                                         Case{2, 577, f32, f32, false},       // odd width: scalars, several warps
                                         Case{300, 64, bf16_, bf16_, false},  // more rows than parts of dw
                                         Case{41, 2048, bf16_, bf16_, true},  //
                                         Case{129, 96, f32, f32, true},       //
                                         Case{3, 4096, bf16_, bf16_, true},   // a block per row
                                         Case{2, 4104, f16_, f32, true},      //
                                         Case{5, 6, f16_, f16_, true},        //
                                         Case{3, 8200, f16_, f16_, true},     //
                                         Case{9, 4100, f32, f32, true},  // backward: beyond the registers, read again
                                         Case{10, 8200, bf16_, f32, false},   //
                                         Case{5, 33288, bf16_, bf16_, true},  // forward too
                                         Case{5, 33288, f16_, f16_, true}, Case{2, 16648, f32, f32, true},
                                         Case{2, 4099, bf16_, f32, true},  // the same with scalars
                                         Case{2, 4099, f16_, f16_, true}, Case{2, 5701, f32, f32, true},
                                         // twice what such loops take where they are unrolled by four
                                         Case{1, 106504, bf16_, bf16_, true}, Case{1, 106504, f16_, f32, true},
                                         Case{1, 53252, f32, f32, true}, Case{1, 106504, bf16_, f32, false},
                                         Case{1, 106504, f16_, f16_, false}, Case{1, 53252, f32, f32, false},
                                         Case{1, 13319, bf16_, f32, true}, Case{1, 13319, f16_, f16_, true},
                                         Case{1, 13319, f32, f32, true}, Case{1, 13319, bf16_, f32, false},
                                         Case{1, 13319, f16_, f16_, false}, Case{1, 13319, f32, f32, false},
                                         // more rows than parts
                                         Case{130, 5, f16_, f16_, true}, Case{130, 16, f16_, f32, false},
                                         Case{130, 5, f32, f32, false}));

}  // namespace
}  // namespace rz::test
