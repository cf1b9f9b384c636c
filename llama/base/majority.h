#pragma once

#include <cstdint>
#include <vector>

namespace rz {

// Ranks whose value is not that of the majority; all, if there is none. Empty if all agree.
std::vector<int> odd_ones_out(const std::vector<uint64_t>& values);

}  // namespace rz
