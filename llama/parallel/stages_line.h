#pragma once
// Two lines for the console: how busy a pipeline's ranks were in a step, all together and each.

#include <string>
#include <vector>

#include "llama/parallel/telemetry.h"

namespace rz {

// Shares are of all ranks' time until the last one ended; depths and micro-batches are the most of any rank.
std::string stages_line(const std::vector<PipelineNumbers>& ranks);
// One figure for each rank on the pp axis (the first data rank), separated by slashes; shares are of the time until the
// last one of all ended. `pp` as in summarise().
std::string stages_by_rank_line(const std::vector<PipelineNumbers>& ranks, const std::vector<int>& pp);

}  // namespace rz
