// Sums of squares and the clipping scale: CUDA kernels against the CPU ops.
#include <numeric>

#include "kernels/global_norm.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t n, block;
    DType dtype;
    int64_t at = 0;
};

class SumSquaresTest : public testing::TestWithParam<Case> {};

// fp32 within a run of a few squares, double across: below 2^-20 of the sum on either side.
TEST_P(SumSquaresTest, EachBlocksSumMatchesCpu) {
    const Case c = GetParam();
    const auto op = [&](KernelRun& run) {
        sum_squares(run.stream(), {run.out_f64("partial", ceil_div(c.at + c.n, c.block)), run.in(c.n, c.dtype, 1), c.n,
                                   c.block, c.dtype, c.at});
    };
    compare_on_devices(op, {{"partial", {std::ldexp(1.0, -20), 0}}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, SumSquaresTest,
                         testing::Values(Case{1, 256, DType::f32}, Case{256, 256, DType::bf16},
                                         Case{1003, 256, DType::bf16}, Case{20001, 8192, DType::f32},
                                         Case{5003, 4096, DType::f16}, Case{40003, 32768, DType::bf16},
                                         Case{40007, 32768, DType::f16}, Case{1003, 256, DType::f32, 16},
                                         Case{2000, 768, DType::bf16, 752}, Case{100, 768, DType::f16, 16},
                                         Case{20001, 8192, DType::f32, 4096}));

class ClipScaleTest : public testing::TestWithParam<std::pair<int64_t, float>> {};

// The sum is in the same order in double and rounded once: no tolerance. The scale is a division or two.
TEST_P(ClipScaleTest, NormAndScaleMatchCpu) {
    const auto [count, max_norm] = GetParam();
    std::mt19937_64 generator(5);
    std::vector<double> partial(static_cast<size_t>(count));
    for (auto& p : partial) p = std::uniform_real_distribution<double>(0, 3)(generator);
    std::vector<int32_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator);
    for (const bool ordered : {false, true}) {
        const auto op = [&](KernelRun& run) {
            ClipScale a;
            a.norm = run.out("norm", 1, DType::f32);
            a.scale = run.out("scale", 1, DType::f32);
            a.partial = run.values(partial);
            if (ordered) a.order = run.values(order);
            a.count = count, a.average = 0.25f, a.max_norm = max_norm;
            clip_scale(run.stream(), a);
        };
        compare_on_devices(op, {{"scale", {3 * std::ldexp(1.0, -23), 0}}});
    }
}

INSTANTIATE_TEST_SUITE_P(Counts, ClipScaleTest,
                         testing::Values(std::pair(int64_t(1), 1.0f), std::pair(int64_t(256), 100.0f),
                                         std::pair(int64_t(1000), 0.5f), std::pair(int64_t(1000), 0.0f)));

TEST(ClipScaleLimits, BadNormGivesNaN) {
    for (const double bad : {double(NAN), double(INFINITY)}) {
        const auto op = [&](KernelRun& run) {
            ClipScale a;
            a.norm = run.inout("norm", zeros(1, DType::f32));
            a.scale = run.inout("scale", zeros(1, DType::f32));
            a.partial = run.values<double>({1, bad, 2});
            a.count = 3, a.average = 1, a.max_norm = 1;
            clip_scale(run.stream(), a);
        };
        if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
        const auto results = run_on(kGpu, op);
        EXPECT_TRUE(std::isnan(results.at("scale").values[0]));
        EXPECT_FALSE(std::isfinite(results.at("norm").values[0]));
    }
}

}  // namespace
}  // namespace rz::test
