// SwiGLU. Unavoidable bytes: forward reads 2F and writes F a row, backward reads 3F and writes 2F, and F more with h.
// "magnitudes": of what is written, for quantisation to fp8; bench_quantise's abs_max is what they save.

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
        const auto slot = [](bench::Memory& m, bool measured) {
            return measured ? static_cast<uint32_t*>(m.scratch(16)) : nullptr;
        };
        for (const bool measured : {false, true}) {
            const std::string with = measured ? ", magnitudes" : "";
            b.measure({"swiglu_forward" + with, bench::joined(shape), 3 * tensor}, [=](bench::Memory& m) {
                const SwigluForward a{.h = m.output(N * F, t, "h"),
                                      .gate_up = m.random(2 * N * F, t, 1),
                                      .N = N,
                                      .F = F,
                                      .dtype = t,
                                      .amax = slot(m, measured)};
                return [a](Stream& s) { swiglu_forward(s, a); };
            });
            b.measure({"swiglu_backward+h" + with, bench::joined(shape), 6 * tensor}, [=](bench::Memory& m) {
                const SwigluBackward a{.dgate_up = m.output(2 * N * F, t, "dgate_up"),
                                       .dh = m.random(N * F, t, 2),
                                       .gate_up = m.random(2 * N * F, t, 1),
                                       .h = m.output(N * F, t, "h"),
                                       .N = N,
                                       .F = F,
                                       .dtype = t,
                                       .amax = slot(m, measured),
                                       .h_amax = slot(m, measured)};
                return [a](Stream& s) { swiglu_backward(s, a); };
            });
        }
    });
}
