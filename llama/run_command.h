#pragma once
// A command line's command, from its flags to the exit code: training over rollbacks and larger batches,
// coordinates, eval, generate, export, average.

#include "comm/process.h"
#include "llama/train/options.h"
#include "llama/train/trainer.h"

namespace rz {

using TrainingLoop = RunEnd (*)(Trainer&);  // train_llama.cu's

// On every rank; the exit code.
int run_command(const Command&, Process&, TrainingLoop);

}  // namespace rz
