// Stochastic rounding: exactly unbiased by itself, and as AdamW uses it.

#include "kernels/stochastic_rounding.h"

#include <random>

#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

float value_of(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

// Over all 2^16 chances the mean is x itself: the sum of 2^16 bf16 values is exact in double.
TEST(StochasticRounding, MeanOverAllChancesIsTheValue) {
    std::mt19937 rng(3);
    for (int i = 0; i < 100; ++i) {
        const uint32_t bits = rng();
        const float x = std::bit_cast<float>(bits);
        if (!(std::abs(x) < 3e38f)) continue;
        double sum = 0;
        for (uint32_t chance = 0; chance < 65536; ++chance)
            sum += double(value_of(stochastic_bf16(x, chance | bits << 16)));
        EXPECT_EQ(sum / 65536, double(x));
    }
}

TEST(StochasticRounding, WhatBf16HasIsNeverChanged) {
    for (uint32_t high = 0; high < 65536; ++high) {
        const float x = value_of(uint16_t(high));
        for (uint32_t chance : {0u, 1u, 0x8000u, 0xffffu}) {
            if (std::isnan(x))
                EXPECT_TRUE(std::isnan(value_of(stochastic_bf16(x, chance)))) << high;
            else
                EXPECT_EQ(stochastic_bf16(x, chance), high);
        }
    }
    for (uint32_t nan : {0x7f800001u, 0xffffffffu, 0x7fffffffu, 0xff80ffffu})
        EXPECT_TRUE(std::isnan(value_of(stochastic_bf16(std::bit_cast<float>(nan), 0xffff)))) << nan;
}

// One state in every element; what one update makes of it.
struct OneState {
    int64_t n;
    double w, m, v, g;
    float lr = 1e-3f;

    struct After {
        Doubles w, m, v;
    };
    After update(DType dtype, uint64_t seed, int64_t first, int64_t step, int times = 1) const {
        const auto all = [&](double x) { return Tensor(Doubles(size_t(n), x), dtype); };
        const Tensor tw = all(w), tm = all(m), tv = all(v), tg(Doubles(size_t(n), g), DType::f32);
        AdamCase c{.n = n, .first = first, .ends = {int64_t(1) << 40}, .decays = {0}, .grad_scale = 1};
        for (int i = 0; i < times; ++i) {
            AdamW a = c.args(tw, tw, tm, tv, tg, step + i);
            a.lr = lr, a.weight_decay = 0, a.seed = seed;
            adamw_cpu(a);
        }
        return {tw.values(), tm.values(), tv.values()};
    }
};

double mean(const Doubles& x) {
    double sum = 0;
    for (double e : x) sum += e;
    return sum / double(x.size());
}

// w, m and v each land a quarter of the way between two bf16 neighbours, or so: nearest rounding would be off by a
// quarter of a unit in every element. By chance the mean of n draws is off by at most half a unit over the root of n,
// one standard deviation; 5 of them, once in 2 million, is the bound, 50 times below a quarter.
TEST(StochasticRounding, AdamwsMeanErrorOverSeedsIsNone) {
    OneState s{.n = 2000, .w = 1, .m = 0.5, .v = 0.25, .g = 0.51};
    const auto exact = s.update(DType::f32, 0, 0, 5);
    const int seeds = 50;
    OneState::After sum{Doubles(1), Doubles(1), Doubles(1)};
    for (int seed = 0; seed < seeds; ++seed) {
        const auto got = s.update(DType::bf16, uint64_t(seed), 1000003 * seed, 5);
        sum.w[0] += mean(got.w) / seeds, sum.m[0] += mean(got.m) / seeds, sum.v[0] += mean(got.v) / seeds;
    }
    const auto check = [&](const char* name, double got, double want) {
        const double unit = std::ldexp(1.0, std::ilogb(want) - 7);
        const double off = want / unit - std::floor(want / unit);
        ASSERT_GT(std::min(off, 1 - off), 0.1) << name << ": nearest rounding would hardly show";
        EXPECT_NEAR(got, want, 5 * 0.5 * unit / std::sqrt(double(s.n) * seeds)) << name;
    };
    check("w", sum.w[0], exact.w[0]);
    check("m", sum.m[0], exact.m[0]);
    check("v", sum.v[0], exact.v[0]);
}

// Each pair's correlation is 0 with a standard deviation of 1 / sqrt(n); 5 of them.
TEST(StochasticRounding, ChancesAreIndependent) {
    const OneState s{.n = 20000, .w = 1, .m = 0.5, .v = 0.25, .g = 0.51};
    const auto a = s.update(DType::bf16, 1, 0, 5);
    const auto expect_uncorrelated = [&](const char* what, Doubles x, Doubles y) {
        const double mx = mean(x), my = mean(y);
        double xy = 0, xx = 0, yy = 0;
        for (size_t i = 0; i < x.size(); ++i)
            xy += (x[i] - mx) * (y[i] - my), xx += (x[i] - mx) * (x[i] - mx), yy += (y[i] - my) * (y[i] - my);
        EXPECT_GT(xx, 0) << what;
        EXPECT_LT(std::abs(xy) / std::sqrt(xx * yy), 5 / std::sqrt(double(x.size()))) << what;
    };
    expect_uncorrelated("m and v", a.m, a.v);
    expect_uncorrelated("w and m", a.w, a.m);
    expect_uncorrelated("w and v", a.w, a.v);
    expect_uncorrelated("two seeds", a.m, s.update(DType::bf16, 2, 0, 5).m);
    expect_uncorrelated("two places", a.m, s.update(DType::bf16, 1, 20000, 5).m);
    // Another step has another bias correction, which m and v don't see.
    expect_uncorrelated("two steps", a.m, s.update(DType::bf16, 1, 0, 6).m);
    Doubles next(a.m.begin() + 1, a.m.end()), here(a.m.begin(), a.m.end() - 1);
    expect_uncorrelated("neighbours", here, next);
}

// 64 updates of -1/16 of a unit each: rounding to nearest would leave every weight where it was.
TEST(StochasticRounding, SmallUpdatesAreNotLost) {
    // m and v are where they stay under a constant gradient, so each update is lr.
    OneState s{.n = 4000, .w = 1.5, .m = 0.5, .v = 0.25, .g = 0.5};
    s.lr = float(std::ldexp(1.0, -7) / 16);
    const int64_t late = 1000;  // bias corrections are 1
    const double moved = 1.5 - mean(s.update(DType::bf16, 4, 0, late, 64).w);
    // A step's rounding has a variance of p (1 - p) units^2 with p = 1/16; 64 of them, 4000 weights; 5 standard
    // deviations.
    const double unit = std::ldexp(1.0, -7);
    EXPECT_NEAR(moved, 64 * unit / 16, 5 * unit * std::sqrt(64 * 15.0 / 256 / 4000));
}

}  // namespace
}  // namespace rz::test
