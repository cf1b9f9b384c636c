#pragma once
// Checkpoints of a run: when the writer has finished one, health and log hear of it.

#include <functional>
#include <memory>
#include <string>

#include "llama/checkpoint/after_save.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/report/log.h"
#include "llama/train/core.h"
#include "llama/train/health.h"

namespace rz {

class Saver {
   public:
    // Collective. after_save: a command, or "". manifest: of the state after a step.
    Saver(Process&, TrainingCore&, Health&, Log&, SaveOptions, const std::string& after_save,
          std::function<Manifest(int64_t step)> manifest);

    // Enqueues a checkpoint of the state after `step`.
    void save(int64_t step);
    // Reports the saves that are complete. Rank 0 tells; the others do nothing.
    void report();
    // Waits for the last one. Whether it is good.
    bool finish();
    // At the very end: waits for --after-save, at most so long.
    void finish_commands(double seconds);

   private:
    Process& process_;
    Health& health_;
    Log& log_;
    SaveOptions options_;
    std::function<Manifest(int64_t)> manifest_;
    CheckpointWriter writer_;
    std::unique_ptr<AfterSave> after_save_;  // nullptr: no command is given, or another rank does it
    int64_t failed_ = 0;
};

}  // namespace rz
