#pragma once
// Checkpoints of a run: when the writer has finished one, health and log hear of it.

#include <functional>
#include <memory>
#include <string>

#include "llama/checkpoint/after_save.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/report/log.h"
#include "llama/train/train_state.h"
#include "llama/train/run_guard.h"

namespace rz {

class Saver {
   public:
    // Collective. report_hang_after: seconds without an answer of the file system. after_save: a command, or "".
    // manifest: of the state after a step.
    Saver(Process&, TrainState&, RunGuard&, Log&, SaveOptions, double report_hang_after, const std::string& after_save,
          std::function<Manifest(int64_t step)> manifest);

    // Enqueues a checkpoint of the state after `step`.
    void save(int64_t step);
    // Collective, after each step: helps the save under way to its end. Reports those that have ended, on rank 0, and
    // one that hangs, on the rank where it does.
    void report();
    // Waits for the last one. Whether it is good.
    bool finish();
    // At the very end: waits for --after-save, at most so long.
    void finish_commands(double seconds);

   private:
    Process& process_;
    RunGuard& health_;
    Log& log_;
    SaveOptions options_;
    double report_hang_after_;
    int64_t hangs_at_ = -1;  // step that was reported
    std::function<Manifest(int64_t)> manifest_;
    CheckpointWriter writer_;
    std::unique_ptr<AfterSave> after_save_;  // nullptr: no command is given, or another rank does it
    int64_t failed_ = 0;
};

}  // namespace rz
