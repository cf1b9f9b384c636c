#pragma once
// Allocations in time: the changes that a rank's ledger kept, as a picture and as a counter track of a trace.

#include <string>
#include <utility>
#include <vector>

#include "kernels/runtime/memory_changes.h"

namespace rz {

// Each allocation is a bar from when it was made to when it was given back, as high as it is large, at a place where
// nothing else is meanwhile; a browser shows its name, kind and size under the mouse. `side`: the device or its host.
// From the first of `steps` to the last, a name and the time at which it begins each; without any, from the first
// change to the last.
using StepTimes = std::vector<std::pair<std::string, double>>;
// `peak`: bytes at the peak of the whole run, as in ranks.json.
std::string memory_svg(const std::string& title, const std::vector<MemoryChange>& changes, DeviceKind side,
                       int64_t peak, const StepTimes& steps = {});

// Trace events, each after a comma and a line break: "C" with the bytes of every kind and, in row `row`, "i" that names
// what was allocated or given back. Microseconds since `origin`, a time as in the changes; what came before is at 0.
std::string memory_events(const std::vector<MemoryChange>& changes, double origin, int rank, int row);

}  // namespace rz
