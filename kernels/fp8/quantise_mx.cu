#include "kernels/cuda/device_math.cuh"
#include "kernels/fp8/quantise_mx.h"

namespace rz {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kSide = int(kMxMultiple);
constexpr int kLines = kSide / kWarps;  // of a square, for each warp
constexpr int kLanes = int(kMxTile) / 4;

template <class T>
constexpr int kStride = kSide + 16 / int(sizeof(T));  // elements between rows in shared memory: 16 bytes more

__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float factor) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0] * factor, x[1] * factor), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high =
        __nv_cvt_float2_to_fp8x2(make_float2(x[2] * factor, x[3] * factor), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

// One output: lines of the square as rows of a matrix (outer, inner), its first element at (i0, k0). A warp takes a
// line: lane l has elements 4 l to 4 l + 3, eight lanes a tile. A square's scales are 512 bytes of its own.
template <class T>
__device__ __forceinline__ void write_lines(uint8_t* y, uint8_t* scales, const T* square, int64_t inner, int64_t i0,
                                            int64_t k0, bool transposed) {
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    for (int n = 0; n < kLines; ++n) {
        const int line = warp * kLines + n;
        float x[4];
        uint32_t amax = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int at = 4 * lane + k;
            x[k] = to_float(transposed ? square[at * kStride<T> + line] : square[line * kStride<T> + at]);
            amax = max(amax, __float_as_uint(x[k]) & 0x7fffffffu);
        }
#pragma unroll
        for (int d = kLanes / 2; d > 0; d >>= 1) amax = max(amax, __shfl_xor_sync(kFullWarp, amax, d));
        const uint8_t scale = mx_scale(amax);
        *reinterpret_cast<uint32_t*>(y + (i0 + line) * inner + k0 + 4 * lane) = four_codes(x, mx_factor(scale));
        uint32_t four = uint32_t(scale) << (8 * (lane / kLanes));  // a line's scales lie side by side
        four |= __shfl_xor_sync(kFullWarp, four, kLanes);
        four |= __shfl_xor_sync(kFullWarp, four, 2 * kLanes);
        if (lane == 0) *reinterpret_cast<uint32_t*>(scales + mx_scale_at(inner, i0 + line, k0 / kMxTile)) = four;
    }
}

// One thread block for each square of 128 x 128, which it keeps in shared memory.
template <class T>
__global__ void __launch_bounds__(kThreads) quantise_mx_kernel(QuantiseMx a) {
    GPU_DYN_SMEM(smem);
    T* square = reinterpret_cast<T*>(smem);
    const int64_t r0 = int64_t(blockIdx.y) * kSide, c0 = int64_t(blockIdx.x) * kSide;
    constexpr int kVec = kVecOf<T>, kVectors = kSide / kVec;
    const T* x = static_cast<const T*>(a.x) + r0 * a.columns + c0;
    for (int v = int(threadIdx.x); v < kSide * kVectors; v += kThreads) {
        Pack<T, kVec> pack;
        pack.load(x + int64_t(v / kVectors) * a.columns + v % kVectors * kVec);
        pack.store(square + v / kVectors * kStride<T> + v % kVectors * kVec);
    }
    __syncthreads();
    if (a.y != nullptr) write_lines(a.y, a.scales, square, a.columns, r0, c0, false);
    if (a.y_t != nullptr) write_lines(a.y_t, a.scales_t, square, a.rows, c0, r0, true);
}

}  // namespace

void quantise_mx_cuda(const QuantiseMx& a, CudaStream stream) {
    const int64_t down = a.rows / kSide;
    require(down <= 65535, "quantise_mx: %lld rows are beyond CUDA's grid: split the call",
            static_cast<long long>(a.rows));
    with_device_type(a.dtype, [&]<class T>() {
        launch(quantise_mx_kernel<T>,
               LaunchConfig(dim3(blocks_for(a.columns, kSide), unsigned(down)), dim3(kThreads),
                            size_t(kSide) * kStride<T> * sizeof(T), stream),
               a);
    });
}

}  // namespace rz
