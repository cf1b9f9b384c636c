#pragma once
// --batch auto: the largest micro-batch whose planned peak fits into what is free now.

#include <cstdint>
#include <optional>
#include <string>

#include "comm/process.h"
#include "llama/train/options_train.h"
#include "llama/train/trainer.h"

namespace rz {

struct FreeMemory {
    int64_t device;  // of a GPU, or of the host where the CPU is the device: its ranks share that
    int64_t host;    // of the host, for memory that its ranks pin
};

// Sets options.batch, the same on all ranks, and what a checkpoint keeps of it: a resumed run stays with it. Returns
// the choice and its margin in a line. Throws if not even one sequence fits. Collective. GPUs over NCCL are measured
// beside `mesh`, which is made for that and which the run then uses. `is`: for tests, instead of what is free on this
// machine.
std::string choose_batch(TrainOptions& options, Process& process, MeteredMesh& mesh,
                         const std::optional<FreeMemory>& is = {});

}  // namespace rz
