#pragma once
// MFU's peak: the vendor's dense bf16 peak of the card, from the table of machines that the planner
// reads (llama/base/machine.h), what the user says it is, or what a large product reaches on a card that is not
// in the table.

#include <string>

#include "llama/base/machine.h"

namespace rz {

struct Peak {
    double flops = 0;  // FLOP/s of a device; 0: unknown, as on every CPU: MFU is then not shown
    std::string name;  // "989 TFLOP/s, h100-80g, dense bf16"
};

// `asked`: TFLOP/s that the user gives; 0: as the table has it. On a card that is not there products of `dtype` are
// measured, which takes some milliseconds.
Peak find_peak(const Device& device, DType dtype, double asked = 0);

inline double peak_flops(const Device& device) { return find_peak(device, DType::bf16).flops; }

}  // namespace rz
