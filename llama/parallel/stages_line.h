#pragma once
// One line for the console: how busy a pipeline's ranks were in a step.

#include <string>
#include <vector>

#include "llama/parallel/telemetry.h"

namespace rz {

// Shares are of all ranks' time until the last one ended; depths and micro-batches are the most of any rank.
std::string stages_line(const std::vector<PipelineNumbers>& ranks);

}  // namespace rz
