#pragma once
// From 16 or 32 bits to e4m3 with a scale of 8 bits (e8m0, a power of two) for each 32 neighbours along a row: MXFP8 of
// OCP MX 1.0, which GPUs from compute capability 10.0 on multiply as it is. The scale is the smallest power of two by
// which the magnitude of the 32 is within 448: rounded up, so that nothing saturates (arXiv 2506.08027). A tile along
// rows is no tile along columns: the transposed matrix is quantised from the numbers themselves.
//
// Scales are in the order in which cuBLASLt reads them (VEC32_UE8M0): squares of 128 rows x 4 scales, 512 bytes each,
// and in a square row i is at 16 (i % 32) + 4 (i / 32).
//
// A tile with a number that is not finite has the scale NaN (255), one of zeros 2^-127. Same bits on both backends.

#include "kernels/fp8/fp8.h"
#include "kernels/philox.h"
#include "kernels/runtime/device.h"

namespace rz {

constexpr int64_t kMxTile = 32, kMxMultiple = 128;

struct QuantiseMx {
    uint8_t* y = nullptr;         // (rows, columns) =      16-byte aligned, as all here; optional, with its scales
    uint8_t* scales = nullptr;    // mx_scales_of(rows, columns) =
    uint8_t* y_t = nullptr;       // (columns, rows) =      optional, with its scales
    uint8_t* scales_t = nullptr;  // mx_scales_of(columns, rows) =
    const void* x;                // (rows, columns) dtype
    int64_t rows, columns;        // multiples of 128
    DType dtype;
};

void quantise_mx(Stream&, const QuantiseMx&);
void quantise_mx_cpu(const QuantiseMx&);
void quantise_mx_cuda(const QuantiseMx&, CudaStream);

// Bytes of the scales of a matrix (outer, inner), and where that of element (i, 32 k) lies.
RZ_HD int64_t mx_scales_of(int64_t outer, int64_t inner) { return outer * (inner / kMxTile); }
RZ_HD int64_t mx_scale_at(int64_t inner, int64_t i, int64_t k) {
    return (i / 128 * (inner / (4 * kMxTile)) + k / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + k % 4;
}

// Of a tile whose magnitude has these bits.
RZ_HD uint8_t mx_scale(uint32_t amax) {
    if (amax >= 0x7f800000u) return 255;
    const float x = std::bit_cast<float>(amax) / 448;
    const uint32_t a = std::bit_cast<uint32_t>(x);
    return a <= 0x00400000u ? 0 : uint8_t((a >> 23) + ((a & 0x7fffffu) != 0));
}
// What numbers are multiplied by before they become codes; NaN for the NaN.
RZ_HD float mx_factor(uint8_t scale) {
    return std::bit_cast<float>(scale == 255 ? 0x7fc00000u : scale == 254 ? 0x00400000u : uint32_t(254 - scale) << 23);
}

}  // namespace rz
