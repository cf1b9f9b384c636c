// AdamW: CUDA kernel against the CPU op.
#include "kernels/adamw.h"
#include "test/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t n, first;
    DType param_dtype, grad_dtype;
    int64_t offset;  // the range begins this many elements into its buffers: a slice may lie anywhere
};

class AdamWTest : public testing::TestWithParam<Case> {};

AdamW make(KernelRun& run, const Case& c, float grad_scale) {
    const int64_t n = c.n + c.offset;
    const Data w = normal(n, DType::f32, 1), m = normal(n, DType::f32, 2, 0.1f), grad = normal(n, c.grad_dtype, 4);
    Data v = normal(n, DType::f32, 3, 0.1f), param = zeros(n, c.param_dtype);
    for (int64_t i = 0; i < n; ++i) v.set(i, float(v.at(i) * v.at(i))), param.set(i, float(w.at(i)));
    AdamW a;
    a.master = run.inout<float>("master", w) + c.offset;
    a.m = run.inout<float>("m", m) + c.offset;
    a.v = run.inout<float>("v", v) + c.offset;
    a.param = c.param_dtype == DType::f32 ? static_cast<void*>(a.master)
                                          : run.inout<char>("param", param) + c.offset * size_of(c.param_dtype);
    a.grad = run.input<char>(grad) + c.offset * size_of(c.grad_dtype);
    a.grad_scale = run.input<float>(std::vector<float>{grad_scale});
    // Segments that end inside a vector, are one element long, or lie before the range
    std::vector<int64_t> ends = {c.first / 2, c.first + 1, c.first + 2, c.first + 7, c.first + c.n / 2 + 1};
    ends.push_back(c.first + c.n + 3);
    std::sort(ends.begin(), ends.end());
    a.segment_end = run.input<int64_t>(ends);
    a.decays = run.input<uint8_t>(std::vector<uint8_t>{1, 0, 1, 0, 1, 0});
    a.segments = int64_t(ends.size());
    a.n = c.n, a.first = c.first;
    a.lr = 0.01f, a.beta1 = 0.9f, a.beta2 = 0.95f, a.eps = 1e-8f, a.weight_decay = 0.1f, a.step = 3;
    a.param_dtype = c.param_dtype, a.grad_dtype = c.grad_dtype;
    return a;
}

// m: two products and a sum of values below 1 and 5. v: the same, positive, so relative. w: m / sqrt(v) has a few
// relative roundings, and is below 3 / sqrt(1 - beta2) = 14 except where v was tiny, in which case its own relative
// error counts; lr scales it. param: one rounding more, or one ulp off.
TEST_P(AdamWTest, Update) {
    const Case c = GetParam();
    const auto op = [&](KernelRun& run) { adamw(run.stream(), make(run, c, 0.7f)); };
    const double eps = std::ldexp(1.0, -24);
    std::map<std::string, Tolerance> tolerances = {
        {"m", {2 * eps, 8 * eps}}, {"v", {8 * eps, 0}}, {"master", {4 * eps, 0.01 * 14 * 32 * eps}}};
    if (c.param_dtype != DType::f32) tolerances["param"] = {ulp(c.param_dtype), 0.01 * 14 * 32 * eps};
    compare_on_devices(op, tolerances);
}

TEST_P(AdamWTest, BadStepWritesNothing) {
    const Case c = GetParam();
    for (const float bad : {NAN, INFINITY}) {
        const auto op = [&](KernelRun& run) { adamw(run.stream(), make(run, c, bad)); };
        compare_on_devices(op, {});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AdamWTest,
                         testing::Values(Case{1, 0, DType::f32, DType::f32, 0},            //
                                         Case{40, 8, DType::bf16, DType::bf16, 0},         //
                                         Case{9001, 1 << 20, DType::bf16, DType::f32, 0},  // several blocks, ragged
                                         Case{4103, 5, DType::f32, DType::f32, 0},         //
                                         Case{333, 100, DType::bf16, DType::bf16, 3},      // unaligned: scalars
                                         Case{100, 9, DType::f16, DType::f32, 0},
                                         Case{64, 4, DType::f32, DType::bf16, 0}));

}  // namespace
}  // namespace rz::test
