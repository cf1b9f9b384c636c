// Muon on one matrix: the momentum, NorMuon's rows and the step, whose unavoidable bytes count, and Newton-Schulz's
// five steps, whose products count: 2 m m n, 2 m m m and 2 m m n of each, m the smaller side; of the first two, which
// are symmetric, the parts that are computed.

#include "dev/bench/bench.h"
#include "kernels/gemm/newton_schulz.h"
#include "kernels/muon.h"

namespace rz {

// NorMuon's part: both ops, and the two with the norms between them.
static void measure_rows(bench::Bench& b, int64_t rows, int64_t cols, DType x) {
    const int64_t n = rows * cols;
    const std::string size = bench::joined({rows, cols});
    b.measure({"row moments", size, double(n * size_of(x) + 28 * rows), 0, 0, true}, [&](bench::Memory& m) {
        const MuonRowMoments a{.v = m.values(std::vector<float>(size_t(rows), 1e-3f)),
                               .factor = m.output<float>(rows, DType::f32, "factor"),
                               .before = static_cast<double*>(m.scratch(8 * rows)),
                               .after = static_cast<double*>(m.scratch(8 * rows)),
                               .x = m.random(n, x, 7),
                               .grad_scale = m.values<float>({0.5f}),
                               .rows = rows,
                               .cols = cols,
                               .beta2 = 0.95f,
                               .dtype = x};
        return [a](Stream& s) { muon_row_moments(s, a); };
    });
    b.measure({"scaled rows", size, double(2 * n * size_of(x) + 4 * rows), 0, 0, true}, [&](bench::Memory& m) {
        const MuonScaleRows a{.x = m.random(n, x, 8, 1, "scaled"),
                              .factor = m.random<float>(rows, DType::f32, 9),
                              .before = m.values<float>({1.5f}),
                              .after = m.values<float>({1.0f}),
                              .rows = rows,
                              .cols = cols,
                              .dtype = x};
        return [a](Stream& s) { muon_scale_rows(s, a); };
    });
    b.measure({"NorMuon", size, double(3 * n * size_of(x)), 0, 0, true}, [&](bench::Memory& m) {
        const MuonRows a{.x = m.random(n, x, 10, 1, "rows"),
                         .v = m.values(std::vector<float>(size_t(rows), 1e-3f)),
                         .grad_scale = m.values<float>({0.5f}),
                         .rows = rows,
                         .cols = cols,
                         .beta2 = 0.95f,
                         .dtype = x,
                         .work = m.scratch(muon_rows_bytes(rows))};
        return [a](Stream& s) { muon_rows(s, a); };
    });
}

}  // namespace rz

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Muon step", "rows,cols", {"384x384", "384x1024"}, {"4096x4096", "14336x4096"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t rows = shape[0], cols = shape[1], n = rows * cols;
        const DType t = b.dtype(), x = t == DType::f32 ? DType::f32 : DType::bf16;
        const std::string size = bench::joined(shape);
        const double state = double(2 * size_of(DType::f32));
        b.measure({"momentum", size, double(n) * (state + double(size_of(t) + size_of(x))), 0, 0, true},
                  [&](bench::Memory& m) {
                      const MuonMomentum a{.out = m.output(n, x, "u"),
                                           .m = m.random(n, DType::f32, 1, 1, "m"),
                                           .grad = m.random(n, t, 2),
                                           .grad_scale = m.values<float>({0.5f}),
                                           .n = n,
                                           .momentum = 0.95f,
                                           .step = 5,
                                           .out_dtype = x,
                                           .grad_dtype = t};
                      return [a](Stream& s) { muon_momentum(s, a); };
                  });
        b.measure({"normalise", size, double(2 * n * size_of(x)), 0, 0, true}, [&](bench::Memory& m) {
            const MuonNormalise a{
                .x = m.random(n, x, 6, 1, "normalised"), .norm = m.values<float>({1.0f}), .n = n, .dtype = x};
            return [a](Stream& s) { muon_normalise(s, a); };
        });
        // Both results round 15 products, in fp32 their sums too, a random walk; an element has the errors of all.
        const double rounding = x == DType::f32 ? 0x1p-24 * std::sqrt(double(std::max(rows, cols))) : 0x1p-9;
        b.measure({"Newton-Schulz, 5 steps", size, 0, newton_schulz_flops(b.device(), rows, cols, 5), 2 * 15 * rounding,
                   n <= (1 << 20), 1},
                  [&](bench::Memory& m) {
                      const NewtonSchulz a{.x = m.random(n, x, 3, 1, "x"),
                                           .rows = rows,
                                           .cols = cols,
                                           .dtype = x,
                                           .steps = jordan_steps(5),
                                           .work = m.scratch(newton_schulz_bytes(rows, cols, x))};
                      return [a](Stream& s) { newton_schulz(s, a); };
                  });
        const int64_t small = std::min(rows, cols);
        b.measure({"X X^T", bench::joined({small, small, n / small}), 0, symmetric_flops(b.device(), small, n / small),
                   0, n <= (1 << 20)},
                  [&](bench::Memory& m) {
                      const Gemm a{.c = m.output(small * small, x, "s"),
                                   .a = m.random(n, x, 12),
                                   .b = m.random(n, x, 12),
                                   .M = small,
                                   .N = small,
                                   .K = n / small,
                                   .trans_b = true,
                                   .dtype = x,
                                   .c_dtype = x};
                      return [a](Stream& s) { gemm_symmetric(s, a); };
                  });
        b.measure({"mirror", bench::joined({small, small}), double(small * small * size_of(x)), 0, 0, true},
                  [&](bench::Memory& m) {
                      const MuonMirror a{.s = m.random(small * small, x, 11, 1, "mirrored"), .n = small, .dtype = x};
                      return [a](Stream& s) { muon_mirror(s, a); };
                  });
        measure_rows(b, rows, cols, x);
        const bool separate = t != DType::f32;
        b.measure(
            {"step", size, double(n) * (state + double(size_of(x)) + (separate ? double(size_of(t)) : 0)), 0, 0, true},
            [&](bench::Memory& m) {
                MuonStep a{.param = nullptr,
                           .master = nullptr,
                           .x = m.random(n, x, 4),
                           .grad_scale = m.values<float>({0.5f}),
                           .n = n,
                           .keep = 0.999f,
                           .rate = 0.01f,
                           .step = 5,
                           .param_dtype = t,
                           .x_dtype = x};
                a.master = m.random(n, DType::f32, 5, 1, "master");
                a.param = separate ? m.output(n, t, "param") : a.master;
                return [a](Stream& s) { muon_step(s, a); };
            });
    });
}
