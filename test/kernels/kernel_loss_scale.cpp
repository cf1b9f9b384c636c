// Loss scaling: the state's update on CUDA against the CPU op, and the two ops that read it.
#include "kernels/global_norm.h"
#include "kernels/loss_scale.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

// No tolerance: integers and powers of two.
TEST(LossScaleUpdate, SameStateOnBothDevices) {
    for (const LossScaleState& before :
         {LossScaleState{65536, 1.0f / 65536, 0, 2}, LossScaleState{65536, 1.0f / 65536, 6, 1},
          LossScaleState{1, 1, 3, 1}, LossScaleState{0x1p32f, 0x1p-32f, 6, 2}})
        for (const float grad_scale : {1.0f, 0.0f, float(NAN), float(INFINITY), -float(INFINITY)})
            compare_on_devices([&](KernelRun& run) {
                LossScaleUpdate a;
                a.state = run.inout("state", raw(std::vector{before}));
                a.grad_scale = run.values<float>({grad_scale});
                a.window = 7, a.hysteresis = 2, a.least = 1, a.most = 0x1p32f;
                loss_scale_update(run.stream(), a);
            });
}

// A power of two commutes with every rounding, so scaled gradients are the unscaled ones' bits, scaled.
TEST(LossScale, ScalesTheGradientOfTheLossExactly) {
    constexpr int64_t N = 3, V = 515;
    const ops::LogitsCase c{N, V, {5, kIgnoreTarget, 514}, DType::f32, 1.0f / 3};
    const auto run_with = [&](Device device, bool scaled) {
        return run_on(device, [&](KernelRun& run) {
            CrossEntropy a = c.loss(run, /*gradient=*/true);
            if (scaled) a.loss_scale = run.values<float>({4096});
            cross_entropy(run.stream(), a);
        });
    };
    for (const Device& device : both_devices()) {
        const auto plain = run_with(device, false), scaled = run_with(device, true);
        EXPECT_EQ(plain.at("loss").bytes, scaled.at("loss").bytes);
        for (size_t i = 0; i < size_t(N * V); ++i)
            ASSERT_EQ(scaled.at("logits").values[i], 4096 * plain.at("logits").values[i]) << "element " << i;
    }
}

// The clip sees the unscaled norm: scaling first and unscaling after it would clip the scaled one.
TEST(LossScale, NormIsUnscaledBeforeItIsClipped) {
    for (const float max_norm : {0.0f, 0.5f, 100.0f}) {
        const auto clip = [&](Device device, double scale) {
            return run_on(device, [&](KernelRun& run) {
                ClipScale a;
                a.norm = run.out("norm", 1, DType::f32);
                a.scale = run.out("scale", 1, DType::f32);
                a.partial = run.values<double>({0.3 * scale * scale, 1.7 * scale * scale});
                a.count = 2, a.average = 1, a.max_norm = max_norm;
                a.unscale = run.values<float>({float(1 / scale)});
                clip_scale(run.stream(), a);
            });
        };
        for (const Device& device : both_devices()) {
            const auto plain = clip(device, 1), scaled = clip(device, 65536);
            EXPECT_EQ(plain.at("norm").bytes, scaled.at("norm").bytes);
            EXPECT_EQ(plain.at("scale").values[0], 65536 * scaled.at("scale").values[0]);
        }
    }
}

}  // namespace
}  // namespace rz::test
