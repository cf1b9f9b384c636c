#pragma once
// Prepares a run's GPU before it communicates (kernels/runtime/load.h): every kernel is loaded,
// attention is compared with the CPU's, the algorithms of its matrix products are chosen, each product is run once.

#include <string>
#include <vector>

#include "comm/process.h"
#include "llama/model/config.h"
#include "llama/train/options_train.h"

namespace rz {

// Returns lines for the log. `prompt`: tokens that samples begin with, 0: none drawn. `choices`: lines of algorithms
// (gemm_tuning.h) that a resumed run goes on with; then those that it has. Nothing on a CPU. Collective.
std::string prepare_device(const TrainOptions&, const ModelConfig&, int64_t prompt, Device, Process&,
                           std::string& choices);

// Lines of the log: NCCL and its order of launches; slow attention; too few hardware queues for the streams that
// there are by then. None on a CPU.
std::vector<std::string> device_notes(const TrainOptions&, const ModelConfig&, Device, Process&);

}  // namespace rz
