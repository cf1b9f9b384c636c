#pragma once
// Rounding fp32 to bf16 up or down by chance (Gupta et al. 2015), the same bits on both backends. x between its bf16
// neighbours a < x < b becomes b with probability (x - a) / (b - a), so the mean over the chance is x itself and
// updates below half a unit in the last place are not lost. 16 random bits make the probability exact: bf16 leaves out
// 16 bits of an fp32.
//
// The chance is Philox's (philox.h), counted by the element's logical offset and the update's number and keyed by a
// seed: neither ranks, nor slices, nor the order of work change a bit. Philox's group g serves elements 4g .. 4g+3, one
// word each.

#include "kernels/philox.h"

namespace rz {

// bf16's bits. Values that bf16 has, infinities among them, are never changed; NaN stays NaN. Uses the low 16 bits of
// `chance`.
RZ_HD uint16_t stochastic_bf16(float x, uint32_t chance) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t carried = u + (chance & 0xffffu);
    return uint16_t(((u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : carried) >> 16);
}

// AdamW's two streams of words, apart from those that initial weights are drawn from. A word of the first serves the
// moments: m its low half, v its high half; one of the second serves the master.
RZ_HD uint64_t moment_stream(int64_t step) { return uint64_t(1) << 63 | uint64_t(step) << 1; }
RZ_HD uint64_t master_stream(int64_t step) { return moment_stream(step) | 1; }

}  // namespace rz
