// AdamW's count of updates and its bias correction: CUDA kernel against the CPU op.
#include "kernels/bias_correction.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

// No tolerance: multiplications and a division in double, in the same order.
TEST(BiasCorrection, CountsAndCorrectsAlike) {
    for (const int64_t before : {int64_t(0), int64_t(1), int64_t(6), int64_t(999), int64_t(1) << 40})
        for (const float scale : {1.0f, 0.0f, float(NAN), float(INFINITY), -float(INFINITY)}) {
            const auto op = [&](KernelRun& run) {
                BiasCorrection a;
                a.updates = run.inout("updates", raw(std::vector<int64_t>{before}));
                a.correction = run.inout_f64("correction", {7, 8});
                a.grad_scale = run.values<float>({scale});
                a.beta1 = 0.9, a.beta2 = 0.999;
                bias_correction(run.stream(), a);
            };
            const auto cpu = run_on(kCpu, op);
            const int64_t updates = cpu.at("updates").as<int64_t>()[0];
            const std::vector<double>& c = cpu.at("correction").values;
            if (!std::isfinite(scale)) {
                EXPECT_EQ(updates, before);
                EXPECT_EQ(c, (std::vector<double>{7, 8}));
            } else {
                EXPECT_EQ(updates, before + 1);
                // Powers have at most 2 log2(n) roundings of 2^-53; 1 - beta magnifies them by 1000 at most.
                EXPECT_NEAR(c[0] * (1 - std::pow(0.9, double(updates))), 1, 1e-12);
                EXPECT_NEAR(c[1] * std::sqrt(1 - std::pow(0.999, double(updates))), 1, 1e-12);
            }
            compare_on_devices(op);
        }
}

}  // namespace
}  // namespace rz::test
