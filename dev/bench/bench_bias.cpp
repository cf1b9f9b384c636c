// The bias of q, k and v. Unavoidable bytes: forward the output once in and once out; backward its gradient once.

#include "kernels/bias.h"

#include "dev/bench/bench.h"

int main(int argc, char** argv) {
    using namespace rz;
    bench::Bench bench("Bias forward and backward", "N,C", {"2048x256", "512x1152", "4096x2048"},
                       {"8192x2048", "8192x4608", "16384x1152"});
    return bench.run(argc, argv, [](bench::Bench& b, const std::vector<int64_t>& shape) {
        const int64_t N = shape[0], C = shape[1];
        const DType t = b.dtype();
        const double tensor = double(N * C * size_of(t));
        b.measure({"add_bias", bench::joined(shape), 2 * tensor}, [=](bench::Memory& m) {
            const AddBias a{.x = m.random(N * C, t, 1, 1, "x"), .bias = m.random(C, t, 2), .N = N, .C = C, .dtype = t};
            return [a](Stream& s) { add_bias(s, a); };
        });
        b.measure({"bias_backward", bench::joined(shape), tensor}, [=](bench::Memory& m) {
            const BiasBackward a{.dbias = m.random(C, DType::f32, 1, 1, "dbias"),
                                 .dy = m.random(N * C, t, 2),
                                 .scratch = static_cast<float*>(m.scratch(bias_backward_scratch(C) * 4)),
                                 .N = N,
                                 .C = C,
                                 .dtype = t,
                                 .grad_dtype = DType::f32};
            return [a](Stream& s) { bias_backward(s, a); };
        });
    });
}
