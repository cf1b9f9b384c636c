#include "kernels/cuda/device_math.cuh"
#include "kernels/elementwise.h"
#include "kernels/philox.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
// Elements per thread: two fours, 128 apart, of the 256 of its warp. So each access of the warp, of 16 bytes a thread
// in fp32 and of 8 in 16 bits, is one run of memory.
constexpr int kVec = 8, kFour = 4, kApart = 128;
constexpr int kRows = 4;  // that sum_rows fetches at a time

// The type is a run-time argument, the same for the whole grid: 27 combinations in one kernel, at a branch per access.
// Loads and conversions are apart, so that all loads of a thread can be under way before it waits for one.
struct Raw {
    uint4 words[2];  // the second of fp32 only

    __device__ __forceinline__ void load(const void* p, DType t, int64_t i) {
        const char* from = static_cast<const char*>(p) + i * size_of(t);
        if (t == DType::f32) {
            words[0] = *reinterpret_cast<const uint4*>(from);
            words[1] = *reinterpret_cast<const uint4*>(from + 4 * kApart);
        } else {
            const uint2 low = *reinterpret_cast<const uint2*>(from),
                        high = *reinterpret_cast<const uint2*>(from + 2 * kApart);
            words[0] = uint4{low.x, low.y, high.x, high.y};
        }
    }
    __device__ __forceinline__ void to(float (&v)[kVec], DType t) const {
        switch (t) {
            case DType::f32:
                memcpy(v, words, sizeof v);
                break;
            case DType::bf16:
                convert<__nv_bfloat16>(v);
                break;
            case DType::f16:
                convert<__half>(v);
                break;
        }
    }
    template <class T>
    __device__ __forceinline__ void convert(float (&v)[kVec]) const {
        Pack<T, kVec> pack;
        pack.words[0] = words[0];
        pack.to(v);
    }
};

template <class T>
__device__ __forceinline__ void store_fours(T* p, const float (&v)[kVec]) {
    const float low[kFour] = {v[0], v[1], v[2], v[3]}, high[kFour] = {v[4], v[5], v[6], v[7]};
    store(p, low);
    store(p + kApart, high);
}
__device__ __forceinline__ void store_any(void* p, DType t, int64_t i, const float (&v)[kVec]) {
    switch (t) {
        case DType::f32:
            return store_fours(static_cast<float*>(p) + i, v);
        case DType::bf16:
            return store_fours(static_cast<__nv_bfloat16*>(p) + i, v);
        case DType::f16:
            return store_fours(static_cast<__half*>(p) + i, v);
    }
}
__device__ __forceinline__ float load_one(const void* p, DType t, int64_t i) {
    switch (t) {
        case DType::f32:
            return static_cast<const float*>(p)[i];
        case DType::bf16:
            return to_float(static_cast<const __nv_bfloat16*>(p)[i]);
        case DType::f16:
            return to_float(static_cast<const __half*>(p)[i]);
    }
    __builtin_unreachable();
}
__device__ __forceinline__ void store_one(void* p, DType t, int64_t i, float v) {
    switch (t) {
        case DType::f32:
            static_cast<float*>(p)[i] = v;
            return;
        case DType::bf16:
            static_cast<__nv_bfloat16*>(p)[i] = from_float<__nv_bfloat16>(v);
            return;
        case DType::f16:
            static_cast<__half*>(p)[i] = from_float<__half>(v);
            return;
    }
}

// Offset of a thread's element k, from its first
__device__ __forceinline__ int place(int k) { return k / kFour * kApart + k % kFour; }

// Those of the thread that are among n elements from its first, or not aligned: one by one
__device__ __forceinline__ void load_few(float (&v)[kVec], const void* p, DType t, int64_t i, int64_t n) {
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] = place(k) < n ? load_one(p, t, i + place(k)) : 0.0f;
}
__device__ __forceinline__ void store_some(void* p, DType t, int64_t i, int64_t n, bool wide, const float (&v)[kVec]) {
    if (wide && n > place(kVec - 1)) {
        store_any(p, t, i, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k)
        if (place(k) < n) store_one(p, t, i + place(k), v[k]);
}

__device__ __forceinline__ int64_t first_element() {
    const int64_t warp = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
    return warp * 32 * kVec + threadIdx.x % 32 * kFour;
}

__global__ void __launch_bounds__(kThreads) cast_kernel(Cast a, bool wide) {
    const int64_t i = first_element();
    if (i >= a.n) return;
    const int64_t left = a.n - i;
    float v[kVec];
    if (wide && left > place(kVec - 1)) {
        Raw raw;
        raw.load(a.x, a.dtype, i);
        raw.to(v, a.dtype);
    } else {
        load_few(v, a.x, a.dtype, i, left);
    }
    store_some(a.out, a.out_dtype, i, left, wide, v);
}

__global__ void __launch_bounds__(kThreads) reduce_add_kernel(ReduceAdd r, bool wide) {
    const int64_t i = first_element();
    if (i >= r.n) return;
    const int64_t left = r.n - i;
    float a[kVec], b[kVec];
    if (wide && left > place(kVec - 1)) {
        Raw raw_a, raw_b;
        raw_a.load(r.a, r.a_dtype, i);
        raw_b.load(r.b, r.b_dtype, i);
        raw_a.to(a, r.a_dtype);
        raw_b.to(b, r.b_dtype);
    } else {
        load_few(a, r.a, r.a_dtype, i, left);
        load_few(b, r.b, r.b_dtype, i, left);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) a[k] = (a[k] + b[k]) * r.scale;
    store_some(r.out, r.out_dtype, i, left, wide, a);
}

// out may be one of the rows: a thread has read its elements of every row before it writes.
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(SumRows a, bool wide) {
    const int64_t i = first_element();
    if (i >= a.n) return;
    const int64_t left = a.n - i;
    float sum[kVec], v[kVec];
    const auto add = [&](const float(&x)[kVec]) {
#pragma unroll
        for (int k = 0; k < kVec; ++k) sum[k] += x[k];
    };
    if (wide && left > place(kVec - 1)) {
        Raw raw[kRows];
        for (int64_t row = 0; row < a.rows; row += kRows) {
#pragma unroll
            for (int r = 0; r < kRows; ++r)
                if (row + r < a.rows) raw[r].load(a.x, a.dtype, (row + r) * a.stride + i);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (row + r >= a.rows) break;
                raw[r].to(v, a.dtype);
                if (row + r == 0)
                    memcpy(sum, v, sizeof v);
                else
                    add(v);
            }
        }
    } else {
        load_few(sum, a.x, a.dtype, i, left);
        for (int64_t row = 1; row < a.rows; ++row) {
            load_few(v, a.x, a.dtype, row * a.stride + i, left);
            add(v);
        }
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] *= a.scale;
    store_some(a.out, a.out_dtype, i, left, wide, sum);
}

__global__ void __launch_bounds__(kThreads) ema_kernel(Ema e, bool wide) {
    const int64_t i = first_element();
    if (i >= e.n || !is_finite(*e.grad_scale)) return;
    const int64_t left = e.n - i;
    float average[kVec], x[kVec];
    if (wide && left > place(kVec - 1)) {
        Raw raw_average, raw_x;
        raw_average.load(e.average, DType::f32, i);
        raw_x.load(e.x, DType::f32, i);
        raw_average.to(average, DType::f32);
        raw_x.to(x, DType::f32);
    } else {
        load_few(average, e.average, DType::f32, i, left);
        load_few(x, e.x, DType::f32, i, left);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) average[k] = fmaf(e.weight, x[k] - average[k], average[k]);
    store_some(e.average, DType::f32, i, left, wide, average);
}

// A thread makes the normals of two groups of four of the tensor (not of this range), so that every cut of it shares
// the work of Philox's groups.
__global__ void __launch_bounds__(kThreads) random_normal_kernel(RandomNormal a, int64_t group, bool wide) {
    group += first_element() / kFour;
    const int64_t i = 4 * group - a.first;  // below 0 where the range begins inside a group
    if (i >= a.n) return;
    float z[kVec];
#pragma unroll
    for (int k = 0; k < kVec; k += kFour) philox_normal4(a.seed, uint64_t(group + place(k) / kFour), a.stream, z + k);
#pragma unroll
    for (int k = 0; k < kVec; ++k) z[k] = fmaf(a.std, z[k], a.mean);
    if (wide && i >= 0 && i + place(kVec - 1) < a.n) {
        store_any(a.x, a.dtype, i, z);
        if (a.x32 != nullptr) store_any(a.x32, DType::f32, i, z);
        return;
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
        const int64_t at = i + place(k);
        if (at < 0 || at >= a.n) continue;
        store_one(a.x, a.dtype, at, z[k]);
        if (a.x32 != nullptr) a.x32[at] = z[k];
    }
}

LaunchConfig flat(int64_t n, CudaStream stream) {
    return LaunchConfig(dim3(blocks_for(n, int64_t(kThreads) * kVec)), dim3(kThreads), 0, stream);
}

}  // namespace

void cast_cuda(const Cast& a, CudaStream stream) {
    if (a.n == 0) return;
    launch(kernel<cast_kernel>, flat(a.n, stream), a, aligned_to(16, a.out, a.x));
}

void reduce_add_cuda(const ReduceAdd& a, CudaStream stream) {
    if (a.n == 0) return;
    launch(kernel<reduce_add_kernel>, flat(a.n, stream), a, aligned_to(16, a.out, a.a, a.b));
}

void sum_rows_cuda(const SumRows& a, CudaStream stream) {
    if (a.n == 0) return;
    const bool wide = aligned_to(16, a.out, a.x) && a.stride % kVecOf<__half> == 0;
    launch(kernel<sum_rows_kernel>, flat(a.n, stream), a, wide);
}

void ema_cuda(const Ema& a, CudaStream stream) {
    if (a.n == 0) return;
    launch(kernel<ema_kernel>, flat(a.n, stream), a, aligned_to(16, a.average, a.x));
}

void random_normal_cuda(const RandomNormal& a, CudaStream stream) {
    if (a.n == 0) return;
    const int64_t first_group = a.first / 4, skipped = a.first % 4;
    const bool wide = skipped == 0 && aligned_to(16, a.x, a.x32);
    launch(kernel<random_normal_kernel>, flat(a.n + skipped, stream), a, first_group, wide);
}

}  // namespace rz
