#include "llama/base/majority.h"

#include <algorithm>

namespace rz {

std::vector<int> odd_ones_out(const std::vector<uint64_t>& values) {
    uint64_t majority = 0;
    bool found = false;
    for (uint64_t v : values)
        if (2 * std::count(values.begin(), values.end(), v) > long(values.size())) majority = v, found = true;
    std::vector<int> odd;
    for (size_t r = 0; r < values.size(); ++r)
        if (!found || values[r] != majority) odd.push_back(int(r));
    return odd;
}

}  // namespace rz
