#pragma once
// <out>/run_status.json: how the run stands or how it ended, for supervisors and people. mpirun's own exit code can't
// be trusted with that. Replaced atomically; a reader sees one whole state or the other.
//
//   {"state": "running" | "finished" | "stopped" | "failed", "step": 120, "steps": 1000, "saved_step": 100,
//    "exit_code": 75, "reason": "SIGTERM on rank 2", "rank": 2, "host": "node7", "pid": 4711, "ranks": 4, "rollbacks":
//    0, "started": "2026-11-21T12:00:00Z", "updated": "2026-11-21T12:34:56Z", "commit": "4aac85d"}
//
// "running" with a dead pid: the run was killed and could say nothing.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "llama/base/background.h"

namespace rz {

constexpr int64_t kUnreadable = -2;  // a saved_step(): there is a record, and it can't be read

class RunStatus {
   public:
    // Nothing is written if folder is empty. Every rank has one. Rank 0 writes the record; another rank that fails
    // puts into it how it ended, and leaves the rest; that stays, also where rank 0 goes on for a moment. On rank 0
    // saved_step() begins as the record of an earlier start in this folder has it. Before "running" nothing is written
    // of a start that is refused, nor over the record of a run that has finished. "running" is written by `files`,
    // which outlives this, or at once.
    RunStatus(std::string folder, int rank, int ranks, int64_t steps, Background* files = nullptr);
    ~RunStatus() {
        if (files_) files_->finish();
    }

    void running(int64_t step);  // at most every second, and not fsynced: cheap enough for every step
    void saved(int64_t step);    // a checkpoint is complete
    void finished(int64_t step) { ends("finished", step, 0, ""); }
    void stopped(int64_t step, int exit_code, const std::string& reason) { ends("stopped", step, exit_code, reason); }
    // From any thread, and when much is broken already: never throws. `rank` < 0: this one.
    void failed(int exit_code, const std::string& reason, int rank = -1);

    void set_steps(int64_t steps) { steps_ = steps; }  // once they are known, before training
    void set_rollbacks(int64_t n) { rollbacks_ = n; }
    int64_t step() const { return step_; }
    int64_t saved_step() const { return saved_step_; }
    void set_saved_step(int64_t step) { saved_step_ = step; }

   private:
    std::string record(const char* state, int exit_code, const std::string& reason, int rank) const;
    void write_running();
    void ends(const char* state, int64_t step, int exit_code, const std::string& reason);
    void write(const char* state, int exit_code, const std::string& reason, int rank, bool durable);

    std::string folder_, started_;
    int rank_, ranks_;
    std::atomic<int64_t> steps_, step_ = 0, saved_step_ = -1, rollbacks_ = 0;
    std::string before_;  // rank 0: an earlier start's record, as JSON
    double written_ = 0;  // of "running", when it was asked for
    bool begun_ = false, ended_ = false, warned_ = false;
    Background* files_;
    // Guards all that write() uses. Held by a write that hangs, too: what must not wait forever waits for a while.
    mutable std::timed_mutex mutex_;
};

}  // namespace rz
