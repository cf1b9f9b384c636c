#pragma once
// The vendors' dense bf16 peaks, which MFU is measured against.

#include <string>
#include <utility>

#include "kernels/runtime/device.h"

namespace rz {

// FLOP/s; 0 where it is unknown, as on every CPU: MFU is then not shown. 989 TFLOP/s for H100 and H200 (SXM).
inline double peak_flops(const Device& device) {
    if (!device.is_cuda()) return 0;
    const std::string name = device.name();
    constexpr std::pair<const char*, double> kKnown[] = {{"H200", 989e12}, {"H100 NVL", 835e12}, {"H100 PCIe", 756e12},
                                                         {"H100", 989e12}, {"A100", 312e12},     {"B200", 2250e12},
                                                         {"L40S", 362e12}, {"RTX 4090", 165e12}};
    for (const auto& [part, flops] : kKnown)
        if (name.find(part) != std::string::npos) return flops;
    return 0;
}

}  // namespace rz
