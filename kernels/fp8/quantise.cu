#include "kernels/cuda/magnitude.cuh"
#include "kernels/fp8/quantise.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;           // of the transposition
constexpr int kStride = kTile + 4;  // bytes between its rows in shared memory: columns then fall on different banks

// Integers, so the order in which blocks come does not matter.
template <class T>
__global__ void __launch_bounds__(kThreads) abs_max_kernel(Fp8Scale* scale, const T* x, int64_t n) {
    __shared__ uint32_t slots[kThreads / 32];
    constexpr int kVec = kVecOf<T>;
    const int64_t step = int64_t(gridDim.x) * kThreads * kVec;
    uint32_t most = 0;
    int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kVec;
    for (; i + kVec <= n; i += step) {
        Pack<T, kVec> pack;
        pack.load(x + i);
        float v[kVec];
        pack.to(v);
        most = max(most, magnitude_bits(v));
    }
    for (int64_t k = i; k < n && k < i + kVec; ++k) most = max(most, magnitude_bits(to_float(x[k])));
    block_join<T>(&scale->amax, most, slots, kThreads);
}

template <Fp8 kType>
__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float scale) {
    constexpr __nv_fp8_interpretation_t kKind = kType == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0] * scale, x[1] * scale), __NV_SATFINITE, kKind);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2] * scale, x[3] * scale), __NV_SATFINITE, kKind);
    return low | high << 16;
}

// Reads the tensor's magnitude; one thread of the grid leaves the inverse, which no other reads.
template <Fp8 kType>
__device__ __forceinline__ float take_scale(Fp8Scale* scale) {
    const float s = fp8_scale(fp8_max(kType), scale->amax);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) scale->inverse = fp8_inverse(s);
    return s;
}

// 16 elements per thread: 32 or 64 bytes in, 16 out.
template <Fp8 kType, class T>
__global__ void __launch_bounds__(kThreads) quantise_kernel(uint8_t* y, Fp8Scale* scale, const T* x, int64_t vectors) {
    const float s = take_scale<kType>(scale);
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= vectors) return;
    float v[16];
    load(v, x + i * 16);
    uint4 codes;
    uint32_t* words = &codes.x;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const float four[4] = {v[4 * w], v[4 * w + 1], v[4 * w + 2], v[4 * w + 3]};
        words[w] = four_codes<kType>(four, s);
    }
    *reinterpret_cast<uint4*>(y + i * 16) = codes;
}

// A thread of a tile's 256 takes 16 columns of one of 64 rows, and then 16 rows of one of 64 columns.
struct TilePlace {
    int line, first;
    __device__ TilePlace() : line(int(threadIdx.x) / 4), first(int(threadIdx.x) % 4 * 16) {}
};

__device__ __forceinline__ void put_codes(uint8_t* tile, const TilePlace& at, const uint4& codes) {
    uint32_t* to = reinterpret_cast<uint32_t*>(tile + at.line * kStride + at.first);
    to[0] = codes.x, to[1] = codes.y, to[2] = codes.z, to[3] = codes.w;
}

// Column `line` of the tile, rows first .. first + 15, as 16 bytes.
__device__ __forceinline__ uint4 take_column(const uint8_t* tile, const TilePlace& at) {
    uint4 out;
    uint32_t* words = &out.x;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        uint32_t word = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b) word |= uint32_t(tile[(at.first + 4 * w + b) * kStride + at.line]) << 8 * b;
        words[w] = word;
    }
    return out;
}

template <Fp8 kType, class T>
__global__ void __launch_bounds__(kThreads)
    quantise_transpose_kernel(uint8_t* y, uint8_t* y_t, Fp8Scale* scale, const T* x, int64_t rows, int64_t columns) {
    __shared__ uint32_t words_of_tile[kTile * kStride / 4];
    uint8_t* tile = reinterpret_cast<uint8_t*>(words_of_tile);
    const float s = take_scale<kType>(scale);
    const int64_t r0 = int64_t(blockIdx.y) * kTile, c0 = int64_t(blockIdx.x) * kTile;
    const TilePlace at;
    if (r0 + at.line < rows && c0 + at.first < columns) {
        const int64_t offset = (r0 + at.line) * columns + c0 + at.first;
        float v[16];
        load(v, x + offset);
        uint4 codes;
        uint32_t* words = &codes.x;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const float four[4] = {v[4 * w], v[4 * w + 1], v[4 * w + 2], v[4 * w + 3]};
            words[w] = four_codes<kType>(four, s);
        }
        if (y != nullptr) *reinterpret_cast<uint4*>(y + offset) = codes;
        put_codes(tile, at, codes);
    }
    __syncthreads();
    if (c0 + at.line < columns && r0 + at.first < rows)
        *reinterpret_cast<uint4*>(y_t + (c0 + at.line) * rows + r0 + at.first) = take_column(tile, at);
}

__global__ void __launch_bounds__(kThreads)
    transpose8_kernel(uint8_t* y, const uint8_t* x, int64_t rows, int64_t columns) {
    __shared__ uint32_t words_of_tile[kTile * kStride / 4];
    uint8_t* tile = reinterpret_cast<uint8_t*>(words_of_tile);
    const int64_t r0 = int64_t(blockIdx.y) * kTile, c0 = int64_t(blockIdx.x) * kTile;
    const TilePlace at;
    if (r0 + at.line < rows && c0 + at.first < columns)
        put_codes(tile, at, *reinterpret_cast<const uint4*>(x + (r0 + at.line) * columns + c0 + at.first));
    __syncthreads();
    if (c0 + at.line < columns && r0 + at.first < rows)
        *reinterpret_cast<uint4*>(y + (c0 + at.line) * rows + r0 + at.first) = take_column(tile, at);
}

dim3 tiles_of(const char* op, int64_t rows, int64_t columns) {
    const int64_t down = ceil_div(rows, kTile);
    require(down <= 65535, "%s: %lld rows are beyond CUDA's grid: split the call", op, static_cast<long long>(rows));
    return dim3(blocks_for(columns, kTile), unsigned(down));
}

template <Fp8 kType, class T>
void launch_quantise(const Quantise& a, CudaStream stream) {
    const T* x = static_cast<const T*>(a.x);
    if (a.y_t == nullptr) {
        const int64_t vectors = a.rows * a.columns / 16;
        launch(kernel<quantise_kernel<kType, T>>,
               LaunchConfig(dim3(blocks_for(vectors, kThreads)), dim3(kThreads), 0, stream), a.y, a.scale, x, vectors);
    } else {
        launch(kernel<quantise_transpose_kernel<kType, T>>,
               LaunchConfig(tiles_of("quantise", a.rows, a.columns), dim3(kThreads), 0, stream), a.y, a.y_t, a.scale, x,
               a.rows, a.columns);
    }
}

}  // namespace

void abs_max_cuda(const AbsMax& a, CudaStream stream) {
    if (a.n == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        // Enough blocks to fill the largest device several times; each ends in one atomic.
        const unsigned blocks = blocks_for(a.n, int64_t(kThreads) * kVecOf<T>);
        launch(kernel<abs_max_kernel<T>>, LaunchConfig(dim3(blocks < 1024 ? blocks : 1024), dim3(kThreads), 0, stream),
               a.scale, static_cast<const T*>(a.x), a.n);
    });
}

void quantise_cuda(const Quantise& a, CudaStream stream) {
    with_device_type(a.dtype, [&]<class T>() {
        if (a.type == Fp8::e4m3)
            launch_quantise<Fp8::e4m3, T>(a, stream);
        else
            launch_quantise<Fp8::e5m2, T>(a, stream);
    });
}

void transpose8_cuda(const Transpose8& a, CudaStream stream) {
    launch(kernel<transpose8_kernel>,
           LaunchConfig(tiles_of("transpose8", a.rows, a.columns), dim3(kThreads), 0, stream), a.y, a.x, a.rows,
           a.columns);
}

}  // namespace rz
