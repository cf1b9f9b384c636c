// Muon: CUDA kernels against the CPU ops.
#include "kernels/gemm/newton_schulz.h"
#include "kernels/muon.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t n, first, offset;  // the range begins `offset` elements into its buffers
    DType grad, out, m, param, master;

    // Normal numbers of the whole buffer, from where the range begins
    char* in(KernelRun& run, DType t, uint64_t seed) const {
        char* p = run.in(n + offset, t, seed);
        return p + offset * size_of(t);
    }
    char* inout(KernelRun& run, const char* name, DType t, uint64_t seed) const {
        char* p = run.inout(name, n + offset, t, seed);
        return p + offset * size_of(t);
    }
};
constexpr DType f32 = DType::f32, bf16_ = DType::bf16, f16 = DType::f16;

// Every type of each array, in vectors and a rest; then one by one.
std::vector<Case> cases() {
    constexpr std::pair<DType, DType> kWeights[] = {{f32, f32}, {bf16_, f32}, {f16, f32}, {bf16_, bf16_}};
    std::vector<Case> all;
    for (const DType out : {f32, bf16_})
        for (const DType m : {f32, bf16_})
            for (const DType grad : {f32, bf16_, f16}) {
                const auto [param, master] = kWeights[all.size() % 4];
                all.push_back({2051, 8, 0, grad, out, m, param, master});
            }
    all.push_back({600, 9, 1, f32, f32, f32, f32, f32});
    all.push_back({1, 0, 0, f16, bf16_, f32, f16, f32});
    all.push_back({333, 7, 3, bf16_, f32, bf16_, bf16_, bf16_});
    return all;
}

// Two products and a sum of values below 5; what is rounded to bf16, or by chance, may fall on the other side.
TEST(MuonKernels, MomentumMatchesCpu) {
    for (const Case& c : cases())
        for (const float scale : {0.7f, NAN}) {
            const auto op = [&](KernelRun& run) {
                muon_momentum(run.stream(), {.out = c.inout(run, "u", c.out, 3),
                                             .m = c.inout(run, "m", c.m, 2),
                                             .grad = c.in(run, c.grad, 1),
                                             .grad_scale = run.values<float>({scale}),
                                             .n = c.n,
                                             .first = c.first,
                                             .momentum = 0.95f,
                                             .step = 3,
                                             .seed = 12345,
                                             .out_dtype = c.out,
                                             .grad_dtype = c.grad,
                                             .m_dtype = c.m});
            };
            const double eps = std::ldexp(1.0, -24);
            std::map<std::string, Tolerance> tolerances = {{"u", {2 * eps, 16 * eps}}, {"m", {2 * eps, 8 * eps}}};
            if (c.out != f32) tolerances["u"].relative = ulp(c.out);
            if (c.m != f32) tolerances["m"].relative = ulp(c.m);
            compare_on_devices(op, tolerances);
        }
}

TEST(MuonKernels, NormaliseMatchesCpu) {
    for (const DType t : {f32, bf16_})
        for (const int64_t offset : {0, 3})
            for (const float norm : {41.5f, 0.0f}) {
                const auto op = [&](KernelRun& run) {
                    char* x = run.inout("x", 2051, t, 1);
                    muon_normalise(run.stream(), {.x = x + offset * size_of(t),
                                                  .norm = run.values<float>({norm}),
                                                  .n = 2051 - offset,
                                                  .margin = 1.01f,
                                                  .dtype = t});
                };
                compare_on_devices(op, {{"x", {t == f32 ? std::ldexp(1.0, -23) : ulp(t), 0}}});
            }
}

TEST(MuonKernels, StepMatchesCpu) {
    for (const Case& c : cases())
        for (const float scale : {0.7f, INFINITY}) {
            const auto op = [&](KernelRun& run) {
                char* master = c.inout(run, "master", c.master, 1);
                muon_step(run.stream(), {.param = c.param == c.master ? master : c.inout(run, "param", c.param, 1),
                                         .master = master,
                                         .x = c.in(run, c.out, 2),
                                         .grad_scale = run.values<float>({scale}),
                                         .n = c.n,
                                         .first = c.first,
                                         .keep = 0.999f,
                                         .rate = 0.01f,
                                         .step = 3,
                                         .seed = 12345,
                                         .param_dtype = c.param,
                                         .x_dtype = c.out,
                                         .master_dtype = c.master});
            };
            const double eps = std::ldexp(1.0, -24);
            std::map<std::string, Tolerance> tolerances = {
                {"master", {c.master == f32 ? 2 * eps : ulp(c.master), 8 * eps}}};
            if (c.param != c.master) tolerances["param"] = {ulp(c.param), 8 * eps};
            compare_on_devices(op, tolerances);
        }
}

// A sum of squares has rounding errors of cols 2^-24 at most, of which the root halves what reaches the factor.
TEST(MuonKernels, RowMomentsMatchCpu) {
    for (const DType t : {f32, bf16_})
        for (const int64_t cols : {1, 40, 259, 1031})
            for (const float scale : {0.7f, NAN}) {
                const int64_t rows = 13;
                const auto op = [&](KernelRun& run) {
                    Data v = normal(rows, f32, 2);
                    for (int64_t r = 0; r < rows; ++r) v.set(r, float(std::abs(v.at(r))));
                    v.set(3, 0);
                    muon_row_moments(run.stream(), {.v = run.inout("v", v),
                                                    .factor = run.out("factor", rows, f32),
                                                    .before = run.out_f64("before", rows),
                                                    .after = run.out_f64("after", rows),
                                                    .x = run.in(rows * cols, t, 1),
                                                    .grad_scale = run.values<float>({scale}),
                                                    .rows = rows,
                                                    .cols = cols,
                                                    .beta2 = 0.95f,
                                                    .dtype = t});
                };
                const double sum = double(cols) * std::ldexp(1.0, -24) + std::ldexp(1.0, -22);
                compare_on_devices(
                    op, {{"v", {sum, 0}}, {"factor", {sum, 0}}, {"before", {sum, 0}}, {"after", {3 * sum, 0}}});
            }
}

TEST(MuonKernels, ScaledRowsMatchCpu) {
    for (const DType t : {f32, bf16_})
        for (const int64_t cols : {1, 259}) {
            const int64_t rows = 13;
            const auto op = [&](KernelRun& run) {
                muon_scale_rows(run.stream(), {.x = run.inout("x", rows * cols, t, 1),
                                               .factor = run.in(rows, f32, 2),
                                               .before = run.values<float>({3.5f}),
                                               .after = run.values<float>({0.7f}),
                                               .rows = rows,
                                               .cols = cols,
                                               .dtype = t});
            };
            compare_on_devices(op, {{"x", {t == f32 ? std::ldexp(1.0, -22) : ulp(t), 0}}});
        }
}

TEST(MuonKernels, MirrorMatchesCpu) {
    for (const DType t : {f32, bf16_, f16})
        for (const int64_t n : {1, 32, 75})
            compare_on_devices([&](KernelRun& run) {
                muon_mirror(run.stream(), {.s = run.inout("s", n * n, t, 1), .n = n, .dtype = t});
            });
}

// The products differ in the order of their sums, which five steps of slope up to 3.4 carry on.
TEST(MuonKernels, NewtonSchulzMatchesCpu) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{24, 40}, {40, 24}, {32, 32}, {80, 67}}) {
        const auto op = [&, rows = rows, cols = cols](KernelRun& run) {
            newton_schulz(run.stream(), {.x = run.inout("x", rows * cols, f32, 1),
                                         .rows = rows,
                                         .cols = cols,
                                         .dtype = f32,
                                         .steps = jordan_steps(5),
                                         .work = run.scratch(newton_schulz_bytes(rows, cols, f32))});
        };
        compare_on_devices(op, {{"x", {0, 1e-4}}});
    }
}

}  // namespace
}  // namespace rz::test
