#pragma once
// SMs that kernels whose blocks stay on their multiprocessors (attention on Hopper, RMSNorm's backward pass) leave free
// for communication. A rank's context (context.h) has it; the mesh sets it (--comm-sms).

#include <cstdint>

namespace rz {

struct SmBudget {
    int reserved_sms = 0;  // multiprocessors that such a kernel does not take
    // (1), 0 between kernels: from it the blocks of attention draw their tiles, so that a block which finds no room
    // until others have ended has nothing left to do. nullptr: each takes one of so many in turn.
    uint32_t* next_tile = nullptr;

    bool operator==(const SmBudget&) const = default;
};

}  // namespace rz
