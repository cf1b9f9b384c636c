#pragma once
// What a rank takes, without taking it: what a run builds, and one step of it, on a planned device
// (kernels/runtime/planned.h).

#include <array>

#include "kernels/runtime/memory.h"
#include "llama/model/config.h"
#include "llama/train/options.h"
#include "llama/train/traffic.h"

namespace rz {

struct PlannedMemory {
    std::array<int64_t, int(MemKind::count_)> peak{};  // of each kind, on the device
    int64_t total = 0;                                 // the most at once
    Traffic sent;                                      // in a step
};

// Of rank `rank` of `ranks`, with devices of this kind; on the CPU host memory is the device's. To the byte what the
// ledger counts at the end of a run, but for the copy that --save-every takes, what CUDA's libraries take and, with
// --tp or --pp, the gradient norm's block sums, which are counted as if all parts of the model were like this one.
PlannedMemory plan_memory(const TrainOptions&, const ModelConfig&, DeviceKind, int rank, int ranks);

}  // namespace rz
