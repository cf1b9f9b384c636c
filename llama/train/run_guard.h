#pragma once
// Keeps a run safe besides its checkpoints, in one object: the lock on the output folder, run_status.json,
// requests to stop, and the guards. Made before anything large is allocated.

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "comm/process.h"
#include "llama/train/batches.h"
#include "llama/train/guards.h"
#include "llama/train/options_train.h"
#include "llama/train/run_lock.h"
#include "llama/train/run_status.h"
#include "llama/train/slow_signs.h"
#include "llama/train/stop.h"

namespace rz {

// Numbers of a step that is done, on this rank
struct StepNumbers {
    int64_t step = 0;
    double loss_sum = 0;        // over this rank's targets
    double z_sum = 0;           // likewise, of the z-loss
    double tokens = 1;          // targets of all ranks
    double grad_norm = 0;       // the same on all ranks, of the unscaled gradient
    double loss_scale = 0;      // that the step used; 0: none
    double adapting_scale = 0;  // the same where it is dynamic, and not at its floor; else 0
    double seconds = 0;         // of the step
    double own_seconds = 0;     // of them, without waiting for other ranks
    uint64_t data_hash = 0;     // of the tokens that this rank consumed
    Batches::Attended attended = {};
    int64_t memory = 0, reserved = 0;  // bytes of this rank at the peak: of the ledger; of the process or the card
    SlowSigns signs = {};
};

struct StepVerdict {
    double loss = 0, z_loss = 0;      // means over all ranks
    uint64_t data_hash = 0;           // sum over all ranks
    std::vector<double> seconds;      // of the step, by rank
    Batches::Attended attended = {};  // likewise
    std::string note;                 // for the step's line; "" if all is well
    bool bad = false;                 // a spike, or numbers that are none
    std::string json;                 // more members for the step's JSON object: ",\"key\":value"
    std::string by_rank;              // likewise, for its line of ranks.jsonl
    std::string line;                 // a line of its own, or ""
};

class RunGuard {
   public:
    // Rank 0 takes the lock; throws if it can't. Handlers for signals are installed. Nothing else in the folder changes
    // before take_folder(), which makes and locks a new one: a start that is refused leaves what it found.
    RunGuard(const TrainOptions&, Process&);
    // Rank 0: an earlier run is moved aside where that was asked for, left-overs of killed starts go, and
    // run_status.json says "running". Once for each start.
    void take_folder(const TrainOptions&);
    void set_guards(const TrainOptions&);  // once it is known which of them a checkpoint has
    RunGuard(const RunGuard&) = delete;

    // Collective, of a step before its update, whose loss sum over this rank's targets this is: whether --on-spike skip
    // leaves the update out. Every step before it has been judged.
    bool is_outlier(int64_t step, double loss_sum, double tokens, double grad_norm);
    // Collective, once per step in order: one small message carries loss, request to stop and time of each rank.
    StepVerdict judge(const StepNumbers&);

    // Why the run ends after this step, the same on every rank; nothing if it continues.
    struct End {
        int exit_code;
        std::string reason;
        bool saves;             // the state is good and is saved first
        int64_t undo_from = 0;  // > 0: the step that went wrong, with --on-spike rollback
    };
    const std::optional<End>& end() const { return end_; }
    // Steps are judged one late; one process asks here for signals and the time limit at once.
    void look_for_stop();
    // Collective, while no step can begin: what any rank has been asked.
    void agree_on_stop();
    // The state after the step before is good: it is saved, and the run ends.
    void end_saved(int exit_code, const std::string& reason) { end_ = End{exit_code, reason, true}; }
    void end_with(int exit_code, const std::string& reason) { end_ = End{exit_code, reason, false}; }
    // Rank 0, of what it alone knows: all ranks hear of it with the next step that is judged, or in agree().
    void report_end(int exit_code, const std::string& reason);
    void agree();  // collective
    // The run was rolled back to an earlier state.
    void forget_end() { end_.reset(), known_.reset(); }

    // Numbers that a resumed run starts with: Guards::to_json as text, for the manifest. "{}" is a fresh start.
    std::string state() const;
    void restore(const std::string& state, const std::string& where);

    RunStatus& status() { return *status_; }
    Background& files() { return *files_; }                          // for what training does not wait for
    double report_hang_after() const { return report_hang_after_; }  // seconds
    // How long a save takes, as long as none was made: its bytes at 200 MB/s.
    void expect_save(int64_t bytes) { save_seconds_ = 0.5 + double(bytes) / 200e6; }
    void saved(int64_t step, double seconds);  // rank 0: a checkpoint is complete

   private:
    void hold_folder(const TrainOptions&);
    void report_failures();
    void take_stop(StopCause cause, int rank);
    void take_end(int exit_code);
    StopCause own_stop() const;
    void look_at_files();
    void name_slow_rank(int64_t step, const std::vector<double>& own_seconds, const std::vector<SlowSigns>&,
                        StepVerdict&);

    Process& process_;
    std::shared_ptr<RunLock> lock_;  // rank 0, with --out
    std::shared_ptr<Background> files_ = std::make_shared<Background>();
    std::shared_ptr<RunStatus> status_;
    bool has_folder_ = false;
    std::shared_ptr<std::atomic<bool>> lost_ =
        std::make_shared<std::atomic<bool>>(false);  // the lock, as last looked at
    double report_hang_after_;
    bool hangs_ = false;
    bool rolls_back_ = false;
    Guards guards_;
    int64_t left_out_ = -1;  // the last step of which is_outlier() said so
    StragglerDetector stragglers_;
    TimeLimit limit_;
    double save_seconds_ = 0, step_seconds_ = 0;  // of the last save (until then a guess), of the slowest recent step
    int64_t next_slow_line_ = 0;                  // step
    std::optional<End> end_, known_;              // known_: to rank 0
};

}  // namespace rz
