#include "llama/train/guards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "llama/base/json.h"
#include "llama/checkpoint/replicas.h"
#include "llama/train/slow_signs.h"
#include "test/checks.h"

namespace rz {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

double noisy(int i) { return 3.0 + 0.05 * std::sin(12.9898 * i) + 0.02 * std::cos(78.233 * i); }

TEST(SpikeDetector, FlagsTenfoldAndOnlyThat) {
    SpikeDetector d(0.01);
    for (int i = 0; i < 300; ++i) ASSERT_LT(std::abs(d.observe(noisy(i))), 6) << i;
    EXPECT_GT(d.observe(30), 100);
    for (int i = 0; i < 300; ++i) ASSERT_LT(std::abs(d.observe(noisy(i))), 6) << "after the spike, " << i;
}

// A window that took a NaN in would answer NaN forever: llm.c's does.
TEST(SpikeDetector, NanNeverEnters) {
    SpikeDetector with(0.01), without(0.01);
    for (int i = 0; i < 50; ++i) {
        const double a = without.observe(noisy(i));
        EXPECT_EQ(with.observe(kNan), 0);
        EXPECT_EQ(with.observe(kInf), 0);
        EXPECT_EQ(with.observe(-kInf), 0);
        EXPECT_EQ(with.observe(noisy(i)), a);
    }
    EXPECT_EQ(with.to_json(), without.to_json());
}

TEST(SpikeDetector, ConstantLossIsNoSpike) {
    SpikeDetector d(0.01);
    for (int i = 0; i < 40; ++i) ASSERT_EQ(d.observe(2.0), 0);
    EXPECT_LT(d.observe(2.0 + 1e-6), 1e-3) << "a deviation of zero must not divide";
}

TEST(SpikeDetector, FallingLossIsNoSpike) {
    SpikeDetector d(0.01);
    for (int i = 0; i < 500; ++i) ASSERT_LT(d.observe(10 * std::exp(-i / 50.0) + noisy(i)), 4) << i;
}

TEST(Guards, ALossThatStaysHighIsASpikeThoughNoStepStandsOut) {
    std::vector<double> values;
    SpikeDetector d(0.01);
    for (int i = 0; i < 60; ++i) values.push_back(noisy(i)), d.observe(noisy(i));
    std::vector<double> sorted = values, off;
    std::sort(sorted.begin(), sorted.end());
    const double middle = 0.5 * (sorted[29] + sorted[30]);
    for (double v : values) off.push_back(std::abs(v - middle));
    std::sort(off.begin(), off.end());
    const double high = middle + 2.2 * std::max(1.4826 * 0.5 * (off[29] + off[30]), 0.01 * std::abs(middle));
    const double one = GuardOptions{}.spike_z;
    for (int i = 0; i < 4; ++i) EXPECT_LT(d.observe(high), one) << "no step stands out, " << i;
    for (int i = 0; i < 3; ++i) d.observe(high);
    EXPECT_GT(d.observe(high), one) << "eight of them do";
    for (int i = 0; i < 4; ++i) d.observe(noisy(i));
    EXPECT_LT(d.observe(noisy(4)), one) << "three of the last eight";
}

// ai2-olmo-core 3.0.0's SkipStepOptimizer on the same numbers (torch 2.15.0), by dev/golden/make_skip_step_golden.py
constexpr int kOlmoSkips[] = {90, 91, 130, 200};

TEST(SkipStep, LeavesOutWhatOlmosDoes) {
    uint64_t state = 1;
    const auto draw = [&](uint64_t n) {
        state = (state * 1103515245 + 12345) % (uint64_t(1) << 31);
        return double((state >> 16) % n);
    };
    Guards g({.on_spike = OnSpike::skip});
    std::vector<int> skips;
    for (int step = 1; step <= 400; ++step) {
        double loss = 3 + draw(256) / 1024, norm = 1 + draw(256) / 512;
        if (step == 40 || step == 90 || step == 91 || step == 150) loss += 2;
        if (step == 120) loss -= 2;
        if (step == 30 || step == 130 || step == 200) norm += 4;
        if (step >= 250) loss += 1;
        const bool out = g.is_outlier(loss, norm);
        if (out) skips.push_back(step);
        if (step == 200) {  // a resume in the middle
            Guards resumed({.on_spike = OnSpike::skip});
            resumed.from_json(parse_json(g.to_json().dump(), "m"), "m");
            g = resumed;
        }
        const Verdict v = g.observe(step, loss, norm, 0, out);
        EXPECT_EQ(v.left_out, out);
        EXPECT_TRUE(v.give_up.empty());
    }
    EXPECT_EQ(skips, std::vector<int>(std::begin(kOlmoSkips), std::end(kOlmoSkips)));
    EXPECT_EQ(g.left_out(), int64_t(skips.size()));
    EXPECT_EQ(g.skipped(), 0) << "--max-skips counts what is not finite";
    EXPECT_FALSE(g.is_outlier(kNan, 1.0));
    EXPECT_FALSE(g.is_outlier(3.0, kInf));
}

// A dynamic loss scale answers an overflow by itself. At its floor it can't, and a loss that is not finite is not the
// scale's doing.
TEST(Guards, AnOverflowAboveTheFloorIsNeitherASkipNorASpike) {
    Guards g({.max_skips = 2}), without({.max_skips = 2});
    for (int i = 0; i < 40; ++i) {
        const Verdict v = g.observe(i, noisy(i), i % 2 ? kInf : 1.0, 1024);
        EXPECT_EQ(v.skipped, i % 2 == 1);
        EXPECT_TRUE(v.give_up.empty());
        if (i % 2 == 0) without.observe(i, noisy(i), 1.0);
    }
    EXPECT_EQ(g.overflows(), 20);
    EXPECT_EQ(g.skipped(), 0);
    EXPECT_EQ(g.to_json()["loss"], without.to_json()["loss"]) << "an overflow enters no window";
    EXPECT_EQ(g.observe(40, noisy(40), kNan, 1024).note, "overflow at loss scale 1024, update skipped");
    EXPECT_TRUE(g.observe(41, noisy(41), kInf).give_up.empty());
    EXPECT_FALSE(g.observe(42, noisy(42), kInf).give_up.empty()) << "at the floor: two in a row";
    Guards h({.max_skips = 2});
    h.observe(0, kNan, kNan, 1024);
    EXPECT_FALSE(h.observe(1, kNan, kNan, 1024).give_up.empty()) << "the loss itself";
}

TEST(Guards, StateIsRestoredToTheBit) {
    Guards a({.max_skips = 0});
    std::mt19937 random(1);
    std::uniform_real_distribution<double> loss(2, 4);
    for (int i = 0; i < 200; ++i) a.observe(i, i % 17 == 3 ? kNan : loss(random), 0.3 * loss(random));
    Guards b({.max_skips = 0});
    b.from_json(parse_json(a.to_json().dump(), "the manifest"), "the manifest");
    EXPECT_EQ(a.to_json(), b.to_json());
    for (int i = 0; i < 200; ++i) {
        const double l = i == 77 ? 40.0 : loss(random), n = loss(random);
        const Verdict x = a.observe(i, l, n), y = b.observe(i, l, n);
        ASSERT_EQ(x.loss_z, y.loss_z);
        ASSERT_EQ(x.norm_z, y.norm_z);
        ASSERT_EQ(x.spike, y.spike);
    }
    EXPECT_EQ(a.skipped(), b.skipped());
    EXPECT_GE(a.spikes(), 1);
}

TEST(Guards, RefusesBrokenState) {
    Guards g({});
    g.observe(1, 2.0, 1.0);
    const Json good = g.to_json();
    for (const char* key : {"skipped", "skipped_in_a_row", "spikes", "loss", "norm"}) {
        Json bad = good;
        bad.erase(key);
        EXPECT_THROW(g.from_json(bad, "m"), Error) << key;
        bad = good;
        bad[key] = "x";
        EXPECT_THROW(g.from_json(bad, "m"), Error) << key;
        bad = good;
        bad[key] = key[0] == 's' ? Json(-1) : Json(std::vector<double>(SpikeDetector::kWindow + 1, 1.0));
        EXPECT_THROW(g.from_json(bad, "m"), Error) << key;
    }
    EXPECT_EQ(g.to_json(), good);
}

TEST(Guards, GivesUpAfterSoManyInARow) {
    Guards g({.max_skips = 3});
    EXPECT_TRUE(g.observe(1, kNan, 1).skipped);
    EXPECT_TRUE(g.observe(2, 1, kInf).skipped);
    EXPECT_FALSE(g.observe(3, 1, 1).skipped);
    EXPECT_EQ(g.skipped_in_a_row(), 0);
    EXPECT_EQ(g.observe(4, kNan, kNan).give_up, "");
    EXPECT_EQ(g.observe(5, kNan, kNan).give_up, "");
    EXPECT_TRUE(says(g.observe(6, kNan, kNan).give_up, "3 steps in a row"));
    EXPECT_EQ(g.skipped(), 5);
}

TEST(Guards, StopsOnASpikeOnlyIfAsked) {
    for (bool stop : {false, true}) {
        Guards g({.on_spike = stop ? OnSpike::stop : OnSpike::warn});
        for (int i = 0; i < 40; ++i) ASSERT_FALSE(g.observe(i, noisy(i), 1.0 + 0.1 * (i % 3)).spike);
        const Verdict v = g.observe(41, 30, 1.1);
        EXPECT_TRUE(v.spike);
        EXPECT_TRUE(says(v.note, "spike of the loss, z "));
        EXPECT_EQ(!v.give_up.empty(), stop);
    }
    Guards off({.spike_z = 0});
    for (int i = 0; i < 40; ++i) ASSERT_FALSE(off.observe(i, i == 39 ? 1e9 : 1, 1).spike);
}

// A norm that jumps while the loss is fine is clipped, and ends nothing.
TEST(Guards, TheNormAloneIsNoSpike) {
    for (OnSpike on : {OnSpike::warn, OnSpike::stop, OnSpike::rollback}) {
        Guards g({.on_spike = on});
        for (int i = 0; i < 400; ++i) {
            const Verdict v = g.observe(i, noisy(i), i % 50 == 49 ? 150.0 : 1.0 + 0.1 * (i % 3));
            ASSERT_FALSE(v.spike) << i;
            ASSERT_EQ(v.note + v.give_up, "") << i;
        }
        EXPECT_EQ(g.spikes(), 0);
        const Verdict v = g.observe(400, 30, 150);
        EXPECT_TRUE(v.spike);
        EXPECT_GT(v.norm_z, 8);
        EXPECT_EQ(v.give_up.empty(), on == OnSpike::warn);
    }
}

TEST(StragglerDetector, NamesTheSlowRank) {
    StragglerDetector d;
    int named = -1;
    for (int i = 0; i < 20; ++i) named = d.observe({0.1, 0.11, 0.33, 0.09});
    EXPECT_EQ(named, 2);
    EXPECT_NEAR(d.seconds(), 0.33, 1e-6);
    EXPECT_NEAR(d.others(), 0.1, 1e-6);
}

TEST(StragglerDetector, OneSlowStepIsNone) {
    StragglerDetector d;
    for (int i = 0; i < 20; ++i) EXPECT_EQ(d.observe({0.1, i == 10 ? 0.3 : 0.1, 0.1}), -1) << i;
    StragglerDetector two;
    int named = -1;
    for (int i = 0; i < 20; ++i) named = two.observe({0.3, 0.1});
    EXPECT_EQ(named, 0) << "of two ranks the slower";
    StragglerDetector quick;
    for (int i = 0; i < 20; ++i) EXPECT_EQ(quick.observe({0.001, 0.004, 0.001}), -1) << "milliseconds are noise";
    EXPECT_EQ(StragglerDetector().observe({1.0}), -1);
}

// Over a hundred steps a tenth is enough, where the rank's own steps differ by less; a tenth of noise is not.
TEST(StragglerDetector, ALittleSlownessIsNamedOverAHundredSteps) {
    StragglerDetector steady, noisy, new_one, half;
    int named = -1;
    for (int i = 0; i < 100; ++i) {
        const double jitter = 1e-4 * (i % 7);
        named = steady.observe({0.1 + jitter, 0.1, 0.112 + jitter, 0.1 - jitter});
        if (i < 99) {
            ASSERT_EQ(named, -1) << i;
        }
        EXPECT_EQ(noisy.observe({0.1, 0.1, i % 2 ? 0.14 : 0.09, 0.1}), -1) << i;
    }
    EXPECT_EQ(named, 2);
    EXPECT_NEAR(steady.seconds() / steady.others(), 1.12, 0.01);
    for (int i = 0; i < 50; ++i) {
        named = half.observe({0.1, 0.17, 0.1});
        if (i < 49) {
            ASSERT_EQ(named, -1) << i;
        }
    }
    EXPECT_EQ(named, 1) << "1.7 times is named after 50";
    for (int i = 0; i < 400; ++i) named = new_one.observe({0.1, 0.1, i < 200 ? 0.1 : 0.112});
    EXPECT_EQ(named, 2) << "a rank that has become slow";
}

TEST(SlowReason, SaysInWhatTheRankDiffers) {
    std::vector<SlowSigns> ranks(4);
    for (SlowSigns& s : ranks) s.clock_mhz = 1755, s.load = 0.5f;
    EXPECT_EQ(slow_reason(ranks, 2), "");
    ranks[2] = {.clock_mhz = 1200, .load = 2, .ecc = 3, .faults = 40};
    EXPECT_EQ(slow_reason(ranks, 2),
              "its GPU runs at 1200 MHz, the others' at 1755; its GPU's memory had 3 ECC errors in this run; "
              "40 page faults a step are served from disk; its host has 2.0 processes for each core that want to run");
    EXPECT_EQ(slow_reason(ranks, 1), "");
}

TEST(OddOnesOut, TheMinorityIsNamed) {
    using V = std::vector<int>;
    EXPECT_EQ(odd_ones_out({7, 7, 7}), V{});
    EXPECT_EQ(odd_ones_out({7, 8, 7, 7}), V{1});
    EXPECT_EQ(odd_ones_out({7, 8, 9, 7, 7}), (V{1, 2}));
    EXPECT_EQ(odd_ones_out({7, 8}), (V{0, 1}));
    EXPECT_EQ(odd_ones_out({7, 7, 8, 8}), (V{0, 1, 2, 3}));
    EXPECT_EQ(odd_ones_out({7}), V{});
}

}  // namespace
}  // namespace rz
