// RMSNorm. Unavoidable bytes: forward reads x and writes y (with the residual: reads two, writes two); backward reads
// dy, x and the residual's gradient and writes dx. "magnitudes": of what is written, for quantisation to fp8.

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("RMSNorm forward and backward", "N,C", {"2048x256", "512x512", "4096x2048"},
                       {"8192x2048", "8192x4096", "4096x8192"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        ops::NormCase c{shape[0], shape[1], b.dtype()};
        b.measure({"rmsnorm_forward"}, rmsnorm_forward, [=](bench::Memory& m) { return c.forward(m); });
        c.residual = true;
        b.measure({"rmsnorm_forward+residual"}, rmsnorm_forward, [=](bench::Memory& m) { return c.forward(m); });
        b.measure({"rmsnorm_forward+residual, magnitudes"}, rmsnorm_forward,
                  [=](bench::Memory& m) { return bench::with_magnitude(m, c.forward(m)); });
        b.measure({"rmsnorm_backward"}, rmsnorm_backward, [=](bench::Memory& m) { return c.backward(m); });
        b.measure({"rmsnorm_backward, magnitudes"}, rmsnorm_backward,
                  [=](bench::Memory& m) { return bench::with_magnitude(m, c.backward(m)); });
    });
}
