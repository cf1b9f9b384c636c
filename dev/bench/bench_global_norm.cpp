// The gradient norm's sum of squares. Unavoidable bytes: the gradient once in.

#include "kernels/global_norm.h"

#include "dev/bench/bench.h"

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
    });
}
