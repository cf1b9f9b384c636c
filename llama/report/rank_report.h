#pragma once
// Peak memory by kind and bytes sent, on every rank. Gathered once, when the run ends.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/process.h"

namespace rz {

struct RankReport {
    std::string text;  // for people: per kind the least and the most of all ranks, and which ranks these are
    // An array with one object per rank, in rank order: rank, its place on tp, cp, dp and pp, host, device, steps,
    // bytes_sent, bytes_sent_by_axis, memory_peak {kind: bytes, ..., "total": bytes}, cpu_scratch_peak (of the CPU
    // ops' threads of the process), memory_reserved (of the process, its resident set at the peak, or, on a GPU, of
    // the card).
    std::string json;
};

// Beside the ledger: the most that the process had of the host's memory, or what is taken of the card now.
int64_t reserved_bytes(Device device);

using RankTraffic = std::vector<std::pair<std::string, int64_t>>;
using RankPlaces = std::vector<std::pair<std::string, int>>;  // this rank's, by axis

// Collective. `sent`: by this rank in `steps` training steps, by axis. Memory is what the ledger
// of the device's context counted there.
RankReport gather_rank_report(Process& process, const RankPlaces& places, Device device, int64_t steps,
                              const RankTraffic& sent);

}  // namespace rz
