// AdamW over a flat buffer. Unavoidable bytes: gradient, master, m and v in, master, m, v and parameter out.

#include "kernels/adamw.h"

#include "dev/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("AdamW step", "n", {"3160000", "46500000"}, {"124000000", "1000000000"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0];
        const DType t = b.dtype();
        const double bytes = double(n) * double(2 * size_of(t) + 24);
        b.measure({"adamw", bench::joined(shape), bytes, 0, 0, n <= (64 << 20)}, [&](bench::Memory& m) {
            AdamW a{.param = m.output(n, t, "param"), .master = m.random<float>(n, DType::f32, 1, 1, "master"),
                    .m = m.random<float>(n, DType::f32, 2, 1, "m"), .v = m.output<float>(n, DType::f32, "v"),
                    .grad = m.random(n, t, 3), .grad_scale = m.values<float>({0.5f}), .n = n,
                    .segment_end = m.values<int64_t>({n / 2, n}), .decays = m.values<uint8_t>({1, 0, 0, 0}), .segments = 2,
                    .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 5,
                    .param_dtype = t, .grad_dtype = t};
            if (t == DType::f32) a.param = a.master;
            m.stream().zero(a.v, 4 * n);
            return [a](Stream& s) { adamw(s, a); };
        });
    });
}
