#pragma once
// What MFU is measured against: the vendor's dense peak of the card, from the table of machines that the planner reads
// (llama/base/machine.h), or what the user says it is.

#include <string>

#include "llama/base/machine.h"

namespace rz {

struct Peak {
    double flops = 0;  // FLOP/s of a device; 0: unknown, as on every CPU: MFU is then not shown
    std::string name;  // "989 TFLOP/s, h100-80g, bf16"
};

// `asked`: TFLOP/s that the user gives; 0: as the table has it.
inline Peak find_peak(const Device& device, DType dtype, bool fp8 = false, double asked = 0) {
    if (asked > 0) return {1e12 * asked, format("%.4g TFLOP/s, as --peak-tflops says", asked)};
    const std::optional<Machine> m = find_machine(device);
    if (!m || m->peak_flops(dtype, fp8) == 0) return {};
    const bool is_fp8 = fp8 && m->peak_fp8 > 0;
    return {m->peak_flops(dtype, fp8), format("%.4g TFLOP/s, %s, dense %s", m->peak_flops(dtype, fp8) / 1e12,
                                              m->name.c_str(), is_fp8 ? "fp8" : name_of(dtype))};
}

inline double peak_flops(const Device& device) { return find_peak(device, DType::bf16).flops; }

}  // namespace rz
