#pragma once
// Checkpoints of a run: when the writer has finished one, health and log hear of it.

#include <functional>

#include "llama/checkpoint/checkpoint.h"
#include "llama/report/log.h"
#include "llama/train/core.h"
#include "llama/train/health.h"

namespace rz {

class Saver {
   public:
    // Collective. manifest: of the state after a step.
    Saver(Process&, TrainingCore&, Health&, Log&, SaveOptions, std::function<Manifest(int64_t step)> manifest);

    // Enqueues a checkpoint of the state after `step`.
    void save(int64_t step);
    // Reports the saves that are complete. Rank 0 tells; the others do nothing.
    void report();
    // Waits for the last one. Whether it is good.
    bool finish();

   private:
    Process& process_;
    Health& health_;
    Log& log_;
    std::function<Manifest(int64_t)> manifest_;
    CheckpointWriter writer_;
    int64_t failed_ = 0;
};

}  // namespace rz
