#pragma once
// Which ranks a step connects over NCCL, and what NCCL takes of a GPU's memory for that: a formula, read in the source
// of NCCL 2.28.9 and 2.30.7 (transport/p2p.cc, transport/net.cc, init.cc, graph/paths.cc). Two ranks are connected at
// their first message, whatever its size, on every channel that a message between them may take:
//
//   in a node       2 MiB where a rank sends, LL + LL128 + NCCL_BUFFSIZE rounded up to 2 MiB (10) where it receives,
//                   for each peer and channel: of all 32 channels over NVLink, of 2 over PCIe; in a communicator of
//                   several nodes of as many as over the network
//   over a network  a peer has 2 channels, from 2.30 on 4, and as few as 1 where there are many peers; buffers belong
//                   to the communicator, not to the peer: 16 steps of 128 KiB for each of its 16 channels, each way
//
// config.maxCTAs limits the channels, rounded up to a power of two. All-to-all of 8 GPUs: 7 x 32 x 12 MiB = 2.63 GiB.
// Published (NVIDIA/nccl#1685, 2025-04-16, 8 x H100): buffers of 10,485,760 and 2,097,152 bytes on 32 channels of each
// pair, and 1.06 GB before the first all-to-all, 4.34 after it. These 3.28 are 1.16 times the formula's 2.82 GB (1.25
// times if they are GiB). Not explained: that rest, and what a communicator takes before its first message, which is in
// the 1.06 GB with the context. Not counted: buffers that NCCL puts on another GPU of the node to use its card (PXN);
// of --collectives library more than a ring (trees, NVLS). A pair over PCIe without P2P has its buffers in the host's
// memory, so there the formula is too high.

#include <cstdint>
#include <vector>

#include "comm/grid.h"

namespace rz {

struct AxisAlgorithms;

// Messages that a step sends beside its collectives.
struct StepMessages {
    bool matrix_pieces = false;  // between any two of tp, and of data or shard (Muon)
    bool shared_units = false;   // gradients, between the two places of pp that hold a unit (dualpipe)
    bool samples = false;        // logits, along pp
};

// Channels of a communicator; 0: NCCL's choice.
struct NcclChannels {
    int max_ctas = 0;  // thread blocks, which are channels
    int net_peer = 0;  // channels of a message over the network
};

// A communicator of a rank, and the ranks of the job to which it sends and from which it receives in a step.
struct GroupPeers {
    GroupKind kind;
    std::vector<int> members = {}, to = {}, from = {};
    NcclChannels channels = {};
};

// True: a step sums or gathers on this axis over two levels by messages: over NCCL row and column are communicators.
bool has_levels(const Grid&, const AxisAlgorithms&, Axis axis);

// All groups with more than one member that a step uses. If multiprocessors is 0, channels mean nothing.
std::vector<GroupPeers> step_peers(const Grid&, const AxisAlgorithms&, const StepMessages&, int rank,
                                   int multiprocessors, int reserved_sms);
NcclChannels nccl_channels(const Grid&, const AxisAlgorithms&, const GroupKind&, int multiprocessors, int reserved_sms);

struct NcclModel {
    int version = 22809;
    bool nvlink = true;                 // between ranks of a node; else PCIe
    int64_t buffer = int64_t(4) << 20;  // NCCL_BUFFSIZE
    int64_t ranks_per_node = 8;
    int node_channels = 32, net_channels = 16;  // of a communicator on one node, on several
};

// Channels of a message between two members of a communicator (enqueue.cc): one for each member, fewer where a
// channel would get less than 64 KiB of it; twice as many, again and again, while one gets more than 16 MiB, with ranks
// on several nodes 128 KiB, as long as the pair has them.
int message_channels(int64_t bytes, int64_t ranks, bool one_node, const NcclChannels& asked, const NcclModel& nccl);
// True: what this group moves goes by messages: the library has its own collectives, symmetric memory none.
bool sends_messages(const AxisAlgorithms&, const GroupKind&);

struct NcclNeeds {
    int communicators = 0;
    int64_t bytes = 0;
    double least_s = 0, most_s = 0;  // to come up: a prediction

    void add(const GroupPeers& group, int rank, const NcclModel& nccl);
    // With what the formula does not explain, and 64 MiB for what a communicator takes before its first message.
    int64_t most_bytes() const { return bytes + bytes / 4 + (int64_t(communicators) << 26); }
};

}  // namespace rz
