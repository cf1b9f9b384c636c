// AdamW: CUDA kernel against the CPU op.
#include "kernels/adamw.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t n, first;
    DType param_dtype, grad_dtype;
    int64_t offset;  // the range begins this many elements into its buffers: a slice may lie anywhere
    DType master_dtype = DType::f32, adam_dtype = DType::f32;
    bool crowded = false;  // many segments, most of them empty, end where a thread's rounds begin
    bool apart = false;    // param is not master, though the types are the same
    bool has_param() const { return apart || param_dtype != master_dtype; }
};

class AdamWTest : public testing::TestWithParam<Case> {};

AdamW make(KernelRun& run, const Case& c, float grad_scale) {
    const int64_t n = c.n + c.offset;
    const Data w = normal(n, c.master_dtype, 1), m = normal(n, c.adam_dtype, 2, 0.1f),
               grad = normal(n, c.grad_dtype, 4);
    Data v = normal(n, c.adam_dtype, 3, 0.1f), param = zeros(n, c.param_dtype);
    for (int64_t i = 0; i < n; ++i) v.set(i, float(v.at(i) * v.at(i))), param.set(i, float(w.at(i)));
    AdamW a;
    const auto from_offset = [&](char* p, DType t) { return p + c.offset * size_of(t); };
    a.master = from_offset(run.inout("master", w), c.master_dtype);
    a.m = from_offset(run.inout("m", m), c.adam_dtype);
    a.v = from_offset(run.inout("v", v), c.adam_dtype);
    a.param = c.has_param() ? from_offset(run.inout("param", param), c.param_dtype) : a.master;
    a.grad = from_offset(run.input(grad), c.grad_dtype);
    a.grad_scale = run.values<float>({grad_scale});
    // Segments that end inside a vector, are one element long, or lie before the range
    std::vector<int64_t> ends = {c.first / 2, c.first + 1, c.first + 2, c.first + 7, c.first + c.n / 2 + 1};
    ends.push_back(c.first + c.n + 3);
    if (c.crowded)
        for (const int64_t round : {0, 256, 1024})
            for (int64_t at = round + 1; at <= round + 16; ++at)
                for (int n = 0; n < 9; ++n) ends.push_back(c.first + std::min(at, c.n));
    std::sort(ends.begin(), ends.end());
    a.segment_end = run.values(ends);
    std::vector<uint8_t> decays;
    for (size_t i = 0; i < ends.size(); ++i) decays.push_back(i % 2 == 0);
    a.decays = run.values(decays);
    a.segments = int64_t(ends.size());
    a.n = c.n, a.first = c.first;
    a.lr = 0.01f, a.beta1 = 0.9f, a.beta2 = 0.95f, a.eps = 1e-8f, a.weight_decay = 0.1f, a.step = 3;
    a.param_dtype = c.param_dtype, a.grad_dtype = c.grad_dtype;
    a.master_dtype = c.master_dtype, a.adam_dtype = c.adam_dtype, a.seed = 12345;
    return a;
}

// m: two products and a sum of values below 1 and 5. v: the same, positive, so relative. w: m / sqrt(v) has a few
// relative roundings, and is below 3 / sqrt(1 - beta2) = 14 except where v was tiny, in which case its own relative
// error counts; lr scales it. param, and what is rounded by chance: one ulp off where fp32 results that differ in their
// last bits fall on two sides of a boundary.
void check_update(const Case& c) {
    const auto op = [&](KernelRun& run) { adamw(run.stream(), make(run, c, 0.7f)); };
    const double eps = std::ldexp(1.0, -24);
    std::map<std::string, Tolerance> tolerances = {
        {"m", {2 * eps, 8 * eps}}, {"v", {8 * eps, 0}}, {"master", {4 * eps, 0.01 * 14 * 32 * eps}}};
    if (c.adam_dtype != DType::f32)
        for (const char* name : {"m", "v"}) tolerances[name].relative = ulp(c.adam_dtype);
    if (c.master_dtype != DType::f32) tolerances["master"].relative = ulp(c.master_dtype);
    if (c.has_param()) tolerances["param"] = {ulp(c.param_dtype), 0.01 * 14 * 32 * eps};
    compare_on_devices(op, tolerances);
}

TEST_P(AdamWTest, UpdateMatchesCpu) { check_update(GetParam()); }

// Several vectors per thread, what is left after them, and elements one by one, across the ends of segments
TEST(AdamWTypes, UpdateMatchesCpuForEveryCombination) {
    std::string why;
    if (cuda_device_count(&why) == 0) GTEST_SKIP() << why;
    for (const DType param : {DType::f32, DType::bf16, DType::f16})
        for (const DType grad : {DType::f32, DType::bf16, DType::f16})
            for (const DType adam : {DType::f32, DType::bf16})
                for (const DType master : {DType::f32, DType::bf16}) {
                    if (master == DType::bf16 && param != DType::bf16) continue;
                    SCOPED_TRACE(std::string(name_of(param)) + " " + name_of(grad) + " " + name_of(adam) + " " +
                                 name_of(master));
                    check_update({2051, 8, param, grad, 0, master, adam, true});
                    check_update({600, 9, param, grad, 1, master, adam, true});  // one by one
                    if (param != DType::f32) continue;
                    check_update({2051, 8, param, grad, 0, master, adam, true, true});
                    check_update({600, 9, param, grad, 1, master, adam, true, true});
                }
}

// The tolerance above would pass any way of rounding. Both devices must draw the same chance for the same element: then
// a value rounds apart only where the boundary lies between two fp32 results 8 units of 2^-24 apart or less, of the
// 2^16 units between bf16 neighbours. That is one in 8192; other chances would round a third of the elements apart.
TEST(AdamWRounding, ChanceIsTheSameOnBothDevices) {
    std::string why;
    if (cuda_device_count(&why) == 0) GTEST_SKIP() << why;
    for (const Case& c : {Case{20000, 400, DType::bf16, DType::bf16, 0, DType::bf16, DType::bf16},
                          Case{20000, 404, DType::bf16, DType::bf16, 0, DType::bf16, DType::bf16},  // half a vector on
                          Case{20000, 401, DType::bf16, DType::bf16, 0, DType::bf16, DType::bf16},
                          Case{20000, 400, DType::bf16, DType::bf16, 0, DType::f32, DType::bf16}}) {  // moments alone
        const auto op = [&](KernelRun& run) { adamw(run.stream(), make(run, c, 0.7f)); };
        const auto want = run_on(kCpu, op), got = run_on(kGpu, op);
        for (const std::string name : {"master", "m", "v"}) {
            if (name == "master" && c.master_dtype == DType::f32) continue;
            const auto &a = want.at(name).values, &b = got.at(name).values;
            int64_t apart = 0;
            for (size_t i = 0; i < a.size(); ++i) apart += a[i] != b[i];
            EXPECT_LE(apart, 20) << name;
        }
    }
}

TEST_P(AdamWTest, ABadStepWritesNothing) {
    const Case c = GetParam();
    for (const float bad : {NAN, INFINITY})
        compare_on_devices([&](KernelRun& run) { adamw(run.stream(), make(run, c, bad)); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, AdamWTest,
                         testing::Values(Case{1, 0, DType::f32, DType::f32, 0},            //
                                         Case{40, 8, DType::bf16, DType::bf16, 0},         //
                                         Case{9001, 1 << 20, DType::bf16, DType::f32, 0},  // several blocks, ragged
                                         Case{4103, 5, DType::f32, DType::f32, 0},         //
                                         Case{333, 100, DType::bf16, DType::bf16, 3},      // unaligned: scalars
                                         Case{100, 9, DType::f16, DType::f32, 0},
                                         Case{64, 4, DType::f32, DType::bf16, 0},
                                         // bf16 moments, then bf16 masters too; vectors, and ranges inside a group of
                                         // random words
                                         Case{5003, 16, DType::bf16, DType::bf16, 0, DType::f32, DType::bf16},
                                         Case{301, 6, DType::f32, DType::f32, 0, DType::f32, DType::bf16},
                                         Case{5003, 1 << 20, DType::bf16, DType::bf16, 0, DType::bf16, DType::bf16},
                                         Case{333, 7, DType::bf16, DType::f32, 3, DType::bf16, DType::bf16},
                                         Case{4101, 12, DType::bf16, DType::bf16, 0, DType::bf16, DType::bf16},
                                         Case{130, 8, DType::bf16, DType::bf16, 0, DType::bf16, DType::f32}));

}  // namespace
}  // namespace rz::test
