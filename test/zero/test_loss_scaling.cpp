// Loss scaling: the rule against the frameworks', and what it leaves of a run's bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/loss_scale.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

// ---- the rule -------------------------------------------------------------------------------------------------------

std::vector<bool> overflows(int n, double share, uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<bool> out;
    for (int i = 0; i < n; ++i) out.push_back(double(rng()) < share * 4294967296.0);
    return out;
}

std::vector<float> scales_of(const std::vector<bool>& steps, float initial, int window, int hysteresis) {
    LossScaleState s{initial, 1 / initial, 0, hysteresis};
    std::vector<float> out;
    for (const bool overflow : steps) {
        const float grad_scale = overflow ? NAN : 0.5f;
        loss_scale_update_cpu({&s, &grad_scale, window, hysteresis, 1, 0x1p32f});
        EXPECT_EQ(s.scale * s.inverse, 1);
        out.push_back(s.scale);
    }
    return out;
}

// Recorded from a real scaler: torch 2.15.0, by dev/golden/make_loss_scale_golden.py
constexpr struct {
    int window;
    const char *overflows, *exponents;
    int updates;
} kGradScaler[] = {
    {7, "........XX...X.....XX.....X........X....................X..............XX.......",
     "qqqqqqrrqppppoooooonmmmmmmlllllllmmlllllllmmmmmmmnnnnnnnmmmmmmmnnnnnnnonmmmmmmmn", 70},
    {3, "..XX.......X........XX.......X.X...X.........X...................X..............",
     "qqpooopppqqpppqqqrrrqpppqqqrrqqpppqpppqqqrrrsrrrssstttuuuvvvwwwxxwwwxxxyyyzzz{{{", 70},
    {20, "......X.........................................................................",
     "qqqqqqppppppppppppppppppppqqqqqqqqqqqqqqqqqqqqrrrrrrrrrrrrrrrrrrrrssssssssssssss", 79},
    {1, "XXXXXX...X.XXXX....XX....X...X.X...X.....X.XXX.XX.X..X.XXX.XX.X..XXX..XXX.X.....",
     "ponmlklmnmnmlkjklmnmlmnopopqrqrqrststuvwxwxwvuvututuvuvutstsrsrstsrqrsrqpqpqrstu", 42},
};

TEST(LossScaling, WithoutHysteresisItIsTorchsGradScaler) {
    for (const auto& row : kGradScaler) {
        std::vector<bool> steps;
        std::vector<float> want;
        for (const char* c = row.overflows; *c; ++c) steps.push_back(*c == 'X');
        for (const char* c = row.exponents; *c; ++c) want.push_back(std::ldexp(1.0f, *c - 'a'));
        EXPECT_EQ(scales_of(steps, 65536, row.window, 1), want) << "window " << row.window;
        EXPECT_EQ(std::count(steps.begin(), steps.end(), false), row.updates);
    }
}

// DeepSpeed's DynamicLossScaler.update_scale with consecutive_hysteresis False, delayed_shift = hysteresis.
TEST(LossScaling, WithHysteresisItIsDeepSpeedsScaler) {
    for (const uint32_t seed : {4u, 5u, 6u}) {
        const std::vector<bool> steps = overflows(400, 0.1, seed);
        std::vector<float> want;
        double scale = 65536;
        int left = 3, last_overflow = -1;
        for (int i = 0; i < int(steps.size()); ++i) {
            if (steps[size_t(i)]) {
                if (left == 1)
                    scale = std::max(scale / 2, 1.0);
                else
                    --left;
                last_overflow = i;
            } else if ((i - last_overflow) % 9 == 0) {
                left = 3;
                scale *= 2;
            }
            want.push_back(float(scale));
        }
        EXPECT_EQ(scales_of(steps, 65536, 9, 3), want);
    }
}

TEST(LossScaling, StopsAtItsFloorAndItsCeiling) {
    EXPECT_EQ(scales_of(std::vector<bool>(4, true), 4, 1, 1), (std::vector<float>{2, 1, 1, 1}));
    EXPECT_EQ(scales_of(std::vector<bool>(3, false), 0x1p31f, 1, 1), (std::vector<float>{0x1p32f, 0x1p32f, 0x1p32f}));
}

// ---- runs -----------------------------------------------------------------------------------------------------------

Layout scaled(const Layout& plain, const LossScaling& scaling) {
    Layout how = plain;
    how.zero.loss_scaling = scaling;
    return how;
}

// A power of two commutes with rounding: gradient, norm, clip and update are those of the unscaled run. The first norms
// are clipped, so clipping before unscaling would show.
TEST(LossScaling, APowerOfTwoOnFp32ChangesNoBit) {
    for (const std::string& stage : kStages) {
        SCOPED_TRACE(stage);
        const Layout plain = with(data_ranks(3), "--micro-batches 2 " + stage);
        Outcome want = train(plain);
        want.scales.assign(10, 4096);
        expect_the_bits(train(scaled(plain, {.initial = 4096})), want);
    }
}

// An overflow on one rank: every rank skips the same step and halves; the step might as well not have been.
TEST(LossScaling, AnOverflowHalvesTheScaleOnAllRanksAndCountsAsNoUpdate) {
    Layout how = scaled(data_ranks(3), {.initial = 65536, .dynamic = true, .window = 3, .hysteresis = 1});
    Layout without = how;
    without.omitted = 5, how.bad_step = 5;
    const Outcome want = train(without);
    expect_rows(kStages, how, [&](const Outcome& got) {
        // Doubled after step 3, halved after step 5, the count of good steps begins again: doubled after step 8.
        EXPECT_EQ(got.scales,
                  (std::vector<float>{65536, 65536, 131072, 131072, 65536, 65536, 65536, 131072, 131072, 131072}));
        EXPECT_EQ(got.updates, 9);
        EXPECT_EQ(got.weights, want.weights);
        EXPECT_EQ(got.unequal, 0);
    });
}

TEST(LossScaling, Fp16StagesAgree) {
    Layout base = scaled(with(data_ranks(3), "--dtype fp16"), {.initial = 65536, .dynamic = true, .window = 4});
    base.bad_step = 3;
    const Outcome want = train(base);
    EXPECT_EQ(want.updates, 9);
    expect_rows({"--zero 1", "--zero 2", "--zero 3 --recompute block"}, base, has_the_bits_of(want));
}

// With a loss times 2^-22 every gradient is below half of fp16's smallest number, 2^-24: unscaled they are all zero and
// nothing is learnt. Scaled, the norm is fp32's (Fp16GradientsAreNearFp32s has the tolerance).
TEST(LossScaling, GradientsTooSmallForFp16SurviveOnlyScaled) {
    Layout fp32 = data_ranks(1);
    fp32.loss_factor = 0x1p-22f;
    const Layout fp16 = with(fp32, "--dtype fp16");
    const Outcome want = train(fp32), stalled = train(scaled(fp16, {.initial = 1})),
                  learnt = train(scaled(fp16, {.initial = 0x1p26f}));
    EXPECT_EQ(stalled.norms[0], std::vector<float>(10, 0.0f));
    EXPECT_GT(want.norms[0][0], 0x1p-26f);
    EXPECT_NEAR(learnt.norms[0][0], want.norms[0][0], 0x1p-7 * want.norms[0][0]);
    EXPECT_NE(learnt.weights, stalled.weights);
}

// The norm of the first step's gradient against fp32's. A gradient passes about 60 roundings of 2^-11 on its way
// through three layers, independent of each other; the norm averages thousands of elements. 2^-7 is 16 roundings in a
// row in the same direction.
TEST(LossScaling, Fp16GradientsAreNearFp32s) {
    const Outcome want = train(data_ranks(1)),
                  got = train(scaled(with(data_ranks(1), "--dtype fp16"), {.initial = 16384, .dynamic = true}));
    EXPECT_NEAR(got.norms[0][0], want.norms[0][0], 0x1p-7 * want.norms[0][0]);
    EXPECT_EQ(got.updates, 10);
}

}  // namespace
}  // namespace rz
