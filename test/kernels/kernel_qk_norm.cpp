// RMSNorm of heads, or of all of them together, with RoPE: CUDA kernels against the CPU op.
#include "kernels/qk_norm.h"
#include "kernels/rope.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, T, heads, kv_heads, D, gap;
    DType dtype, grad_dtype;
    bool rotates = true, own = false;  // own: every row has a position of its own
    int64_t ranks = 0, sharers = 1;    // > 0: all heads together
};

class QkNormTest : public testing::TestWithParam<Case> {
   protected:
    const Case c = GetParam();
    const int64_t all = (c.heads + c.kv_heads) * c.D, row = all + c.gap;
    const int64_t gains = c.ranks > 0 ? c.heads + c.kv_heads : 2;

    // Sums of the ranks over all heads: near `each` for each element
    const float* sums(KernelRun& run, float each, uint64_t seed) const {
        Data v = normal(c.ranks * c.N * 2, DType::f32, seed, 0.2f * each, each);
        for (int64_t i = 0; i < v.size(); ++i) v.set(i, float(v.at(i) * double((i % 2 ? c.kv_heads : c.heads) * c.D)));
        return run.input<float>(v);
    }

    QkNorm norm(KernelRun& run) const {
        const int64_t positions = 3 + c.T;
        QkNorm a;
        a.N = c.N, a.T = c.T, a.heads = c.heads, a.kv_heads = c.kv_heads, a.D = c.D, a.row_stride = row;
        a.wq = run.input(normal(c.D * (c.ranks > 0 ? c.heads : 1), c.dtype, 1, 0.3f, 1));
        a.wk = run.input(normal(c.D * (c.ranks > 0 ? c.kv_heads : 1), c.dtype, 2, 0.3f, 1));
        if (c.ranks > 0) a.squares = sums(run, 1, 6), a.ranks = c.ranks, a.sharers = c.sharers;
        a.first_position = 3, a.eps = 1e-5f, a.dtype = c.dtype;
        if (!c.rotates) return a;
        std::vector<float> cosines(size_t(positions * c.D / 2)), sines(cosines.size());
        rope_tables(cosines.data(), sines.data(), positions, c.D, 10000, {});
        a.cos_table = run.input<float>(cosines);
        a.sin_table = run.input<float>(sines);
        std::vector<int32_t> own;
        for (int64_t i = 0; i < c.N; ++i) own.push_back(int32_t(i * 7 % positions));
        if (c.own) a.positions = run.input<int32_t>(own);
        return a;
    }
};

// A mean of D squares in another order is off by less than 2^-18 of itself, so rstd by 2^-19; then come four products
// and a sum of two of them, values below 16, and one rounding to dtype.
TEST_P(QkNormTest, ForwardMatchesCpu) {
    for (const bool keeps : {true, false}) {
        const auto op = [&](KernelRun& run) {
            qk_norm_forward(run.stream(),
                            {.x = run.inout("x", normal(c.N * row, c.dtype, 3)),  // what lies between the rows stays
                             .kept = keeps ? run.output("kept", c.N * all, c.dtype) : nullptr,
                             .norm = norm(run)});
        };
        if (keeps)
            compare_on_devices(op, {{"x", {ulp(c.dtype), 16 * std::ldexp(1.0, -18)}}, {"kept", {}}});
        else
            compare_on_devices(op, {{"x", {ulp(c.dtype), 16 * std::ldexp(1.0, -18)}}});
    }
}

// dx has terms of a few units that may cancel, each off by 2^-17 of itself; dw is a sum of N * heads products near 1.
TEST_P(QkNormTest, BackwardMatchesCpu) {
    for (const bool adds : {true, false}) {
        const auto op = [&](KernelRun& run) {
            QkNormBackward b{.dx = run.inout("dx", normal(c.N * row, c.dtype, 4)),
                             .kept = run.input(normal(c.N * all, c.dtype, 3)),
                             .scratch = static_cast<float*>(run.scratch(4 * qk_norm_backward_scratch(c.D, gains))),
                             .grad_dtype = c.grad_dtype,
                             .norm = norm(run)};
            if (adds)
                b.dw = run.inout("dw", normal(gains * c.D, c.grad_dtype, 5));
            else
                b.dw_sum = run.output<float>("dw", gains * c.D, DType::f32);
            if (c.ranks > 0) b.dots = sums(run, 0.5f, 7);
            qk_norm_backward(run.stream(), b);
        };
        const double n = double(c.N * c.heads), sum = n * std::ldexp(4 * std::sqrt(n) + 4, -24) + std::ldexp(16.0, -17);
        compare_on_devices(op, {{"dx", {ulp(c.dtype), 16 * std::ldexp(1.0, -17)}},
                                {"dw", {ulp(adds ? c.grad_dtype : DType::f32), sum}}});
    }
}

// Sums of heads * D products, which may cancel: each addition is off by 2^-24 of what there is then.
TEST_P(QkNormTest, SumsMatchCpu) {
    for (const bool squares : {true, false}) {
        if (!squares && c.ranks == 0) continue;
        const auto op = [&](KernelRun& run) {
            QkNorm a = norm(run);
            if (squares) a.squares = nullptr;
            qk_sums(run.stream(), {.sums = run.output<float>("sums", 2 * c.N, DType::f32),
                                   .x = run.input(normal(c.N * (squares ? row : all), c.dtype, 3)),
                                   .dy = squares ? nullptr : run.input(normal(c.N * row, c.dtype, 4)),
                                   .norm = a});
        };
        const double n = double(c.heads * c.D);
        compare_on_devices(op, {{"sums", {0, n * std::ldexp(4 * std::sqrt(n) + 16, -24)}}});
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
