// The CPU's AdamW and gradient norm: against their formulas, on any cut of the buffer, with gradients that
// are not finite.

#include "kernels/bias_correction.h"
#include "kernels/elementwise.h"
#include "kernels/global_norm.h"
#include "kernels/stochastic_rounding.h"
#include "test/kernels/double_ops.h"
#include "test/kernels/ema_golden.h"

namespace rz::test {
namespace {

class CpuOptimizer : public SimdTest {};
INSTANTIATE_TEST_SUITE_P(Simd, CpuOptimizer, testing::ValuesIn(simd_levels()), SimdTest::name);

TEST_P(CpuOptimizer, AdamwFollowsTheFormula) {
    for (DType param_dtype : kTypes)
        for (DType grad_dtype : {DType::f32, param_dtype}) {
            AdamCase c;
            const bool own_master = param_dtype != DType::f32;
            const Tensor master = random_tensor(c.n, DType::f32, 1), m = random_tensor(c.n, DType::f32, 2, 0.1);
            const Tensor v(Doubles(size_t(c.n), 0), DType::f32), param(c.n, param_dtype);
            Doubles w = master.values(), m1 = m.values(), v1 = v.values(), roundings(size_t(c.n), 0);
            for (int64_t step : {1, 2, 3}) {
                const Tensor grad = random_tensor(c.n, grad_dtype, 10 + uint64_t(step));
                const AdamW a = c.args(own_master ? param : master, master, m, v, grad, step);
                adamw_cpu(a);
                const Doubles g = grad.values();
                size_t segment = 0;
                for (int64_t i = 0; i < c.n; ++i) {
                    while (c.ends[segment] <= c.first + i) ++segment;
                    const size_t k = size_t(i);
                    const double b1 = double(a.beta1), b2 = double(a.beta2), gi = g[k] * double(c.grad_scale);
                    const double m_terms = std::abs(b1 * m1[k]) + std::abs((1 - b1) * gi);  // may cancel, in m
                    m1[k] = b1 * m1[k] + (1 - b1) * gi;
                    v1[k] = b2 * v1[k] + (1 - b2) * gi * gi;
                    const double slope = 1 / (1 - std::pow(b1, double(step))) /
                                         (std::sqrt(v1[k] / (1 - std::pow(b2, double(step)))) + double(a.eps));
                    const double update = m1[k] * slope;
                    // Some twelve roundings of the update's terms, earlier steps' included, and three of w.
                    roundings[k] += 12 * double(a.lr) * m_terms * slope + 3 * std::abs(w[k]);
                    w[k] -= double(a.lr) * (update + (c.decays[segment] ? double(a.weight_decay) * w[k] : 0));
                }
            }
            const Doubles got = master.values();
            expect_close("w", got, w, [&](size_t i) { return roundings[i] * 0x1p-24; });
            expect_close("m", m.values(), m1, [&](size_t) { return 3 * 4 * 0x1p-24; });
            expect_close("v", v.values(), v1, [&](size_t i) { return 3 * 5 * 0x1p-24 * (v1[i] + 1e-3); });
            if (own_master) {
                EXPECT_EQ(param.bits(), Tensor(got, param_dtype).bits());
            }
        }
}

// With betas of 0, m becomes the gradient and v its square: what they are rounded to shows every random word. Offsets
// beyond 2^34 reach the upper half of Philox's counter.
TEST_P(CpuOptimizer, AdamwRoundsByPhiloxWordByWord) {
    for (const int64_t first : {int64_t(0), int64_t(6), (int64_t(1) << 34) - 1021, (int64_t(1) << 40) + 3}) {
        const int64_t n = 2500, step = 77, end = first + n;
        const uint64_t seed = 0x123456789abcdefull;
        const Tensor master = random_tensor(n, DType::bf16, 1), m = random_tensor(n, DType::bf16, 2);
        const Tensor v(Doubles(size_t(n), 0.01), DType::bf16), grad = random_tensor(n, DType::f32, 3);
        const uint8_t decays = 0;
        const float scale = 1;
        AdamW a = AdamCase().args(master, master, m, v, grad, step);
        a.grad_scale = &scale, a.n = n, a.first = first, a.segment_end = &end, a.decays = &decays, a.segments = 1;
        a.beta1 = a.beta2 = 0, a.seed = seed;
        adamw_cpu(a);
        const float* g = grad.as<float>();
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t element = uint64_t(first + i);
            const uint32_t word = philox4x32(seed, element / 4, moment_stream(step)).w[element % 4];
            ASSERT_EQ(m.as<uint16_t>()[i], stochastic_bf16(g[i], word)) << first << " + " << i;
            ASSERT_EQ(v.as<uint16_t>()[i], stochastic_bf16(g[i] * g[i], word >> 16)) << first << " + " << i;
        }
    }
}

// The step draws the rounding; the bias correction is that of the count.
TEST_P(CpuOptimizer, AdamwCorrectsByTheCountOfUpdatesWhereItIsGiven) {
    const auto run = [&](int64_t step, const double* correction, DType state) {
        AdamCase c;
        const Tensor master = random_tensor(c.n, state, 1), m = random_tensor(c.n, state, 2, 0.1);
        const Tensor v(Doubles(size_t(c.n), 0.01), state), param(c.n, state), grad = random_tensor(c.n, DType::bf16, 3);
        AdamW a = c.args(master, master, m, v, grad, step);
        a.correction = correction;
        adamw_cpu(a);
        return master.bits() + m.bits() + v.bits();
    };
    int64_t updates = 4;
    double correction[2];
    const float good = 1, bad = NAN;
    const auto count = [&](const float& scale) {
        bias_correction_cpu({.updates = &updates,
                             .correction = correction,
                             .grad_scale = &scale,
                             .beta1 = double(0.9f),
                             .beta2 = double(0.95f)});
    };
    count(bad);
    EXPECT_EQ(updates, 4);
    count(good);
    EXPECT_EQ(updates, 5);
    EXPECT_NEAR(correction[0], 1 / (1 - std::pow(double(0.9f), 5)), 1e-14);
    EXPECT_NEAR(correction[1], 1 / std::sqrt(1 - std::pow(double(0.95f), 5)), 1e-13);
    EXPECT_EQ(run(9, correction, DType::f32), run(5, nullptr, DType::f32));
    EXPECT_NE(run(9, correction, DType::f32), run(9, nullptr, DType::f32));
    EXPECT_NE(run(9, correction, DType::bf16), run(5, nullptr, DType::bf16)) << "other chances";
}

TEST_P(CpuOptimizer, AdamwOnAnyCutGivesTheSameBits) {
    AdamCase c;
    const Tensor grad = random_tensor(c.n, DType::bf16, 3);
    const auto run = [&](const std::vector<int64_t>& cuts, DType master_dtype, DType adam_dtype) {
        const Tensor master = random_tensor(c.n, master_dtype, 1), m = random_tensor(c.n, adam_dtype, 2, 0.1);
        const Tensor v(Doubles(size_t(c.n), 0.01), adam_dtype), param(c.n, DType::bf16);
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
            const int64_t begin = cuts[i];
            const auto from = [&](const Tensor& t) {
                return static_cast<void*>(t.as<char>() + begin * size_of(t.dtype()));
            };
            AdamW a = c.args(param, master, m, v, grad, 7);
            a.n = cuts[i + 1] - begin;
            a.first += begin;
            a.grad = from(grad), a.master = from(master), a.m = from(m), a.v = from(v);
            a.param = master_dtype == DType::bf16 ? a.master : from(param);
            adamw_cpu(a);
        }
        return param.bits() + master.bits() + m.bits() + v.bits();
    };
    for (DType master : {DType::f32, DType::bf16})
        for (DType adam : {DType::f32, DType::bf16})
            EXPECT_EQ(run({0, c.n}, master, adam), run({0, 1, 499, 500, 501, 33333, 69999, c.n}, master, adam))
                << name_of(master) << " masters, " << name_of(adam) << " moments";
}

TEST_P(CpuOptimizer, AdamwLeavesTheStateOfABadStep) {
    for (float bad : {NAN, INFINITY}) {
        AdamCase c;
        c.grad_scale = bad;
        const Tensor master = random_tensor(c.n, DType::f32, 1), m = random_tensor(c.n, DType::f32, 2);
        const Tensor v(Doubles(size_t(c.n), 0.01), DType::f32), param = random_tensor(c.n, DType::bf16, 3);
        const Tensor grad = random_tensor(c.n, DType::bf16, 4);
        const std::string before = param.bits() + master.bits() + m.bits() + v.bits();
        adamw_cpu(c.args(param, master, m, v, grad, 1));
        EXPECT_EQ(before, param.bits() + master.bits() + m.bits() + v.bits());
    }
}

TEST_P(CpuOptimizer, GlobalNormIsTheRootOfTheSumOfSquares) {
    for (DType dtype : kTypes) {
        const int64_t n = 5003, block = 512, blocks = ceil_div(n, block);
        const Tensor x = random_tensor(n, dtype, 1);
        const Doubles values = x.values();
        Doubles partial(size_t(blocks), NAN);
        sum_squares_cpu({.partial = partial.data(), .x = x.data(), .n = n, .block = block, .dtype = dtype});
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b) {
            double want = 0;
            for (int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
                want += values[size_t(i)] * values[size_t(i)];
            EXPECT_NEAR(partial[size_t(b)], want, 512 * 0x1p-53 * want);
            total += want;
        }
        // Two ranks that share the fourth block: the other sums are the same, and its two parts add up to it.
        const int64_t cut = 3 * block + 112;
        Doubles low(4, NAN), high(size_t(blocks) - 3, NAN);
        sum_squares_cpu({.partial = low.data(), .x = x.data(), .n = cut, .block = block, .dtype = dtype});
        sum_squares_cpu({.partial = high.data(),
                         .x = static_cast<const char*>(x.data()) + cut * size_of(dtype),
                         .n = n - cut,
                         .block = block,
                         .dtype = dtype,
                         .at = 112});
        EXPECT_NEAR(low[3] + high[0], partial[3], 512 * 0x1p-53 * partial[3]);
        EXPECT_GT(low[3], 0);
        EXPECT_TRUE(std::equal(low.begin(), low.begin() + 3, partial.begin()));
        EXPECT_TRUE(std::equal(high.begin() + 1, high.end(), partial.begin() + 4));
        float norm = NAN, scale = NAN;
        ClipScale a{
            .norm = &norm, .scale = &scale, .partial = partial.data(), .count = blocks, .average = 0.5f, .max_norm = 1};
        clip_scale_cpu(a);
        EXPECT_FLOAT_EQ(norm, float(std::sqrt(total) * 0.5));
        EXPECT_FLOAT_EQ(scale, float(0.5 / (std::sqrt(total) * 0.5 + 1e-6)));
        a.max_norm = 1e6f;
        clip_scale_cpu(a);
        EXPECT_EQ(scale, 0.5f);  // not above it
        a.max_norm = 0;
        clip_scale_cpu(a);
        EXPECT_EQ(scale, 0.5f);                         // no clipping
        const Doubles terms = {1, 0x1p60, -0x1p60, 3};  // in this order 3, in the other 0 (and 1 or 4 without rounding)
        const std::vector<int32_t> order = {3, 1, 0, 2};
        ClipScale ordered{.norm = &norm,
                          .scale = &scale,
                          .partial = terms.data(),
                          .order = order.data(),
                          .count = 4,
                          .average = 1,
                          .max_norm = 0};
        clip_scale_cpu(ordered);
        EXPECT_EQ(norm, 0);
        ordered.order = nullptr;
        clip_scale_cpu(ordered);
        EXPECT_EQ(norm, float(std::sqrt(3)));
        partial[1] = INFINITY;
        clip_scale_cpu(a);
        EXPECT_TRUE(std::isnan(scale));
    }
}

TEST_P(CpuOptimizer, SquaresOfHugeGradientsDoNotOverflow) {
    const Tensor x(Doubles(512, 1e30), DType::f32);
    double partial[2];
    sum_squares_cpu({.partial = partial, .x = x.data(), .n = 512, .block = 256, .dtype = DType::f32});
    EXPECT_NEAR(partial[0] / 256e60, 1, 1e-6);
}

// To the bit, in any cut; a step that is skipped leaves it.
TEST_P(CpuOptimizer, TheAverageOfTheWeightsIsTorchs) {
    using namespace ema_golden;
    const float *const wants[] = {kAverage0, kAverage1}, scales[] = {0.5f, NAN, INFINITY};
    for (size_t d = 0; d < std::size(kDecays); ++d)
        for (const int64_t cut : {int64_t(0), int64_t(1), int64_t(8), int64_t(13)}) {
            std::vector<float> average(kWeights, kWeights + kN);
            for (int64_t step = 1; step <= kSteps; ++step)
                for (const float& scale : scales)
                    for (const auto& [begin, end] : {std::pair(int64_t(0), cut), {cut, kN}})
                        ema_cpu({.average = average.data() + begin,
                                 .x = kWeights + (&scale == scales ? step : 0) * kN + begin,
                                 .grad_scale = &scale,
                                 .n = end - begin,
                                 .weight = float(1 - kDecays[d])});
            for (int64_t i = 0; i < kN; ++i) EXPECT_EQ(average[size_t(i)], wants[d][i]) << "element " << i;
        }
}

}  // namespace
}  // namespace rz::test
