// Muon on one matrix: the momentum, NorMuon's rows and the step, whose unavoidable bytes count, and Newton-Schulz's
// five steps, whose products count: 2 m m n, 2 m m m and 2 m m n of each, m the smaller side; of the first two, which
// are symmetric, the parts that are computed.

#include "dev/bench/bench.h"
#include "kernels/gemm/newton_schulz.h"
#include "kernels/muon.h"

using rz::ops::Tensors;

// NorMuon's part: both ops, and the two with the norms between them.
static void measure_rows(rz::bench::Bench& b, int64_t rows, int64_t cols, rz::DType x) {
    using namespace rz;
    const int64_t n = rows * cols;
    const auto half = [](Tensors& m) { return m.values<float>({0.5f}); };
    const auto moments = [=](Tensors& m) { return m.values(std::vector<float>(size_t(rows), 1e-3f)); };
    b.measure({.op = "row moments", .bytes = double(n * size_of(x) + 28 * rows)}, muon_row_moments, [=](Tensors& m) {
        MuonRowMoments a{};
        a.v = moments(m), a.factor = m.out("factor", rows, DType::f32);
        a.before = m.scratch(8 * rows), a.after = m.scratch(8 * rows);
        a.x = m.in(n, x, 7), a.grad_scale = half(m);
        a.rows = rows, a.cols = cols, a.beta2 = 0.95f, a.dtype = x;
        return a;
    });
    b.measure({.op = "scaled rows", .bytes = double(2 * n * size_of(x) + 4 * rows)}, muon_scale_rows, [=](Tensors& m) {
        MuonScaleRows a{};
        a.x = m.inout("scaled", n, x, 8), a.factor = m.in(rows, DType::f32, 9);
        a.before = m.values<float>({1.5f}), a.after = m.values<float>({1.0f});
        a.rows = rows, a.cols = cols, a.dtype = x;
        return a;
    });
    b.measure({.op = "NorMuon", .bytes = double(3 * n * size_of(x))}, muon_rows, [=](Tensors& m) {
        MuonRows a{};
        a.x = m.inout("rows", n, x, 10), a.v = moments(m), a.grad_scale = half(m);
        a.rows = rows, a.cols = cols, a.beta2 = 0.95f, a.dtype = x;
        a.work = m.scratch(muon_rows_bytes(rows));
        return a;
    });
}

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Muon step", "rows,cols", {"384x384", "384x1024"}, {"4096x4096", "14336x4096"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t rows = shape[0], cols = shape[1], n = rows * cols, small = std::min(rows, cols);
        const DType t = b.dtype(), x = t == DType::f32 ? DType::f32 : DType::bf16;
        const bool affordable = n <= (1 << 20);
        const auto half = [](Tensors& m) { return m.values<float>({0.5f}); };
        b.measure({"momentum"}, muon_momentum, [=](Tensors& m) {
            MuonMomentum a{};
            a.out = m.out("u", n, x), a.m = m.inout("m", n, DType::f32, 1), a.grad = m.in(n, t, 2);
            a.grad_scale = half(m), a.n = n, a.momentum = 0.95f, a.step = 5, a.out_dtype = x, a.grad_dtype = t;
            return a;
        });
        b.measure({"normalise"}, muon_normalise, [=](Tensors& m) {
            MuonNormalise a{};
            a.x = m.inout("normalised", n, x, 6), a.norm = m.values<float>({1.0f}), a.n = n;
            a.dtype = x;
            return a;
        });
        // Both results round 15 products, in fp32 their sums too, a random walk; an element has the errors of all.
        const double rounding = x == DType::f32 ? 0x1p-24 * std::sqrt(double(std::max(rows, cols))) : 0x1p-9;
        b.measure({.op = "Newton-Schulz, 5 steps",
                   .flops = newton_schulz_flops(b.device(), rows, cols, 5),
                   .tolerance = 2 * 15 * rounding,
                   .check = affordable,
                   .part = 1},
                  newton_schulz, [=](Tensors& m) {
                      NewtonSchulz a{};
                      a.x = m.inout("x", n, x, 3), a.rows = rows, a.cols = cols, a.dtype = x;
                      a.steps = jordan_steps(5), a.work = m.scratch(newton_schulz_bytes(rows, cols, x));
                      return a;
                  });
        b.measure({.op = "X X^T",
                   .shape = bench::joined({small, small, n / small}),
                   .flops = symmetric_flops(b.device(), small, n / small),
                   .check = affordable},
                  gemm_symmetric, [=](Tensors& m) {
                      Gemm a = ops::GemmCase{small, small, n / small, false, true, 1, 0, x, x}.args(m);
                      a.b = a.a;
                      return a;
                  });
        b.measure({"mirror", bench::joined({small, small})}, muon_mirror, [=](Tensors& m) {
            return MuonMirror{.s = m.inout("mirrored", small * small, x, 11), .n = small, .dtype = x};
        });
        measure_rows(b, rows, cols, x);
        b.measure({"step"}, muon_step, [=](Tensors& m) {
            MuonStep a{};
            a.param = nullptr, a.master = m.inout("master", n, DType::f32, 5), a.x = m.in(n, x, 4);
            a.param = t == DType::f32 ? a.master : m.out("param", n, t);
            a.grad_scale = half(m), a.n = n, a.keep = 0.999f, a.rate = 0.01f, a.step = 5;
            a.param_dtype = t, a.x_dtype = x;
            return a;
        });
    });
}
