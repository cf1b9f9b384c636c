// SwiGLU. Unavoidable bytes: forward reads 2F and writes F a row, backward reads 3F and writes 2F, and F more with h.
// "magnitudes": of what is written, for quantisation to fp8; bench_quantise's abs_max is what they save.

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("SwiGLU forward and backward", "N,F", {"2048x688", "512x1280", "2048x5632"},
                       {"8192x5632", "8192x14336"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const ops::SwigluCase c{shape[0], shape[1], b.dtype()};
        b.measure({"swiglu_forward"}, swiglu_forward, [=](bench::Memory& m) { return c.forward(m); });
        b.measure({"swiglu_backward+h"}, swiglu_backward, [=](bench::Memory& m) { return c.backward(m); });
        b.measure({"swiglu_forward, magnitudes"}, swiglu_forward,
                  [=](bench::Memory& m) { return bench::with_magnitude(m, c.forward(m)); });
        b.measure({"swiglu_backward+h, magnitudes"}, swiglu_backward, [=](bench::Memory& m) {
            SwigluBackward a = c.backward(m);
            a.amax = m.scratch(16), a.h_amax = m.scratch(16);
            return a;
        });
    });
}
