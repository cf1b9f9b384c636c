#pragma once
// From 16 or 32 bits to e4m3, with a scale for each tile of 128 elements of a row (activations and gradients) or of 128
// x 128 (weights): an outlier then costs its own tile precision and no other (DeepSeek-V3, section 3.3). Scales are
// powers of two, the largest that keeps the tile's magnitude within 448, so only the codes round. A tile along rows is
// no tile along columns: codes of the transposed matrix are made from the numbers themselves, never from codes.
//
// Scales are stored as inverses, as cuBLASLt reads them, for a matrix (outer, inner):
//   rows     (inner / 128, outer)                  VEC128
//   squares  (outer / 128, round4(inner / 128))    BLK128x128; what pads a row is 0
//
// As in quantise.h a tile that is not finite has the inverse NaN, and one of zeros 1. Same bits on both backends.

#include "kernels/fp8/fp8.h"
#include "kernels/philox.h"
#include "kernels/runtime/device.h"

namespace rz {

constexpr int64_t kFp8Tile = 128;

enum class Fp8Tiles { rows, squares };

struct QuantiseBlocks {
    uint8_t* y = nullptr;       // (rows, columns) =     16-byte aligned, as all here; optional, with its scales
    float* scales = nullptr;    // fp8_scales_of(tiles, rows, columns) =
    uint8_t* y_t = nullptr;     // (columns, rows) =     optional, with its scales
    float* scales_t = nullptr;  // fp8_scales_of(tiles, columns, rows) =
    const void* x;              // (rows, columns) dtype
    int64_t rows, columns;      // multiples of 128
    Fp8Tiles tiles;
    DType dtype;
};

void quantise_blocks(Stream&, const QuantiseBlocks&);
void quantise_blocks_cpu(const QuantiseBlocks&);
void quantise_blocks_cuda(const QuantiseBlocks&, CudaStream);

// Floats of the scales of a matrix (outer, inner), and where that of element (i, 128 k) lies.
RZ_HD int64_t fp8_scales_of(Fp8Tiles tiles, int64_t outer, int64_t inner) {
    const int64_t k = inner / kFp8Tile;
    return tiles == Fp8Tiles::rows ? k * outer : outer / kFp8Tile * ((k + 3) / 4 * 4);
}
RZ_HD int64_t fp8_scale_at(Fp8Tiles tiles, int64_t outer, int64_t inner, int64_t i, int64_t k) {
    return tiles == Fp8Tiles::rows ? k * outer + i : i / kFp8Tile * ((inner / kFp8Tile + 3) / 4 * 4) + k;
}

// The largest power of two by which `amax` (bits of a magnitude) stays within 448, at most 2^126; NaN if not finite.
RZ_HD float fp8_block_scale(uint32_t amax) {
    if (amax == 0) return 1;
    if (amax >= 0x7f800000u) return std::bit_cast<float>(0x7fc00000u);
    const float scale = 448 / std::bit_cast<float>(amax);
    return scale < 0x1p126f ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7f800000u) : 0x1p126f;
}

}  // namespace rz
