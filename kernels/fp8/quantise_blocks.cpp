#include "kernels/fp8/quantise_blocks.h"

#include <algorithm>

#include "kernels/checks.h"

namespace rz {

// Quantises elements x[i * row + k * column] of a tile to y[i * stride + k].
template <class T>
static float quantise_tile(uint8_t* y, int64_t stride, const T* x, int64_t row, int64_t column, int64_t outer,
                           int64_t inner) {
    uint32_t amax = 0;
    for (int64_t i = 0; i < outer; ++i)
        for (int64_t k = 0; k < inner; ++k)
            amax = std::max(amax, std::bit_cast<uint32_t>(float(x[i * row + k * column])) & 0x7fffffffu);
    const float scale = fp8_block_scale(amax);
    for (int64_t i = 0; i < outer; ++i)
        for (int64_t k = 0; k < inner; ++k)
            y[i * stride + k] = to_fp8<Fp8::e4m3>(float(x[i * row + k * column]) * scale);
    return fp8_inverse(scale);
}

// One of the two outputs: a matrix (outer, inner) whose element (i, k) is x[i * row + k * column].
template <class T>
static void quantise_matrix(uint8_t* y, float* scales, const T* x, int64_t row, int64_t column, int64_t outer,
                            int64_t inner, Fp8Tiles tiles) {
    const int64_t high = tiles == Fp8Tiles::rows ? 1 : kFp8Tile;
    std::fill(scales, scales + fp8_scales_of(tiles, outer, inner), 0.0f);
#pragma omp parallel for schedule(static) if (outer * inner >= kSerialBelow)
    for (int64_t i = 0; i < outer; i += high)
        for (int64_t k = 0; k < inner; k += kFp8Tile)
            scales[fp8_scale_at(tiles, outer, inner, i, k / kFp8Tile)] =
                quantise_tile(y + i * inner + k, inner, x + i * row + k * column, row, column, high, kFp8Tile);
}

void quantise_blocks_cpu(const QuantiseBlocks& a) {
    with_dtype(a.dtype, [&]<class T>() {
        const T* x = static_cast<const T*>(a.x);
        if (a.y) quantise_matrix(a.y, a.scales, x, a.columns, 1, a.rows, a.columns, a.tiles);
        if (a.y_t) quantise_matrix(a.y_t, a.scales_t, x, 1, a.columns, a.columns, a.rows, a.tiles);
    });
}

void quantise_blocks(Stream& stream, const QuantiseBlocks& a) {
    const char* op = "quantise_blocks";
    require(a.rows >= 0 && a.columns >= 0 && a.rows % kFp8Tile == 0 && a.columns % kFp8Tile == 0,
            "%s: %ld x %ld; both must be multiples of %ld", op, a.rows, a.columns, kFp8Tile);
    if (a.rows == 0 || a.columns == 0) return;
    check_pointer(op, "x", a.x, 16);
    require(a.y || a.y_t, "%s: neither y nor y_t is set; set at least one", op);
    if (a.y) check_pointer(op, "y", a.y, 16), check_pointer(op, "scales", a.scales, 16);
    if (a.y_t) check_pointer(op, "y_t", a.y_t, 16), check_pointer(op, "scales_t", a.scales_t, 16);
    stream.run(a, quantise_blocks_cpu, RZ_CUDA_OP(quantise_blocks_cuda));
}

}  // namespace rz
