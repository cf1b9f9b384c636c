#pragma once
// From which size on which algorithm is used: the one table. Derived on the virtual network (virtual_net.h) by
//
//   build/dev/virtual_net thresholds
//
// which prints these rows from the times of each algorithm on the machine that it is given, with what the next best
// would take. Sizes are of the whole range, in bytes on the wire.

#include <cstdint>

namespace rz {

// One node: direct up to here, then the ring with one chunk for each of two lanes.
constexpr int64_t kDirectBytes = int64_t(200) << 20;

// Several nodes, hier: an all-reduce goes along the column in one shot while the bytes that every rank then sends
// there, times nodes, stay below this.
constexpr int64_t kOneShotBytes = int64_t(8) << 20;
constexpr int64_t hier_one_shot_bytes(int nodes) { return kOneShotBytes / nodes; }

// Several nodes, hier: how much goes in one step to one rank of the node. Few bytes: the levels one after the other.
struct HierStep {
    int64_t up_to, step;
};
constexpr int64_t kWhole = int64_t(1) << 62;
constexpr HierStep kHierSteps[] = {
    {int64_t(16) << 20, kWhole},
    {int64_t(64) << 20, int64_t(512) << 10},
    {int64_t(512) << 20, int64_t(1) << 20},
    {int64_t(1) << 30, int64_t(2) << 20},
    {kWhole, int64_t(4) << 20},
};
constexpr int64_t hier_step_bytes(int64_t bytes, int) {
    for (const HierStep& row : kHierSteps)
        if (bytes <= row.up_to) return row.step;
    return kHierSteps[4].step;
}

}  // namespace rz
