// quantise_blocks and quantise_mx: one kernel, and two rules by which a line's numbers get their scale.
#include "kernels/cuda/magnitude.cuh"
#include "kernels/fp8/quantise_blocks.h"
#include "kernels/fp8/quantise_mx.h"

namespace rz {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kSide = 128;
static_assert(kFp8Tile == kSide && kMxMultiple == kSide);

// Where four neighbours of a tile's row lie in shared memory. Rows have no padding; the place of four is exchanged by
// the row, so that neither 32 fours of a row nor a column of fours meet in a bank.
template <class T>
__device__ __forceinline__ T* four_at(T* tile, int row, int four) {
    return tile + row * kSide + 4 * (four ^ (row / 4 % 16));
}

// A lane's part of four lines, elements 4 lane to 4 lane + 3: of rows 4 n to 4 n + 3 of the tile, or of such columns.
template <bool kTransposed, class T>
__device__ __forceinline__ void take_lines(float (&lines)[4][4], T* tile, int n) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float four[4];
        load(four, kTransposed ? four_at(tile, 4 * lane + k, n) : four_at(tile, 4 * n + k, lane));
#pragma unroll
        for (int j = 0; j < 4; ++j) (kTransposed ? lines[j][k] : lines[k][j]) = four[j];
    }
}

__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float factor) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0] * factor, x[1] * factor), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high =
        __nv_cvt_float2_to_fp8x2(make_float2(x[2] * factor, x[3] * factor), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

// ---- the rules: from a lane's four numbers of line i of a matrix (outer, inner), from column k0 on, what they are to
// be multiplied by; one lane leaves the scale. `whole` is the magnitude of the tile.

__device__ __forceinline__ float scale_line(const QuantiseBlocks& a, float* scales, const float (&x)[4], uint32_t whole,
                                            int64_t outer, int64_t inner, int64_t i, int64_t k0) {
    const bool rows = a.tiles == Fp8Tiles::rows;
    const float scale = fp8_block_scale(rows ? warp_max_bits(magnitude_bits(x)) : whole);
    if (threadIdx.x % 32 == 0 && (rows || i % kSide == 0))
        scales[fp8_scale_at(a.tiles, outer, inner, i, k0 / kSide)] = fp8_inverse(scale);
    return scale;
}

// Eight lanes have a tile's 32. A line's four scales lie side by side.
__device__ __forceinline__ float scale_line(const QuantiseMx&, uint8_t* scales, const float (&x)[4], uint32_t, int64_t,
                                            int64_t inner, int64_t i, int64_t k0) {
    constexpr int kLanes = int(kMxTile) / 4;
    const int lane = int(threadIdx.x) % 32;
    uint32_t amax = magnitude_bits(x);
#pragma unroll
    for (int d = kLanes / 2; d > 0; d >>= 1) amax = max(amax, __shfl_xor_sync(kFullWarp, amax, d));
    const uint8_t scale = mx_scale(amax);
    uint32_t four = uint32_t(scale) << (8 * (lane / kLanes));
    four |= __shfl_xor_sync(kFullWarp, four, kLanes);
    four |= __shfl_xor_sync(kFullWarp, four, 2 * kLanes);
    if (lane == 0) *reinterpret_cast<uint32_t*>(scales + mx_scale_at(inner, i, k0 / kMxTile)) = four;
    return mx_factor(scale);
}

// A row of a matrix's scales of squares is padded to four: the last tile of the row clears what follows.
__device__ __forceinline__ void clear_padding(float* scales, int64_t outer, int64_t inner, int64_t i0, int64_t k0) {
    const int64_t tiles = inner / kSide, padded = (tiles + 3) / 4 * 4;
    if (k0 / kSide != tiles - 1 || threadIdx.x != 0) return;
    for (int64_t k = tiles; k < padded; ++k) scales[fp8_scale_at(Fp8Tiles::squares, outer, inner, i0, k)] = 0;
}

// One output: lines of the tile as rows of a matrix (outer, inner), the tile's first element at (i0, k0).
template <bool kTransposed, class T, class A, class S>
__device__ __forceinline__ void write_lines(const A& a, uint8_t* y, S* scales, T* tile, uint32_t whole, int64_t outer,
                                            int64_t inner, int64_t i0, int64_t k0) {
    if (y == nullptr) return;
    for (int n = int(threadIdx.x) / 32; n < kSide / 4; n += kWarps) {
        float lines[4][4];
        take_lines<kTransposed>(lines, tile, n);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int64_t i = i0 + 4 * n + j;
            const float factor = scale_line(a, scales, lines[j], whole, outer, inner, i, k0);
            *reinterpret_cast<uint32_t*>(y + i * inner + k0 + int(threadIdx.x) % 32 * 4) = four_codes(lines[j], factor);
        }
    }
    if constexpr (std::is_same_v<A, QuantiseBlocks>)
        if (a.tiles == Fp8Tiles::squares) clear_padding(scales, outer, inner, i0, k0);
}

// One thread block for each tile of 128 x 128, which it keeps in shared memory.
template <class T, class A>
__global__ void __launch_bounds__(kThreads) quantise_tiles_kernel(A a) {
    GPU_DYN_SMEM(smem);
    __shared__ uint32_t slots[kWarps];
    T* tile = reinterpret_cast<T*>(smem);
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int64_t r0 = int64_t(blockIdx.y) * kSide, c0 = int64_t(blockIdx.x) * kSide;
    const T* x = static_cast<const T*>(a.x) + r0 * a.columns + c0 + 4 * lane;
    uint32_t whole = 0;
#pragma unroll 8
    for (int row = warp; row < kSide; row += kWarps) {
        Pack<T, 4> four;
        four.load(x + row * a.columns);
        four.store(four_at(tile, row, lane));
        if constexpr (std::is_same_v<A, QuantiseBlocks>) {
            float values[4];
            four.to(values);
            whole = max(whole, magnitude_bits(values));
        }
    }
    if constexpr (std::is_same_v<A, QuantiseBlocks>) {
        whole = warp_max_bits(whole);
        if (lane == 0) slots[warp] = whole;
    }
    __syncthreads();
    if constexpr (std::is_same_v<A, QuantiseBlocks>)
        for (int w = 0; w < kWarps; ++w) whole = max(whole, slots[w]);
    write_lines<false>(a, a.y, a.scales, tile, whole, a.rows, a.columns, r0, c0);
    write_lines<true>(a, a.y_t, a.scales_t, tile, whole, a.columns, a.rows, c0, r0);
}

template <class A>
void quantise_tiles(const char* op, const A& a, CudaStream stream) {
    const int64_t down = a.rows / kSide;
    require(down <= 65535, "%s: %lld rows are beyond CUDA's grid: split the call", op, static_cast<long long>(a.rows));
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<quantise_tiles_kernel<T, A>>,
               LaunchConfig(dim3(blocks_for(a.columns, kSide), unsigned(down)), dim3(kThreads),
                            size_t(kSide) * kSide * sizeof(T), stream),
               a);
    });
}

}  // namespace

void quantise_blocks_cuda(const QuantiseBlocks& a, CudaStream stream) { quantise_tiles("quantise_blocks", a, stream); }
void quantise_mx_cuda(const QuantiseMx& a, CudaStream stream) { quantise_tiles("quantise_mx", a, stream); }

}  // namespace rz
