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
            // By chance, values that differ in fp32's last bits may round one unit apart.
            const double tolerance = adam == DType::f32 ? 0 : 1.0 / 128;
            b.measure({.op = name, .tolerance = tolerance, .check = n <= (64 << 20)}, adamw, [=](bench::Memory& m) {
                AdamW a{};
                a.param = nullptr, a.master = m.inout("master", n, master, 1), a.m = m.inout("m", n, adam, 2);
                a.param = master == t ? a.master : m.out("param", n, t);
                a.v = m.out("v", n, adam);
                m.stream().zero(a.v, size_of(adam) * n);
                a.grad = m.in(n, t, 3), a.grad_scale = m.values<float>({0.5f}), a.n = n;
                a.segment_end = m.values<int64_t>({n / 2, n}), a.decays = m.values<uint8_t>({1, 0}), a.segments = 2;
                a.lr = 1e-3f, a.beta1 = 0.9f, a.beta2 = 0.95f, a.eps = 1e-8f, a.weight_decay = 0.1f, a.step = 5;
                a.param_dtype = a.grad_dtype = t, a.master_dtype = master, a.adam_dtype = adam;
                return a;
            });
        };
        row("adamw", DType::f32, DType::f32);
        row("adamw, bf16 moments", DType::f32, DType::bf16);
        if (t == DType::bf16) row("adamw, all bf16", DType::bf16, DType::bf16);
    });
}
