#pragma once
// A training run: everything that train_llama.cu's loop needs, built from the options in one place.

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/process.h"
#include "kernels/runtime/graph.h"
#include "llama/data/batch_feeder.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/train/health.h"
#include "llama/report/log.h"
#include "llama/model/model.h"
#include "llama/train/options_train.h"
#include "llama/train/resume.h"
#include "llama/train/schedule.h"
#include "llama/tokenizer/tokenizer.h"
#include "llama/report/trace.h"

namespace rz {

// Where tokens come from, as asked for by --data or by --train-data and --val-data.
struct DataPaths {
    std::vector<std::string> train, val;
    std::string tokenizer;           // path, or empty
    int64_t vocab = 0;               // 0: unknown
    double val_bytes_per_token = 0;  // 0: unknown
};
DataPaths find_data(const Options&);

class Run {
   public:
    // Begins, or goes on from a checkpoint. Collective.
    Run(const Options&, Process&, Health&, const std::optional<ResumePoint>& from = std::nullopt);
    ~Run();

    int64_t first_step() const { return first_step_; }

    // Micro-batches and scales.
    int64_t micro_batches() const { return micro_batches_; }
    float grad_scale() const { return 1.0f / float(tokens_per_step()); }  // mean over the targets of the global batch
    int64_t tokens_per_step() const;
    // A micro-batch of this rank, on its way to the device.
    DeviceBatch batch(int64_t step, int64_t micro_batch);
    // Forward and backward of the step's micro-batches: enqueued op by op or, with --cuda-graphs on, a micro-batch as one
    // graph; where ranks communicate inside it, as a graph per block and pass.
    void train(int64_t step);
    bool validates(int64_t step) const;
    bool saves(int64_t step) const;

    void begin_step(int64_t step);
    // Takes loss and gradient norm of the step just enqueued; reports them once they are there, without stopping the
    // device.
    void end_step(int64_t step);
    void validate(int64_t step);
    // Writes a checkpoint of the state after `step`; training goes on meanwhile.
    void save(int64_t step);
    // Whether the run ends behind this step, the same on all ranks; saved then, if it is good.
    bool stops(int64_t step);
    // Reports what is outstanding and, unless the run was stopped, saves the final weights. The program's exit code.
    int finish();
    // After finish(): from where the run is to be made anew, if it went wrong and is to go back.
    const std::optional<ResumePoint>& rollback() const { return rollback_; }

    Options options;
    Process& process;
    Schedule schedule;

   private:
    struct Probe {  // numbers of a step on their way to the host
        int64_t step = -1;
        Buffer host;  // double loss sum, float norm, at 16 int64 updates made
        Event done;
        uint64_t data_hash = 0;  // of this rank's tokens
        CommMeter::Batch comm;   // what was enqueued in the step
        int64_t bytes_sent = 0;  // by the step's collectives
    };
    void announce(const ParamTable&, const std::string& device_note);
    void report(Probe& probe);
    Judgement judge(const Probe&, double loss_sum, double norm, double own_seconds, double seconds);
    void check_replicas(int64_t step);
    int finish_early(bool last_save_good);
    void plan_rollback();
    void tell_of_rollback();
    void print_sample(int64_t step);
    void check_graphs() const;
    void load_checkpoint(ResumePoint from);
    void check_data(const Manifest&);
    void report_saves();
    void choose_run_id();
    void check_folder_is_shared();
    Manifest manifest_at(int64_t step) const;
    int64_t samples_before(int64_t step) const;  // of the data stream, consumed before this step
    int64_t samples_per_step() const { return options.batch * micro_batches_ * mesh_->place(Axis::dp).size; }

    Health& health_;
    Device device_;
    DataPaths paths_;
    ModelConfig config_;
    ParamTable table_;
    int64_t micro_batches_;
    int64_t first_step_ = 1, last_step_ = 0;
    Manifest resumed_;  // what the run goes on from; all zero if it began
    std::optional<ResumePoint> rollback_;
    std::string run_id_;
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    CommMeter meter_;
    std::unique_ptr<Mesh> mesh_;
    std::unique_ptr<Stream> compute_;

   public:
    std::unique_ptr<Zero> zero;
    std::unique_ptr<Model> model;

   private:
    std::unique_ptr<DataLoader> train_data_, val_data_;
    std::unique_ptr<BatchFeeder> feeder_;
    bool whole_graph_ = false;  // nothing in a micro-batch communicates: it is one graph
    Program program_;           // of a step
    int64_t graph_lines_ = 0;   // about graphs, in the log
    std::unique_ptr<CheckpointWriter> writer_;
    std::unique_ptr<Trace> trace_;
    std::unique_ptr<Log> log_;
    std::optional<Tokenizer> tokenizer_;
    std::array<Probe, 2> probes_;
    Event last_done_;
    int64_t bytes_before_ = 0;                     // sent when the step began
    int64_t steps_done_ = 0, bytes_in_steps_ = 0;  // of this process
    int64_t validations_ = 0, failed_saves_ = 0;
    uint64_t data_hash_ = 0;  // of the step being fed, this rank
    uint64_t consumed_ = 0;   // of all reported steps, all ranks
    int64_t updates_ = 0;     // made by the reported steps: those that were not skipped
    // The last member, so the first to go, also when the constructor throws: nothing is freed under work that is still
    // queued.
    struct Drain {
        Stream* stream = nullptr;
        ~Drain();
    } drain_;
};

// Shows the model that the options describe: every tensor, and bytes by kind. Needs no device and allocates nothing.
std::string describe_model(const ModelConfig&, const ParamTable&);

}  // namespace rz
