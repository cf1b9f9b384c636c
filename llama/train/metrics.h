#pragma once
// The numbers of each step: brought to the host without stopping the device, judged by health, agreed on by all ranks,
// and reported one step late.

#include <array>
#include <deque>
#include <memory>

#include "comm/meter.h"
#include "comm/process.h"
#include "llama/report/log.h"
#include "llama/report/trace.h"
#include "llama/train/batches.h"
#include "llama/train/train_state.h"
#include "llama/train/run_guard.h"
#include "llama/train/schedule.h"
#include "llama/train/statistics.h"

namespace rz {

class Metrics {
   public:
    // Its arguments outlive it. `trace` may be nullptr.
    Metrics(Process&, TrainState&, CommMeter&, Batches&, const Schedule& lr, RunGuard&, Log&, Trace* trace,
            const std::string& trace_file, int64_t steps, int64_t log_every);
    // Writes a line for each of this rank's tasks in the pipeline to this file, during the next `steps` steps.
    void write_tasks(const std::string& file, int64_t steps) { task_file_ = file, task_steps_ = steps; }

    // Every so many steps a line of stats.jsonl. The last 20 steps are written after one that went wrong.
    void keep_statistics(Statistics& statistics, int64_t every) { statistics_ = &statistics, stats_every_ = every; }
    bool is_watched(int64_t step) const { return statistics_ && step % stats_every_ == 0; }

    // Numbers of the run that is resumed.
    void restore(int64_t updates, uint64_t data_hash, int64_t last_step, const LossScaleState* loss_scale);

    void begin(int64_t step);
    // Collective, between a step's gradient norm and its update: whether --on-spike skip leaves the update out. Waits
    // for the step's loss and norm, and reports the step before.
    bool is_outlier(int64_t step);
    // Takes loss and gradient norm of the step just enqueued, and reports the step before: the host runs one ahead.
    void end(int64_t step);
    // Memory for the numbers of two steps: the host runs one ahead.
    using Numbers = std::array<Buffer, 2>;
    static Numbers make_numbers(Device);

    // Reports what is outstanding.
    void flush();
    // Excludes the time since the last end() from the step.
    void exclude_from_step_time();

    int64_t last_step() const { return last_step_; }   // that end() was called for
    int64_t updates() const { return updates_; }       // made by the reported steps: those that were not skipped
    uint64_t data_hash() const { return data_hash_; }  // of all reported steps, all ranks
    const LossScaleState& loss_scale() const { return loss_scale_; }  // after the reported steps
    int64_t steps_done() const { return steps_done_; }                // by this process
    const BytesByAxis& bytes_in_steps() const { return bytes_in_steps_; }

   private:
    static constexpr int64_t kScaleState = 32;
    struct Probe {  // numbers of a step on their way to the host
        int64_t step = -1;
        Buffer host;  // double loss sum, float norm; at 16 int64 updates made, 24 double z-loss sum, 32 LossScaleState
        Event done;
        uint64_t data_hash = 0;  // of this rank's tokens
        Batches::Attended attended;
        CommMeter::Batch comm;  // what was enqueued in the step
        BytesByAxis sent = {};  // by the step's collectives
        StepEvents times;       // none with CUDA graphs
        double data_wait = 0;
    };
    struct Past {  // of the last steps that were reported
        int64_t step;
        std::string numbers, statistics;  // JSON, without the last bracket; JSON or empty
    };
    void report_statistics(const Probe&, const StepReport&, const StepVerdict&, double loss_scale);
    void report_pipeline(const Probe&, StepReport&);
    void trace_tasks(int64_t step, const StepEvents&);
    void report(Probe&);
    double own_seconds(const Probe&, const StepReport&) const;
    double seen_loss(int64_t step, double loss_sum);
    StepVerdict judge(const Probe&, double loss_sum, double z_sum, double norm, double own_seconds, double seconds);

    Process& process_;
    TrainState& core_;
    CommMeter& meter_;
    Batches& batches_;
    Schedule lr_;
    RunGuard& health_;
    Log& log_;
    Trace* trace_;
    std::string trace_file_;
    int64_t steps_, log_every_;
    SlowSignReader signs_{core_.device};
    std::array<Probe, 2> probes_;
    Event last_done_;
    BytesByAxis bytes_before_ = {}, bytes_in_steps_ = {};  // sent when the step began; in all steps
    std::pair<int64_t, bool> spike_fault_{-1,
                                          false};  // the last step that the fault "loss" was asked for, and its answer
    int64_t last_step_ = 0, updates_ = 0, steps_done_ = 0;
    uint64_t data_hash_ = 0;
    LossScaleState loss_scale_{};
    std::string task_file_, task_lines_;
    int64_t task_steps_ = 0;
    Statistics* statistics_ = nullptr;
    int64_t stats_every_ = 0;
    std::deque<Past> past_;
};

}  // namespace rz
