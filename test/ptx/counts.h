// Demands of a launch on the memory system, from the addresses that it really uses.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "test/ptx/machine.h"

namespace ptx {

// Counts of one instruction, summed over its executions
struct MemoryCount {
    uint64_t requests = 0, bytes = 0;
    uint64_t sectors = 0;     // global: 32-byte sectors
    uint64_t wavefronts = 0;  // shared: cycles, one without conflicts per 128 bytes
    uint64_t ideal = 0;       // shared: cycles that the bytes need at least
};

class Counts {
   public:
    void access(const Warp& w, const Inst& i, Space space, const uint64_t* base, uint64_t offset, uint32_t bytes,
                uint32_t lanes, bool load);
    void matrix(const Inst& i, const uint32_t* row_addresses, uint32_t rows);
    void bulk(const Inst& i, uint64_t bytes);
    std::map<const Inst*, MemoryCount> memory;
};

}  // namespace ptx
