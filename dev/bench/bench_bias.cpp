// The bias of q, k and v. Unavoidable bytes: forward the output once in and once out; backward its gradient once.

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Bias forward and backward", "N,C", {"2048x256", "512x1152", "4096x2048"},
                       {"8192x2048", "8192x4608", "16384x1152"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const ops::BiasCase c{shape[0], shape[1], b.dtype()};
        b.measure({"add_bias"}, add_bias, [=](bench::Memory& m) { return c.add(m); });
        b.measure({"bias_backward"}, bias_backward, [=](bench::Memory& m) { return c.backward(m); });
    });
}
