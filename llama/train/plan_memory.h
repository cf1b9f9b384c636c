#pragma once
// What a rank takes, without taking it: what a run builds, and one step of it, on a planned device
// (kernels/runtime/planned.h).

#include <array>

#include "kernels/runtime/memory.h"
#include "llama/model/config.h"
#include "llama/train/options.h"

namespace rz {

struct PlannedMemory {
    std::array<int64_t, int(MemKind::count_)> peak{};  // of each kind, on the device
    int64_t total = 0;                                 // the most at once
};

// Of rank `rank` of `ranks`, with devices of this kind; on the CPU host memory is the device's. To the byte what the
// ledger counts at the end of a run, but for the copy that --save-every takes and what CUDA's libraries take.
PlannedMemory plan_memory(const TrainOptions&, const ModelConfig&, DeviceKind, int rank, int ranks);

}  // namespace rz
