#pragma once
// One small call of attention, forward and backward, as a device computes it beside the CPU: at a run's start, with the
// kernels that the run will take. A build that lacks a device's code, or a device that computes wrongly, is told in
// words.

#include <vector>

#include "kernels/attention/attention.h"

namespace rz {

struct AttentionSample {
    int64_t T, H, K, D;
    DType dtype;
    bool documents;  // a second one starts half way
};
// By name: o, lse, dq, dk, dv; in fp32.
struct AttentionNumbers {
    std::vector<float> o, lse, dq, dk, dv;
};
AttentionNumbers attention_numbers(Device, const AttentionSample&);

// Throws where one of them is further from the CPU's than roundings explain. `where` names the device.
void require_attention(const AttentionNumbers& found, const AttentionNumbers& cpu, const AttentionSample&,
                       const std::string& where);
void check_attention(Device, const AttentionSample&);

}  // namespace rz
