// SwiGLU. Unavoidable bytes: forward reads 2F and writes F a row, backward reads 3F and writes 2F, and F more with h.

#include "kernels/swiglu.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("SwiGLU forward and backward", "N,F", {"2048x688", "512x1280", "2048x5632"},
                       {"8192x5632", "8192x14336"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t N = shape[0], F = shape[1];
        const DType t = b.dtype();
        const double tensor = double(N * F * size_of(t));
        b.measure({"swiglu_forward", bench::joined(shape), 3 * tensor}, [=](bench::Memory& m) {
            const SwigluForward a{
                .h = m.output(N * F, t, "h"), .gate_up = m.random(2 * N * F, t, 1), .N = N, .F = F, .dtype = t};
            return [a](Stream& s) { swiglu_forward(s, a); };
        });
        b.measure({"swiglu_backward+h", bench::joined(shape), 6 * tensor}, [=](bench::Memory& m) {
            const SwigluBackward a{.dgate_up = m.output(2 * N * F, t, "dgate_up"),
                                   .dh = m.random(N * F, t, 2),
                                   .gate_up = m.random(2 * N * F, t, 1),
                                   .h = m.output(N * F, t, "h"),
                                   .N = N,
                                   .F = F,
                                   .dtype = t};
            return [a](Stream& s) { swiglu_backward(s, a); };
        });
    });
}
