// The gradient norm's sum of squares, what a step decides on the device from a few numbers, and what --stats-every
// reads. Unavoidable bytes: the gradient once in. Ops on a handful of numbers cost a launch: look at their time.

#include "kernels/global_norm.h"

#include "dev/bench/bench.h"
#include "kernels/bias_correction.h"
#include "kernels/loss_scale.h"
#include "kernels/statistics.h"

static void measure_scalars(rz::bench::Bench& b) {
    using namespace rz;
    b.measure({"bias_correction", "2", 28}, [](bench::Memory& m) {
        const BiasCorrection a{.updates = m.values(std::vector<int64_t>{100}),
                               .correction = m.output<double>(4, DType::f32, "correction, as words"),
                               .grad_scale = m.values(std::vector<float>{0.5f}),
                               .beta1 = 0.9,
                               .beta2 = 0.95};
        return [a](Stream& s) { bias_correction(s, a); };
    });
    b.measure({"loss_scale_update", "1", 36}, [](bench::Memory& m) {
        // good falls to 0 and scale doubles; all four are compared as words
        LossScaleState* state = static_cast<LossScaleState*>(m.output(4, DType::f32, "state"));
        m.stream().copy(state, m.values(std::vector<LossScaleState>{{1024, 1.0f / 1024, 999, 2}}), sizeof *state);
        const LossScaleUpdate a{.state = state,
                                .grad_scale = m.values(std::vector<float>{0.5f}),
                                .window = 1000,
                                .hysteresis = 2,
                                .least = 1,
                                .most = 65536};
        return [a](Stream& s) { loss_scale_update(s, a); };
    });
}

static void measure_statistics(rz::bench::Bench& b, int64_t n) {
    using namespace rz;
    const DType t = b.dtype();
    // Sums in double are not compared: the kernels' own tests do that.
    for (const bool difference : {false, true})
        b.measure({difference ? "segment_squares, minus" : "segment_squares", bench::joined({n}),
                   (difference ? 2 : 1) * double(n * size_of(t)), 0, 0, /*check=*/false},
                  [=](bench::Memory& m) {
                      const int64_t segments = 64;
                      std::vector<int64_t> bounds;
                      for (int64_t i = 0; i <= segments; ++i) bounds.push_back(n * i / segments);
                      const SegmentSquares a{.sums = m.values(std::vector<double>(size_t(segments))),
                                             .x = m.random(n, t, 1),
                                             .minus = difference ? m.random(n, t, 2) : nullptr,
                                             .bounds = m.values(bounds),
                                             .segments = segments,
                                             .first = 0,
                                             .n = n,
                                             .dtype = t};
                      return [a](Stream& s) { segment_squares(s, a); };
                  });
    const int64_t rows = std::max<int64_t>(1, n / 1024);
    b.measure({"block_statistics", bench::joined({rows}), double(rows * 17 * 4)}, [=](bench::Memory& m) {
        const BlockStatistics a{.squares = m.values(std::vector<double>{0}),
                                .largest = m.random<float>(1, DType::f32, 1, 1, "largest"),
                                .rstd = m.random<float>(rows, DType::f32, 2),
                                .lse = m.random<float>(rows * 16, DType::f32, 3, 8),
                                .rows = rows,
                                .count = rows * 16,
                                .eps = 1e-5f,
                                .sharpness = 1};
        return [a](Stream& s) { block_statistics(s, a); };
    });
}

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Sum of squares over fixed blocks", "n", {"3160000", "46500000"}, {"124000000", "1000000000"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0], block = 65536, blocks = ceil_div(n, block);
        const DType t = b.dtype();
        b.measure({"sum_squares", bench::joined(shape), double(n * size_of(t))}, [&](bench::Memory& m) {
            const SumSquares a{.partial = static_cast<double*>(m.scratch(8 * blocks)),
                               .x = m.random(n, t, 1),
                               .n = n,
                               .block = block,
                               .dtype = t};
            const ClipScale clip{.norm = m.output<float>(1, DType::f32, "norm"),
                                 .scale = m.output<float>(1, DType::f32, "scale"),
                                 .partial = a.partial,
                                 .count = blocks,
                                 .average = 1,
                                 .max_norm = 1};
            return [a, clip](Stream& s) {
                sum_squares(s, a);
                clip_scale(s, clip);
            };
        });
        measure_scalars(b);
        measure_statistics(b, n);
    });
}
