#pragma once
// Shared by the kernels: 16-byte loads and stores through fp32, reductions in a fixed order, and dispatch by type.

#include <cstring>

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/runtime/device.h"
#include "kernels/runtime/dtype.h"

namespace rz {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x) {
    if constexpr (std::is_same_v<T, float>)
        return x;
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn(x);
    else
        return __float2half_rn(x);
}

// x as it will be read back after a store
template <class T>
__device__ __forceinline__ float rounded(float x) {
    return to_float(from_float<T>(x));
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < INFINITY; }

// Elements of T in the widest load
template <class T>
constexpr int kVecOf = 16 / int(sizeof(T));

// kN consecutive elements as the bytes of one (or a few) loads. p is aligned to min(16, kN * sizeof(T)).
template <class T, int kN>
struct Pack {
    static constexpr int kBytes = kN * int(sizeof(T));
    using Word = std::conditional_t<kBytes % 16 == 0, uint4, std::conditional_t<kBytes % 8 == 0, uint2, T>>;
    static constexpr int kWords = kBytes / int(sizeof(Word));
    Word words[kWords];

    __device__ __forceinline__ void load(const T* p) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(p)[i];
    }
    __device__ __forceinline__ void store(T* p) const {
#pragma unroll
        for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(p)[i] = words[i];
    }
    __device__ __forceinline__ void to(float (&out)[kN]) const {
        T raw[kN];
        memcpy(raw, words, kBytes);
#pragma unroll
        for (int i = 0; i < kN; ++i) out[i] = to_float(raw[i]);
    }
    __device__ __forceinline__ void from(const float (&in)[kN]) {
        T raw[kN];
#pragma unroll
        for (int i = 0; i < kN; ++i) raw[i] = from_float<T>(in[i]);
        memcpy(words, raw, kBytes);
    }
};

template <int kN, class T>
__device__ __forceinline__ void load(float (&out)[kN], const T* p) {
    Pack<T, kN> pack;
    pack.load(p);
    pack.to(out);
}
template <int kN, class T>
__device__ __forceinline__ void store(T* p, const float (&in)[kN]) {
    Pack<T, kN> pack;
    pack.from(in);
    pack.store(p);
}

// Butterflies: every lane receives the same bits.
template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(kFullWarp, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, d));
    return v;
}

// Over the `threads` (a multiple of 32, up to 1024) of a one-dimensional block; every thread receives the same bits.
// One barrier: `slots` (32 in shared memory) may be written again only after another barrier.
template <class T>
__device__ __forceinline__ T block_sum(T v, T* slots, int threads) {
    const int lane = threadIdx.x % 32, warps = threads / 32;
    v = warp_sum(v);
    if (lane == 0) slots[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(lane < warps ? slots[lane] : T(0));
}
__device__ __forceinline__ float block_max(float v, float* slots, int threads) {
    const int lane = threadIdx.x % 32, warps = threads / 32;
    v = warp_max(v);
    if (lane == 0) slots[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_max(lane < warps ? slots[lane] : -INFINITY);
}

// ---- host side

// with_device_type(t, [&]<class T>() { ... }), T the type that kernels use
template <class F>
void with_device_type(DType t, F&& f) {
    switch (t) {
        case DType::f32:
            return f.template operator()<float>();
        case DType::bf16:
            return f.template operator()<__nv_bfloat16>();
        case DType::f16:
            return f.template operator()<__half>();
    }
}

template <class... P>
bool aligned_to(size_t bytes, const P*... p) {
    return ((reinterpret_cast<uintptr_t>(p) % bytes == 0) && ...);
}

// Blocks for `items`, `per_block` each.
inline unsigned blocks_for(int64_t items, int64_t per_block) {
    const int64_t blocks = ceil_div(items, per_block);
    require(blocks <= 0x7fffffff, "a kernel launch of %lld blocks is beyond CUDA's grid: split the call",
            static_cast<long long>(blocks));
    return unsigned(blocks);
}

// Threads that share a row of `vectors` when each takes `per_thread` of them: a multiple of 32, at most `most`.
inline int row_threads(int64_t vectors, int per_thread, int most) {
    const int64_t threads = round_up(ceil_div(vectors, per_thread), 32);
    return int(threads < 32 ? 32 : threads > most ? most : threads);
}

}  // namespace rz
