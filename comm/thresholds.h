#pragma once
// From which size on which algorithm is used, and how much of a GPU communication gets: the one table. Sizes come from
// the virtual network (virtual_net.h):
//
//   build/dev/virtual_net thresholds
//
// prints the time of each choice on nodes of 8 H100 (predicted, not measured); a row here is the best of a line there,
// or within 3 % of it. dev/results/planner.md has that output. Sizes are of the whole range, in bytes on the wire.

#include <cstdint>

namespace rz {

constexpr int64_t kMebi = int64_t(1) << 20;

// One node: the ring, with one chunk for each of two lanes, in between; direct for fewer bytes, where latency counts,
// and for more, where the ring's chunks get their largest size and direct overlaps its sums too. More than two GPUs:
// direct in between too. Of NCCL's 32 channels a message has 32 / ranks while none of them gets more than 16 MiB of it
// (enqueue.cc), so a hop of a ring of 8 moves at about 80 of 370 GB/s; direct sends to all at once, on 28.
constexpr int64_t kRingFrom = 100 * kMebi, kRingUpTo = 500 * kMebi;
constexpr bool rings_on_one_node(int64_t bytes, int ranks, bool gpus) {
    return bytes > kRingFrom && bytes <= kRingUpTo && (!gpus || ranks <= 2);
}

// Several nodes: an all-reduce goes along the column in one shot up to this.
constexpr int64_t hier_one_shot_bytes(int nodes) { return 12 * kMebi / nodes; }

// Several nodes: how much goes in one step to one rank of the node. Few bytes: one level after the other.
struct HierStep {
    int64_t up_to, step;
};
constexpr int64_t kWhole = int64_t(1) << 62;
constexpr HierStep kFewNodes[] = {{8 * kMebi, kWhole},      {32 * kMebi, kMebi / 2},  {64 * kMebi, kMebi},
                                  {128 * kMebi, 2 * kMebi}, {512 * kMebi, 4 * kMebi}, {kWhole, 8 * kMebi}};
constexpr HierStep kManyNodes[] = {
    {16 * kMebi, kWhole}, {512 * kMebi, kMebi}, {1024 * kMebi, 2 * kMebi}, {kWhole, 4 * kMebi}};
constexpr int kManyNodesFrom = 24;

constexpr int64_t hier_step_bytes(int64_t bytes, int nodes) {
    if (nodes < kManyNodesFrom) {
        for (const HierStep& row : kFewNodes)
            if (bytes <= row.up_to) return row.step;
    } else {
        for (const HierStep& row : kManyNodes)
            if (bytes <= row.up_to) return row.step;
    }
    return kWhole;
}

// ---- thread blocks over NCCL ----------------------------------------------------------------------------------------

// An operation of NCCL holds thread blocks of the GPU from when it starts until its peers have come. With a pipeline
// many are under way at once, of each lane and of each group; with tp or cp, of each group. If those that wait took all
// the room, one that a peer waits for might never start, and ranks would wait for each other forever. So together they
// get a quarter of the multiprocessors, about what one collective takes by itself; what computes never waits for a
// peer, so it always makes room again. With --comm-sms they get what that leaves free, one group or many.
//
// Over a network a message has two channels of NCCL, in a group of more than 64 ranks one, which move about 14 GB/s
// each; a column's messages, to a few nodes at once, ask for four (nChannelsPerNetPeer, NCCL 2.28 on). Its ranks have
// the same place on their nodes, so NCCL has no reason to send by another GPU's card (PXN): nccl#1835 hung with that.
constexpr int kColumnChannels = 4;

struct NcclBlocks {
    int lane = 0, group = 0;  // of an operation; 0: NCCL's own choice
};
constexpr int kMostBlocks = 16;  // of a group beside others
// `lanes`: of this rank, both directions. `groups`: that may be under way together, and `hands` that only shake hands,
// with one block each. `reserved_sms`: --comm-sms, at least one for each; 0: one group alone is not limited.
constexpr NcclBlocks nccl_blocks(int multiprocessors, int lanes, int groups, int reserved_sms = 0, int hands = 0) {
    if (lanes == 0 && groups + hands < 2) return {0, groups > 0 ? reserved_sms : 0};
    const int part = (reserved_sms > 0 ? reserved_sms : multiprocessors / 4) - hands, fewest = lanes + groups;
    const int room = part > fewest ? part : fewest;
    if (lanes == 0) {
        const int share = groups > 0 ? room / groups : 0;
        return {0, reserved_sms > 0 || share < kMostBlocks ? share : kMostBlocks};
    }
    const int most = room / 16 > 1 ? room / 16 : 1, fits = (room - groups) / lanes;
    const int lane = most < fits ? most : fits;
    return {lane, groups ? (room - lanes * lane) / groups : 0};
}

}  // namespace rz
