#pragma once
// Causes of a slow rank, as far as they can be known from here: the clock and the memory errors of its GPU (NVML's,
// where its library is), pages that had to come from disk, the load of its host.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/runtime/device.h"

namespace rz {

struct SlowSigns {
    float clock_mhz = 0;  // of the GPU's multiprocessors; 0: not known
    float load = 0;       // of the host, for each core
    int32_t ecc = 0;      // errors of the GPU's memory since the run began
    int32_t faults = 0;   // major page faults, a step
};

class SlowSignReader {
   public:
    explicit SlowSignReader(Device device);
    // Once a step; asks anew at every tenth.
    const SlowSigns& look();

   private:
    int64_t ecc_errors() const;

    SlowSigns signs_;
    int64_t steps_ = 0, faults_ = 0, ecc_before_ = 0;
    void* gpu_ = nullptr;  // NVML's handle
};

// In what rank `slow` differs from the others: "its GPU runs at 1200 MHz, the others' at 1755"; "": in nothing known.
std::string slow_reason(const std::vector<SlowSigns>& ranks, int slow);

}  // namespace rz
