#pragma once
// A training run: the parts that train_llama.cu's loop uses, each built by one function from the options, and what the
// loop does to them as a whole: validate, save, finish.

#include <memory>
#include <optional>
#include <string>

#include "comm/meter.h"
#include "comm/process.h"
#include "llama/report/device_peak.h"
#include "llama/report/log.h"
#include "llama/report/mlperf_log.h"
#include "llama/report/trace.h"
#include "llama/train/batches.h"
#include "llama/train/train_state.h"
#include "llama/train/evaluate.h"
#include "llama/train/run_guard.h"
#include "llama/train/metrics.h"
#include "llama/train/options_train.h"
#include "llama/train/recheck.h"
#include "llama/train/resume.h"
#include "llama/train/saver.h"
#include "llama/train/schedule.h"
#include "llama/train/snapshots.h"

namespace rz {

// State of a run when it began here: fresh, or as a checkpoint has it.
struct RunStart {
    std::string run_id;  // of this start
    Manifest resumed;    // all zero if the run began
    std::string folder;  // of that checkpoint
    bool rolled_back = false;
    Timer timer;
    int64_t first_step() const { return resumed.step + 1; }
};

// The ranks' groups, and what their collectives report to.
struct MeteredMesh {
    std::unique_ptr<CommMeter> meter;
    std::unique_ptr<Mesh> mesh;
};
MeteredMesh make_mesh(const TrainOptions&, Process&, Device);

struct Trainer {
    // Begins, or resumes from a checkpoint. Collective. `made`: the mesh, where there is one already.
    Trainer(const TrainOptions&, Process&, RunGuard&, const std::optional<ResumePoint>& from = std::nullopt,
            MeteredMesh made = {});

    TrainOptions options;
    Process& process;
    RunGuard& health;
    Schedule lr;
    RunStart start;
    DataSources sources;
    std::string prepared;      // what the log says of the device's preparation
    std::string gemm_choices;  // algorithms of this run (kernels/gemm/gemm_tuning.h)
    std::unique_ptr<CommMeter> meter;
    std::unique_ptr<Mesh> mesh;
    std::vector<std::string> layout;  // layout_text(); none where ranks differ in their data only
    std::unique_ptr<TrainState> core;
    std::unique_ptr<Batches> batches;
    std::unique_ptr<Log> log;
    std::unique_ptr<MlperfLog> mlperf;       // nullptr: none is asked for, or another rank writes it
    std::unique_ptr<Trace> trace;            // nullptr: none is asked for
    std::unique_ptr<Statistics> statistics;  // nullptr: none are asked for
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<ShardSums> shard_sums;
    std::unique_ptr<Recheck> recheck;        // nullptr: none is asked for
    std::unique_ptr<Saver> saver;            // nullptr without --out
    std::unique_ptr<Snapshots> snapshots;    // nullptr: none are asked for
    std::unique_ptr<Evaluation> evaluation;  // nullptr: none is asked for; with `scorer`
    std::unique_ptr<Scorer> scorer;
    Peak peak;                // that MFU is measured against
    int64_t validations = 0;  // of the whole run
    int64_t graph_lines = 0;  // about graphs, in the log
    int64_t written = 0;      // samples that all ranks can read, as they last agreed

    bool reports_due = false;  // of the step that is saved: it was asked to stop before they were made

    int64_t step = 0;  // that is being enqueued

    // 1 / number of targets in the update, over all ranks and micro-batches; 0 if there are none.
    float grad_scale() const {
        const int64_t targets = batches->targets_of(step);
        return targets > 0 ? 1.0f / float(targets) : 0.0f;
    }
    PassArgs goal() const {
        const LossScaleState* scale = core->zero.optimizer.loss_scale();
        return {.pass = Pass::train,
                .grad_scale = grad_scale(),
                .loss_scale = scale ? &scale->scale : nullptr,
                .watch = metrics->is_watched(step) ? statistics->watch() : BlockStats{}};
    }
    int64_t samples_per_step() const { return batches->samples_per_step(); }
    bool saves(int64_t step) const;
    bool takes_snapshot(int64_t step) const;
    bool validates(int64_t step) const;
    bool evaluates(int64_t step) const;
    bool reports(int64_t step) const { return validates(step) || evaluates(step); }
    // --batch-ramp: updates grow after this step.
    bool stage_ends(int64_t step) const {
        return options.stage_end > 0 && step < options.steps && batches->tokens_after(step) >= options.stage_end;
    }
    bool is_outlier(int64_t step) { return options.on_spike == OnSpike::skip && metrics->is_outlier(step); }
    bool rechecks(int64_t step) const { return recheck && step % options.recheck_every == 0; }

   private:
    void check_reports();
    void begin_at(const std::optional<ResumePoint>& from, std::string& note);
    void open_log(const std::string& note);
    void open_reports();
};

// Sequences of a validation set that each validation takes.
int64_t validation_sequences(const Trainer&, size_t set);
// Settings that --mllog writes before the run is timed.
std::vector<std::pair<std::string, std::string>> mlperf_settings(const Trainer&);

// Settings of the parts below by the options, on devices of this kind.
StepMessages step_messages(const TrainOptions&);
MeshOptions mesh_options(const TrainOptions&);
CoreOptions core_options(const TrainOptions&, Device, const Mesh&);
// Threads of this rank on a CPU: what was asked for, or this host's cores divided among its ranks; 0: OpenMP's choice.
int64_t cpu_threads(int64_t asked, const Process&);
// Refuses what no machine like this could use: OpenMP ends the program where it gets no thread.
void check_threads(int64_t asked);

// Before the first step: what a later start must know of this one, the validation of weights that are not trained yet,
// or what was due when the run was stopped.
void begin_training(Trainer&);
// Data that are still being written: waits until all ranks have those of the step. False if the run ends instead,
// because it is asked to stop or nothing came within --data-wait; the state after the step before is saved then.
bool await_data(Trainer&, int64_t step);
// Before anything of a step is enqueued: the whole step for the first time, if it is rechecked; what a fault on request
// spoils.
void begin_step(Trainer&, int64_t step);
// After a step is enqueued: numbers, replicas, saves that became complete.
void end_step(Trainer&, int64_t step);
// The loss on the validation data, and a sample every --sample-every validations.
void validate(Trainer&, int64_t step);
// The tokens that samples begin with: --prompt, or what begins a text.
std::vector<int32_t> sample_prompt(const Trainer&, const ModelConfig&);
// The --eval-tasks, with the weights after `step`.
void make_evaluation(Trainer&);
void evaluate(Trainer&, int64_t step);
// Writes a checkpoint of the state after `step`; training continues meanwhile. reports_due: the run stops before
// they are made, and its next start makes them.
void save(Trainer&, int64_t step, bool reports_due = false);
// The same in this host's memory.
void take_snapshot(Trainer&, int64_t step);
// The state after `step`, of a run that ends early.
void save_last(Trainer&, int64_t step, bool reports_due);
// A run that is killed before its next save continues as it was asked here: what was given at this start goes into the
// checkpoint that it resumed from, and a checkpoint of another run becomes one of its own.
void keep_request(Trainer&);
void open_saves(Trainer&);
// True: the run ends after this step, the same on all ranks; saved then, if it is good.
bool ends(Trainer&, int64_t step);

// How a run ended: the program's exit code and, if it is rolled back, the checkpoint to start again from.
struct RunEnd {
    int exit_code;
    std::optional<ResumePoint> rollback = {};
};
// Reports what is outstanding and, unless the run was stopped, saves the final weights.
RunEnd finish(Trainer&);

// The next checkpoint's manifest of the run after `step`.
Manifest manifest_at(const Trainer&, int64_t step);
// Plans the way back where the numbers went bad at step `from`; nothing, with the reason in health, if that can't be.
std::optional<ResumePoint> plan_rollback(Trainer&, int64_t from);

// Shows the model that the options describe: every tensor, and bytes by kind. Needs no device and allocates nothing.
std::string describe_model(const ModelConfig&, const ParamTable&, bool embedding_decays);

}  // namespace rz
