// The gradient norm's sum of squares, what a step decides on the device from a few numbers, and what --stats-every
// reads. Unavoidable bytes: the gradient once in. Ops on a handful of numbers cost a launch: look at their time.

#include "kernels/global_norm.h"

#include "dev/bench/bench.h"
#include "kernels/bias_correction.h"
#include "kernels/loss_scale.h"
#include "kernels/statistics.h"

using rz::ops::Tensors;

static void measure_scalars(rz::bench::Bench& b) {
    using namespace rz;
    b.measure({"bias_correction", "2", 28}, bias_correction, [](Tensors& m) {
        return BiasCorrection{.updates = m.values(std::vector<int64_t>{100}),
                              .correction = m.out("correction, as words", 4, DType::f32),
                              .grad_scale = m.values(std::vector<float>{0.5f}),
                              .beta1 = 0.9,
                              .beta2 = 0.95};
    });
    b.measure({"loss_scale_update", "1", 36}, loss_scale_update, [](Tensors& m) {
        // good falls to 0 and scale doubles; all four are compared as words
        LossScaleState* state = m.out("state", 4, DType::f32);
        m.stream().copy(state, m.values(std::vector<LossScaleState>{{1024, 1.0f / 1024, 999, 2}}), sizeof *state);
        LossScaleUpdate a{};
        a.state = state, a.grad_scale = m.values(std::vector<float>{0.5f}), a.window = 1000;
        a.hysteresis = 2, a.least = 1, a.most = 65536;
        return a;
    });
}

// Sums in double are not compared: the kernels' own tests do that.
static void measure_statistics(rz::bench::Bench& b, int64_t n) {
    using namespace rz;
    const DType t = b.dtype();
    for (const bool difference : {false, true})
        b.measure({.op = difference ? "segment_squares, minus" : "segment_squares", .check = false}, segment_squares,
                  [=](Tensors& m) {
                      const int64_t segments = 64;
                      std::vector<int64_t> bounds;
                      for (int64_t i = 0; i <= segments; ++i) bounds.push_back(n * i / segments);
                      SegmentSquares a{};
                      a.sums = m.values(std::vector<double>(size_t(segments))), a.x = m.in(n, t, 1);
                      if (difference) a.minus = m.in(n, t, 2);
                      a.bounds = m.values(bounds), a.segments = segments, a.first = 0, a.n = n, a.dtype = t;
                      return a;
                  });
    const int64_t rows = std::max<int64_t>(1, n / 1024);
    b.measure({"block_statistics", bench::joined({rows})}, block_statistics, [=](Tensors& m) {
        BlockStatistics a{};
        a.squares = m.values(std::vector<double>{0}), a.largest = m.inout("largest", 1, DType::f32, 1),
        a.rstd = m.in(rows, DType::f32, 2), a.lse = m.in(rows * 16, DType::f32, 3, 8);
        a.rows = rows, a.count = rows * 16, a.eps = 1e-5f, a.sharpness = 1;
        return a;
    });
}

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Sum of squares over fixed blocks", "n", {"3160000", "46500000"}, {"124000000", "1000000000"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0], block = 65536, blocks = ceil_div(n, block);
        const DType t = b.dtype();
        b.measure({.op = "sum_squares", .bytes = double(n * size_of(t))}, [=](bench::Memory& m) {
            const SumSquares a{m.scratch(8 * blocks), m.in(n, t, 1), n, block, t};
            ClipScale clip{};
            clip.norm = m.out("norm", 1, DType::f32), clip.scale = m.out("scale", 1, DType::f32);
            clip.partial = a.partial, clip.count = blocks, clip.average = 1, clip.max_norm = 1;
            return [a, clip](Stream& s) {
                sum_squares(s, a);
                clip_scale(s, clip);
            };
        });
        measure_scalars(b);
        measure_statistics(b, n);
    });
}
