#pragma once
// --batch auto: the largest micro-batch whose planned peak fits into what is free now.

#include <string>

#include "comm/process.h"
#include "llama/train/options_train.h"

namespace rz {

// Sets options.batch, the same on all ranks, and what a checkpoint keeps of it: a resumed run stays with it. Returns
// the choice and its margin in a line. Throws if not even one sequence fits. Collective.
std::string choose_batch(TrainOptions& options, Process& process);

}  // namespace rz
