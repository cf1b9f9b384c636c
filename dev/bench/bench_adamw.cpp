// AdamW over a flat buffer. Unavoidable bytes: gradient, master, m and v in, master, m, v and parameter out. A second
// line has bf16 moments, in bf16 a third also bf16 masters, which are the parameters.

#include "kernels/adamw.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("AdamW step", "n", {"3160000", "46500000"}, {"124000000", "1000000000"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t n = shape[0];
        const DType t = b.dtype();
        const auto row = [&](const char* name, DType master, DType adam) {
            const bool separate = master != t;
            const double bytes =
                double(n) * double(size_of(t) + 2 * size_of(master) + 4 * size_of(adam) + (separate ? size_of(t) : 0));
            // By chance, values that differ in fp32's last bits may round one unit apart.
            const double tolerance = adam == DType::f32 ? 0 : 1.0 / 128;
            b.measure({name, bench::joined(shape), bytes, 0, tolerance, n <= (64 << 20)}, [&](bench::Memory& m) {
                AdamW a{.param = nullptr,
                        .master = m.random(n, master, 1, 1, "master"),
                        .m = m.random(n, adam, 2, 1, "m"),
                        .v = m.output(n, adam, "v"),
                        .grad = m.random(n, t, 3),
                        .grad_scale = m.values<float>({0.5f}),
                        .n = n,
                        .segment_end = m.values<int64_t>({n / 2, n}),
                        .decays = m.values<uint8_t>({1, 0, 0, 0}),
                        .segments = 2,
                        .lr = 1e-3f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-8f,
                        .weight_decay = 0.1f,
                        .step = 5,
                        .param_dtype = t,
                        .grad_dtype = t,
                        .master_dtype = master,
                        .adam_dtype = adam};
                a.param = separate ? m.output(n, t, "param") : a.master;
                m.stream().zero(a.v, size_of(adam) * n);
                return [a](Stream& s) { adamw(s, a); };
            });
        };
        row("adamw", DType::f32, DType::f32);
        row("adamw, bf16 moments", DType::f32, DType::bf16);
        if (t == DType::bf16) row("adamw, all bf16", DType::bf16, DType::bf16);
    });
}
