// Cross-entropy and the loss sum: CUDA kernels against the CPU ops.
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, V;
    DType dtype;
};

class CrossEntropyTest : public testing::TestWithParam<Case> {};

// Takes these logits, else those of the case.
void check(const ops::LogitsCase& c, bool write_gradient, float z = 0, const Data* logits = nullptr) {
    const auto op = [&](KernelRun& run) {
        CrossEntropy a = c.loss(run, write_gradient);
        if (logits) a.logits = run.inout("logits", *logits, c.gradient_tolerance());
        a.z = z, a.z_loss = run.out({"z-loss", {c.kProbability, double(z) * c.kProbability}}, c.N, DType::f32);
        if (z == 0) run.stream().zero(a.z_loss, 4 * c.N);
        cross_entropy(run.stream(), a);
    };
    compare_on_devices(op);
}

ops::LogitsCase with_targets(const Case& c) {
    std::mt19937 generator(3);
    std::vector<int32_t> targets(size_t(c.N));
    for (auto& t : targets) t = int32_t(generator() % uint64_t(c.V));
    targets.back() = int32_t(c.V - 1);  // in the ragged end of a row
    if (c.N > 1) targets.front() = 0;
    if (c.N > 2) targets[1] = kIgnoreTarget;
    return {c.N, c.V, targets, c.dtype, 1.0f / float(c.N)};
}

TEST_P(CrossEntropyTest, GradientInPlaceMatchesCpu) { check(with_targets(GetParam()), true); }

// The weight of a probability is below 2 where z is 0.02 and logits are 20 at most.
TEST_P(CrossEntropyTest, ZLossMatchesCpu) { check(with_targets(GetParam()), true, 0.02f); }

TEST_P(CrossEntropyTest, LossAloneMatchesCpu) { check(with_targets(GetParam()), false); }

TEST(CrossEntropyLimits, HugeAndMaskedLogitsMatchCpu) {
    const ops::LogitsCase c{2, 40, {39, 79 - 40}, DType::f32, 0.5f};
    Data logits = normal(c.N * c.V, c.dtype, 4);
    for (int64_t i = 0; i < c.V; ++i) logits.set(i, 1e4f + float(i));      // exp would overflow
    for (int64_t i = c.V; i < 2 * c.V - 2; ++i) logits.set(i, -INFINITY);  // all but two masked
    check(c, true, 0, &logits);
}

// 1e5 log2 e is off by 2^-8 when rounded to fp32, an exponential of it by as much: no loss and no gradient may show it.
TEST(CrossEntropyLimits, LogitsFarFromZeroMatchCpu) {
    const ops::LogitsCase c{3, 300, {0, 150, 299}, DType::f32, 1.0f / 3};
    Data logits = normal(c.N * c.V, c.dtype, 4);
    for (int64_t i = 0; i < c.N * c.V; ++i)
        logits.set(i, float(std::round(logits.at(i) * 128) / 128 + (i < c.V ? 1e5 : -1e5)));
    check(c, true, 0, &logits);
}

// Else a step whose loss is no number could be applied: the norm of its gradient would be one.
TEST(CrossEntropyLimits, AnInfiniteLossHasNoFiniteGradient) {
    const ops::LogitsCase c{2, 70, {3, 5}, DType::bf16};
    Data logits = normal(c.N * c.V, c.dtype, 4);
    logits.set(3, -INFINITY);
    const auto op = [&](KernelRun& run) {
        CrossEntropy a = c.loss(run, /*gradient=*/true);
        a.logits = run.inout("logits", logits);
        cross_entropy(run.stream(), a);
    };
    for (const Device& device : both_devices()) {
        const auto out = run_on(device, op);
        EXPECT_EQ(out.at("loss").values[0], INFINITY) << device.name();
        EXPECT_TRUE(std::isnan(out.at("logits").values[3])) << device.name();
        EXPECT_TRUE(std::isfinite(out.at("loss").values[1])) << device.name();
        for (int64_t i = c.V; i < 2 * c.V; ++i)
            EXPECT_TRUE(std::isfinite(out.at("logits").values[size_t(i)])) << device.name();
    }
}

TEST(CrossEntropyLimits, NaNReachesTheLoss) {
    const ops::LogitsCase c{1, 70, {3}, DType::bf16};
    Data logits = normal(c.V, c.dtype, 4);
    logits.set(69, NAN);
    const auto op = [&](KernelRun& run) {
        CrossEntropy a = c.loss(run, /*gradient=*/false);
        a.loss = run.inout("loss", zeros(1, DType::f32));
        a.logits = run.inout("logits", logits);
        cross_entropy(run.stream(), a);
    };
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    EXPECT_TRUE(std::isnan(run_on(kGpu, op).at("loss").values[0]));
}

TEST(CrossEntropySum, AddsToWhatIsThere) {
    for (const int64_t n : {1, 255, 257, 5000}) {
        const auto op = [&](KernelRun& run) {
            sum_f32(run.stream(), {run.inout_f64("out", {2.5}), run.in(n, DType::f32, 5, 1, 3), n});
        };
        compare_on_devices(op, {{"out", {std::ldexp(double(n), -53) * 4, 0}}});  // n additions in double
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CrossEntropyTest,
    testing::Values(Case{1, 2, DType::f32}, Case{3, 256, DType::bf16}, Case{5, 259, DType::bf16},
                    Case{4, 1000, DType::f32}, Case{3, 32000, DType::bf16},
                    Case{3, 32003, DType::bf16},  // every row starts at another alignment
                    Case{2, 40001, DType::f32},   // beyond the registers: in shared memory
                    Case{2, 128256, DType::bf16}, Case{2, 128259, DType::bf16},  // Llama 3's, and ragged
                    Case{1, 190007, DType::bf16}, Case{1, 100001, DType::f32},   // beyond that: read again
                    Case{3, 5003, DType::f16}, Case{1, 128259, DType::f16}, Case{1, 190007, DType::f16}));

}  // namespace
}  // namespace rz::test
