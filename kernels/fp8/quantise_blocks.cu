#include "kernels/cuda/magnitude.cuh"
#include "kernels/fp8/quantise_blocks.h"

namespace rz {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kSide = int(kFp8Tile);
constexpr int kLines = kSide / kWarps;  // of a tile, for each warp

template <class T>
constexpr int kStride = kSide + 16 / int(sizeof(T));  // elements between rows in shared memory: 16 bytes more

__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float scale) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0] * scale, x[1] * scale), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2] * scale, x[3] * scale), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

// Four elements of a line of the tile: of row `line` from column 4 * lane, or of column `line` from row 4 * lane.
template <class T>
__device__ __forceinline__ void take_four(float (&x)[4], const T* tile, int line, bool transposed) {
    const int first = int(threadIdx.x) % 32 * 4;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        x[k] = to_float(transposed ? tile[(first + k) * kStride<T> + line] : tile[line * kStride<T> + first + k]);
}

// One output: lines of the tile as rows of a matrix (outer, inner), the tile's first element at (i0, k0). `whole` is
// the magnitude of the tile, for squares.
template <class T>
__device__ __forceinline__ void write_lines(uint8_t* y, float* scales, const T* tile, int64_t outer, int64_t inner,
                                            int64_t i0, int64_t k0, Fp8Tiles tiles, uint32_t whole, bool transposed) {
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    for (int n = 0; n < kLines; ++n) {
        const int line = warp * kLines + n;
        float x[4];
        take_four(x, tile, line, transposed);
        const uint32_t amax = tiles == Fp8Tiles::rows ? warp_max_bits(magnitude_bits(x)) : whole;
        const float scale = fp8_block_scale(amax);
        *reinterpret_cast<uint32_t*>(y + (i0 + line) * inner + k0 + 4 * lane) = four_codes(x, scale);
        if (lane == 0 && (tiles == Fp8Tiles::rows || line == 0))
            scales[fp8_scale_at(tiles, outer, inner, i0 + line, k0 / kSide)] = 1 / scale;
    }
}

// A row of a matrix's scales of squares is padded to four: the last tile of the row clears what follows.
__device__ __forceinline__ void clear_padding(float* scales, int64_t outer, int64_t inner, int64_t i0, int64_t k0) {
    const int64_t tiles = inner / kSide, padded = (tiles + 3) / 4 * 4;
    if (k0 / kSide != tiles - 1 || threadIdx.x != 0) return;
    for (int64_t k = tiles; k < padded; ++k) scales[fp8_scale_at(Fp8Tiles::squares, outer, inner, i0, k)] = 0;
}

// One thread block for each tile of 128 x 128, which it keeps in shared memory.
template <class T>
__global__ void __launch_bounds__(kThreads) quantise_blocks_kernel(QuantiseBlocks a) {
    GPU_DYN_SMEM(smem);
    __shared__ uint32_t slots[kWarps];
    T* tile = reinterpret_cast<T*>(smem);
    const int64_t r0 = int64_t(blockIdx.y) * kSide, c0 = int64_t(blockIdx.x) * kSide;
    constexpr int kVec = kVecOf<T>, kVectors = kSide / kVec;
    const T* x = static_cast<const T*>(a.x) + r0 * a.columns + c0;
    for (int v = int(threadIdx.x); v < kSide * kVectors; v += kThreads) {
        Pack<T, kVec> pack;
        pack.load(x + int64_t(v / kVectors) * a.columns + v % kVectors * kVec);
        pack.store(tile + v / kVectors * kStride<T> + v % kVectors * kVec);
    }
    __syncthreads();
    uint32_t whole = 0;
    if (a.tiles == Fp8Tiles::squares) {
        for (int n = 0; n < kLines; ++n) {
            float four[4];
            take_four(four, tile, int(threadIdx.x) / 32 * kLines + n, false);
            whole = max(whole, magnitude_bits(four));
        }
        whole = warp_max_bits(whole);
        if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = whole;
        __syncthreads();
        for (int w = 0; w < kWarps; ++w) whole = max(whole, slots[w]);
    }
    if (a.y != nullptr) write_lines(a.y, a.scales, tile, a.rows, a.columns, r0, c0, a.tiles, whole, false);
    if (a.y_t != nullptr) write_lines(a.y_t, a.scales_t, tile, a.columns, a.rows, c0, r0, a.tiles, whole, true);
    if (a.tiles == Fp8Tiles::rows) return;
    if (a.y != nullptr) clear_padding(a.scales, a.rows, a.columns, r0, c0);
    if (a.y_t != nullptr) clear_padding(a.scales_t, a.columns, a.rows, c0, r0);
}

}  // namespace

void quantise_blocks_cuda(const QuantiseBlocks& a, CudaStream stream) {
    const int64_t down = a.rows / kSide;
    require(down <= 65535, "quantise_blocks: %lld rows are beyond CUDA's grid: split the call",
            static_cast<long long>(a.rows));
    with_device_type(a.dtype, [&]<class T>() {
        launch(quantise_blocks_kernel<T>,
               LaunchConfig(dim3(blocks_for(a.columns, kSide), unsigned(down)), dim3(kThreads),
                            size_t(kSide) * kStride<T> * sizeof(T), stream),
               a);
    });
}

}  // namespace rz
