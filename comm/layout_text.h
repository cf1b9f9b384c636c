#pragma once
// A drawing of a grid of ranks: which rank is where, and which axes leave a host.

#include <string>
#include <vector>

#include "comm/grid.h"

namespace rz {

// `hosts`: of each rank of the job. A line of axes, a row of ranks for each stage of the pipeline where there are at
// most 64 ranks ([ ] around those of one tp and cp group), and of each axis how many of its groups are on several
// hosts.
//
//   axes tp 2 x dp 2 x pp 2, neighbouring ranks first, on 1 host
//   pp 0: [0 1] [2 3]
//   pp 1: [4 5] [6 7]
std::vector<std::string> layout_text(const Grid& grid, const std::vector<std::string>& hosts);

}  // namespace rz
