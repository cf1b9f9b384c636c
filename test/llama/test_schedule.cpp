#include "llama/train/schedule.h"

#include <gtest/gtest.h>

#include "llama/train/options.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

constexpr double kPeak = 3e-4, kFloor = 3e-5;

Schedule make(Decay decay, int64_t cooldown = 0) {
    return {.decay = decay, .peak = kPeak, .floor = kFloor, .warmup = 10, .cooldown = cooldown, .steps = 110};
}

TEST(Schedule, AllWarmUpAlikeAndEndAtTheFloor) {
    for (const Decay decay : {Decay::cosine, Decay::linear, Decay::constant, Decay::wsd}) {
        const Schedule s = make(decay, 20);
        for (int64_t step = 1; step <= 10; ++step) EXPECT_DOUBLE_EQ(s.at(step), kPeak * double(step) / 10);
        for (int64_t step = 11; step <= 130; ++step) EXPECT_LE(s.at(step), s.at(step - 1)) << step;
        EXPECT_EQ(s.at(110), decay == Decay::constant ? kPeak : kFloor);
        EXPECT_EQ(s.at(500), s.at(110));
    }
}

TEST(Schedule, ShapesAreThoseOfThePapers) {
    const double span = kPeak - kFloor;
    EXPECT_DOUBLE_EQ(make(Decay::cosine).at(60), kFloor + span / 2);
    EXPECT_DOUBLE_EQ(make(Decay::cosine).at(35), kFloor + span * (1 + std::sqrt(0.5)) / 2);
    EXPECT_DOUBLE_EQ(make(Decay::linear).at(35), kFloor + span * 0.75);
    const Schedule wsd = make(Decay::wsd, 20);
    EXPECT_EQ(wsd.at(90), kPeak);
    EXPECT_DOUBLE_EQ(wsd.at(95), kFloor + span * 0.5) << "a quarter through: 1 - sqrt(1/4)";
    EXPECT_EQ(make(Decay::wsd, 0).at(109), kPeak);
    EXPECT_LT(make(Decay::wsd, 110).at(11), kPeak) << "a cooldown over the whole run begins after the warm-up";
}

TEST(Schedule, DefaultsDependOnTheRun) {
    const TrainOptions o = train_options("--steps 500 --lr 1e-3");
    EXPECT_EQ(o.decay, Decay::cosine);
    EXPECT_EQ(o.warmup, 50);
    EXPECT_DOUBLE_EQ(o.min_lr, 1e-4);
    EXPECT_EQ(train_options("--steps 500 --lr-schedule wsd").cooldown, 100);
    EXPECT_EQ(train_options("--steps 500 --lr-schedule constant --lr 2e-3").min_lr, 2e-3);
}

// --lr-continue: from the last rate down to the floor, whatever the shape; --rewarm: up to the peak first.
TEST(Schedule, AResumedRunGoesOnFromItsLastRate) {
    for (const Decay decay : {Decay::cosine, Decay::linear, Decay::wsd, Decay::constant}) {
        Schedule s{.decay = decay, .peak = 1e-3, .floor = 1e-5, .warmup = 10, .cooldown = 20, .steps = 100};
        const Schedule before = s;
        s.from_step = 40, s.from_rate = 2e-4;
        EXPECT_EQ(s.at(40), before.at(40)) << "up to there as before";
        double last = 2e-4;
        for (int64_t step = 41; step <= 100; ++step) {
            EXPECT_LE(s.at(step), last) << name_of(decay) << " " << step;
            EXPECT_GT(s.at(step), 0.8 * last - 2e-5) << name_of(decay) << " " << step << ": no jump";
            last = s.at(step);
        }
        EXPECT_EQ(last, decay == Decay::constant ? 2e-4 : 1e-5);
        s.rewarm = 8;
        EXPECT_DOUBLE_EQ(s.at(44), 2e-4 + (1e-3 - 2e-4) / 2);
        EXPECT_DOUBLE_EQ(s.at(48), 1e-3);
        EXPECT_EQ(s.at(100), decay == Decay::constant ? 1e-3 : 1e-5);
    }
    // A floor above the last rate is no reason to rise.
    const Schedule low{.peak = 1e-3, .floor = 1e-4, .steps = 50, .from_step = 20, .from_rate = 3e-5};
    EXPECT_EQ(low.at(30), 3e-5);
    EXPECT_EQ(low.at(50), 3e-5);
}

}  // namespace
}  // namespace rz
