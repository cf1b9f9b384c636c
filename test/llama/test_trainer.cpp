// The parts of a run, put together as the program does it and looked at one by one: numbers one step late, checkpoints,
// rollback, resume. test/program/ has whole runs.

#include <cmath>

#include "kernels/runtime/context.h"
#include "llama/train/plan_memory.h"
#include "llama/train/trainer.h"
#include "test/checks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

class TrainerTest : public testing::Test {
   protected:
    TrainerTest() { write_tokens(folder_ / "tokens.bin", 4000); }

    TrainOptions options(const std::string& more = "") const {
        return train_options(kToyModel + ("--batch 2 --batch-tokens 64 --steps 8 --val-every 0 --train-data " +
                                          folder_.path + "/tokens.bin --out " + folder_.path + "/run " + more));
    }

    static void step(Trainer& t, int64_t number) {
        begin_step(t, number);
        t.core->model.run(t.core->program, t.goal(), [&](int64_t m) { return t.batches->training(number, m); });
        t.core->zero.optimizer.gradient_norm();
        t.core->zero.optimizer.update(float(t.lr.at(number)), number);
        end_step(t, number);
    }

    // Masters of the first unit, as they are once all that was enqueued is done.
    static std::vector<float> weights(Trainer& t) {
        t.core->compute.synchronize();
        const OwnedRange& r = t.core->zero.optimizer.owned().front();
        return {static_cast<float*>(r.master), static_cast<float*>(r.master) + r.elements.size()};
    }

    TempFolder folder_;
    Process process_;
};

TEST_F(TrainerTest, NumbersAreReportedOneStepLate) {
    const TrainOptions o = options();
    RunGuard health(o, process_);
    Trainer t(o, process_, health);
    EXPECT_EQ(t.start.first_step(), 1);
    EXPECT_EQ(t.core->options.micro_batches, 2);
    for (int64_t s = 1; s <= 3; ++s) {
        step(t, s);
        EXPECT_EQ(t.metrics->last_step(), s);
        EXPECT_EQ(t.metrics->steps_done(), s - 1);
    }
    t.metrics->flush();
    EXPECT_EQ(t.metrics->steps_done(), 3);
    EXPECT_EQ(t.metrics->updates(), 3);
    t.log.reset();  // writes what is buffered
    const std::vector<Json> r = metrics_in(folder_ / "run");
    ASSERT_EQ(r.size(), 3u);
    for (size_t i = 0; i < r.size(); ++i) {
        EXPECT_EQ(r[i]["step"], int64_t(i + 1));
        EXPECT_EQ(r[i]["tokens"], 64 * int64_t(i + 1));
        EXPECT_NEAR(r[i]["loss"].get<double>(), std::log(512.0), 0.5);  // of a model that knows nothing yet
    }
}

TEST_F(TrainerTest, ACheckpointSaysWhereTheDataContinueAndResumeBeginsThere) {
    const TrainOptions o = options("--save-every 3");
    std::vector<float> want;
    {
        RunGuard health(o, process_);
        Trainer t(o, process_, health);
        for (int64_t s = 1; s <= 3; ++s) step(t, s);
        EXPECT_TRUE(t.saves(3));
        EXPECT_FALSE(t.saves(2));
        save(t, 3);
        ASSERT_TRUE(t.saver->finish());
        EXPECT_EQ(health.status().saved_step(), 3);
        step(t, 4);
        want = weights(t);
    }
    process_.on_failure(nullptr);  // which holds the folder's lock
    TrainOptions again = options("--save-every 3 --resume auto");
    RunGuard health(again, process_);
    const std::optional<ResumePoint> point = find_checkpoint(again, process_, health.status().saved_step());
    ASSERT_TRUE(point.has_value());
    EXPECT_EQ(point->manifest.step, 3);
    EXPECT_EQ(point->manifest.samples, 3 * 4);
    Trainer t(again, process_, health, point);
    EXPECT_EQ(t.start.first_step(), 4);
    EXPECT_EQ(t.batches->samples_before(4), 12);
    step(t, 4);
    EXPECT_TRUE(weights(t) == want) << "step 4 after resume differs from step 4 without";
}

// Saved between two changes of the scale, after one overflow of the two that halve it: scale, good updates and patience
// are all other than those of a run that begins. In the next step the scale doubles, or would not.
TEST_F(TrainerTest, ALossScaleIsResumedInTheMiddleOfItsInterval) {
    const std::string flags = "--save-every 4 --dtype fp16 --loss-scale-window 2";
    const auto state = [](Trainer& t) {
        t.core->compute.synchronize();
        const LossScaleState& l = *t.core->zero.optimizer.loss_scale();
        return std::vector<double>{l.scale, double(l.good), double(l.patience)};
    };
    const std::vector<double> saved = {131072, 1, 1}, doubled = {262144, 0, 2};
    std::vector<float> want;
    {
        const TrainOptions o = options(flags);
        RunGuard health(o, process_);
        Trainer t(o, process_, health);
        for (int64_t s = 1; s <= 4; ++s) {
            static const float kInfinity = INFINITY;
            if (s == 3) t.core->compute.copy(t.core->zero.grads.gradients(1), &kInfinity, 4);
            step(t, s);
        }
        EXPECT_EQ(state(t), saved);
        save(t, 4);
        ASSERT_TRUE(t.saver->finish());
        step(t, 5);
        EXPECT_EQ(state(t), doubled);
        want = weights(t);
    }
    process_.on_failure(nullptr);
    const TrainOptions o = options(flags + " --resume auto");
    RunGuard health(o, process_);
    const std::optional<ResumePoint> point = find_checkpoint(o, process_, health.status().saved_step());
    ASSERT_TRUE(point.has_value());
    Trainer t(o, process_, health, point);
    EXPECT_EQ(state(t), saved);
    step(t, 5);
    EXPECT_EQ(state(t), doubled);
    EXPECT_TRUE(weights(t) == want);
}

TEST_F(TrainerTest, RollbackGoesToACheckpointBeforeTheSpikeAndSkipsData) {
    const TrainOptions o =
        options("--save-every 2 --keep 0 --on-spike rollback --rollback-steps 1 --rollback-skip 5 --max-rollbacks 1");
    RunGuard health(o, process_);
    Trainer t(o, process_, health);
    for (int64_t s = 1; s <= 5; ++s) {
        step(t, s);
        if (t.saves(s)) save(t, s);
    }
    t.metrics->flush();
    ASSERT_TRUE(t.saver->finish());
    health.end_with(kExitNumbers, "a spike");
    const std::optional<ResumePoint> point = plan_rollback(t, /*from=*/4);
    ASSERT_TRUE(point.has_value());
    EXPECT_EQ(point->manifest.step, 2);
    // Steps 3 and 4 read 8 samples beyond the checkpoint's 8, and five more steps' are left out.
    EXPECT_EQ(point->manifest.samples, 4 * 4 + 5 * 4);
    ASSERT_EQ(point->manifest.rollbacks.size(), 1u);
    EXPECT_EQ(point->manifest.rollbacks[0].reason, "a spike");
    EXPECT_FALSE(health.end().has_value()) << "the run is rolled back";

    Trainer next(o, process_, health, point);
    EXPECT_EQ(next.start.first_step(), 3);
    EXPECT_EQ(next.batches->samples_before(3), 36);
    health.end_with(kExitNumbers, "another");
    EXPECT_FALSE(plan_rollback(next, 4).has_value());
    ASSERT_TRUE(health.end().has_value());
    EXPECT_TRUE(says(health.end()->reason, "--max-rollbacks"));
}

TEST_F(TrainerTest, ARequestThatCannotBeMetStopsWithWhatToDo) {
    const TrainOptions o = options("--check-replicas 2");
    RunGuard health(o, process_);
    EXPECT_TRUE(says(error_of([&] { Trainer(o, process_, health); }), "no parameter is held twice"));
}

// The memory that --print-config says is what a run takes, by kind and to the byte.
TEST_F(TrainerTest, TakesThePlannedMemoryToTheByte) {
    for (const char* flags :
         {"", "--zero 1 --dtype bf16", "--zero 2 --recompute mlp --batch-tokens 32",
          "--zero 2 --dtype bf16 --grad-dtype fp32", "--zero 3 --recompute block --prefetch 3",
          "--zero 3 --no-overlap --head tied --logits-mib 1", "--dtype bf16 --adam-dtype bf16 --master-dtype bf16",
          "--zero 3 --dtype bf16 --ema 0.9", "--ema 0.9", "--vocab 9000 --batch-tokens 128"}) {
        SCOPED_TRACE(flags);
        TrainOptions o = options(flags);
        o.out.clear();
        RunGuard health(o, process_);
        Trainer t(o, process_, health);
        const MemoryLedger& ledger = t.core->device.context->memory;
        for (int number = 1; number <= 3; ++number) step(t, number);
        const PlannedMemory plan = plan_memory(o, t.core->config, DeviceKind::cpu, 0, 1);
        for (int k = 0; k < int(MemKind::count_); ++k)
            EXPECT_EQ(plan.peak[size_t(k)], ledger.now(DeviceKind::cpu, MemKind(k))) << name_of(MemKind(k));
        EXPECT_EQ(plan.total, ledger.now(DeviceKind::cpu));
    }
}

}  // namespace
}  // namespace rz
