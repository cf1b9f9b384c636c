#pragma once
// Console and metrics.jsonl: one line per step for people, one JSON object per step for programs.

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/meter.h"
#include "llama/base/background.h"
#include "llama/parallel/telemetry.h"
#include "llama/report/console.h"
#include "llama/report/eta.h"
#include "llama/report/event_file.h"
#include "llama/report/wandb_file.h"

namespace rz {

struct AxisTraffic {
    std::string axis;
    int64_t bytes_sent;
    double seconds;  // in its collectives; links between the stages of a pipeline are timed by their telemetry
};

struct StepReport {
    int64_t step;
    double loss, grad_norm, learning_rate;
    double seconds;  // of this step
    int64_t tokens;  // in this step, over all ranks
    int64_t tokens_so_far;
    uint64_t data_hash;                        // of all tokens so far, whatever the ranks
    int64_t memory_bytes;                      // this rank's at the peak, on its device
    std::vector<double> seconds_by_rank = {};  // of this step
    // many ranks: time in collectives, the part of it that compute stood still for, and bytes from this rank
    double comm_seconds = -1, exposed_seconds = 0, overlap = 1;
    int64_t bytes_sent = 0;
    std::vector<AxisTraffic> axes = {};  // that anything was sent on
    std::optional<PhaseTimes> phases = {};
    double data_wait = 0;        // seconds that the host waited for data while it enqueued the step
    double z_loss = -1;          // < 0: none is added
    double attention_share = 1;  // of the pairs of tokens that attention counts without document masks
    double utilisation = -1;     // of a pipeline: how much of the step its ranks are busy
    std::string note = {};       // what is wrong with the step; it is then printed in any case
    std::string json = {};       // more members of its JSON object, each after a comma
    std::string by_rank = {};    // members of its line of ranks.jsonl, likewise: numbers of every rank
};

struct ValidationReport {
    int64_t step;
    double loss;           // nats per token
    double loss_ema;       // with the average of the weights; < 0 if none is kept
    double bits_per_byte;  // < 0 if the data's bytes are unknown
    double seconds;
    std::vector<std::pair<std::string, double>> by_set = {};  // of a mix: the loss on each of its sets
};

struct RunFacts {
    int64_t steps;                         // of the whole run
    double flops_per_token;                // forward and backward
    std::string title;                     // of the loss curve
    double peak_flops;                     // of all devices together; 0: unknown, then FLOP/s are shown instead of MFU
    bool quiet = false;                    // not the rank that talks
    double attention_flops_per_token = 0;  // of flops_per_token, what attention takes where all of a row is seen
    std::map<std::string, std::string> settings = {};  // how the run was asked for and on what, by name
    std::string wandb = {}, wandb_name = {};           // project of Weights & Biases; empty: none. The run's name
    std::vector<int64_t> stops_every = {};  // steps between validations, saves and what else training waits for
    bool prints = true;                     // false: standard output gets nothing but what is wrong with a step
    bool reports_due = false;  // validation, evaluation and sample of the step before the first are made anew
};

// Writes to stdout and, with a folder, the same to log.txt, and metrics.jsonl, ranks.jsonl, run.json, TensorBoard's
// event file, loss.svg and a file for W&B.
class Log {
   public:
    // `first_step` is the first that this run will log; above 1 the files of an earlier run are continued. Files are
    // written by `files`, which outlives this, or at once.
    Log(const RunFacts& facts, const std::string& folder, int64_t first_step, Background* files = nullptr);
    ~Log();
    Log(const Log&) = delete;

    void line(const std::string& text, bool always = false);  // plain text, from the rank that talks
    void step(const StepReport&, bool print);
    void validation(const ValidationReport&);
    // A line, and {"step":step,"name":json} for programs.
    void event(int64_t step, const std::string& text, const std::string& name, const std::string& json);
    // More numbers of a step, for TensorBoard and W&B.
    void scalars(int64_t step, const std::vector<std::pair<std::string, double>>&);
    // A line of stats.jsonl, {"step":step, then the members of the JSON object.
    void statistics(int64_t step, const std::string& json);
    // Writes bad_step_STEP.json: what led to a step that went wrong.
    void bad_step(int64_t step, const std::string& json);
    // A file that only describes the run: where it can't be written, that is said once.
    void describe(const std::string& name, const std::string& text);
    void complete_rows();  // nothing more comes of the steps so far
    void plot();           // rewrites loss.svg from metrics.jsonl
    void finish();         // the last plot and the closing line
    void wait_for_files();

   private:
    void later(std::function<void()> work);
    void write_json(std::string object);
    void write_beside(const char* name, int& file, int64_t step, const std::string& members);
    void write_text(const std::string& plain);
    void write_settings(int64_t first_step);
    void open_wandb(int64_t first_step);
    void unless_it_fails(const char* what, const std::function<void()>& write);
    void warn_once(const char* what);
    void show_progress(int64_t step);

    RunFacts facts_;
    std::string folder_;
    Background* files_;
    Console console_;
    bool colour_;
    int metrics_ = -1, text_ = -1, ranks_ = -1, stats_ = -1;  // files, -1: not written
    std::unique_ptr<EventFile> events_;
    std::unique_ptr<WandbFile> wandb_;
    Timer timer_;
    int64_t first_step_ = -1, begins_ = 1;
    Eta eta_;
    double shown_at_ = -1;  // seconds, of the progress bar
    bool warned_ = false;
};

std::string duration(double seconds);  // "1h02m", "3m05s", "12s"

}  // namespace rz
