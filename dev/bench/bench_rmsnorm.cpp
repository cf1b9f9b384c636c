// RMSNorm. Unavoidable bytes: forward reads x and writes y (with the residual: reads two, writes two); backward reads
// dy, x and the residual's gradient and writes dx. "magnitudes": of what is written, for quantisation to fp8.

#include "kernels/rmsnorm.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("RMSNorm forward and backward", "N,C", {"2048x256", "512x512", "4096x2048"},
                       {"8192x2048", "8192x4096", "4096x8192"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t N = shape[0], C = shape[1];
        const DType t = b.dtype();
        const double tensor = double(N * C * size_of(t));
        const auto slot = [](bench::Memory& m, bool measured) {
            return measured ? static_cast<uint32_t*>(m.scratch(16)) : nullptr;
        };
        for (const auto& [residual, measured] : {std::pair(false, false), {true, false}, {true, true}})
            b.measure(
                {std::string("rmsnorm_forward") + (residual ? "+residual" : "") + (measured ? ", magnitudes" : ""),
                 bench::joined(shape), (residual ? 4 : 2) * tensor},
                [=](bench::Memory& m) {
                    RmsnormForward a{.y = m.output(N * C, t, "y"),
                                     .rstd = m.output<float>(N, DType::f32, "rstd"),
                                     .x = m.random(N * C, t, 1),
                                     .w = m.random(C, t, 2),
                                     .N = N,
                                     .C = C,
                                     .eps = 1e-5f,
                                     .dtype = t,
                                     .amax = slot(m, measured)};
                    if (residual) a.residual = m.random(N * C, t, 3), a.sum = m.output(N * C, t, "sum");
                    return [a](Stream& s) { rmsnorm_forward(s, a); };
                });
        for (const bool measured : {false, true})
            b.measure(
                {measured ? "rmsnorm_backward, magnitudes" : "rmsnorm_backward", bench::joined(shape), 4 * tensor},
                [=](bench::Memory& m) {
                    const RmsnormBackward a{.dx = m.output(N * C, t, "dx"),
                                            .dw = m.random(C, DType::f32, 1, 1, "dw"),
                                            .dy = m.random(N * C, t, 2),
                                            .x = m.random(N * C, t, 3),
                                            .w = m.random(C, t, 4),
                                            .rstd = m.random<float>(N, DType::f32, 5),
                                            .dresidual = m.random(N * C, t, 6),
                                            .scratch = static_cast<float*>(m.scratch(rmsnorm_backward_scratch(C) * 4)),
                                            .N = N,
                                            .C = C,
                                            .dtype = t,
                                            .grad_dtype = DType::f32,
                                            .amax = slot(m, measured)};
                    return [a](Stream& s) { rmsnorm_backward(s, a); };
                });
    });
}
