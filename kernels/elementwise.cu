#include "kernels/cuda/device_math.cuh"
#include "kernels/elementwise.h"
#include "kernels/philox.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kVec = 8;   // elements per thread: one 16-byte access of a 16-bit type, two of fp32
constexpr int kRows = 4;  // that sum_rows fetches at a time

// The type is a run-time argument, the same for the whole grid: 27 combinations in one kernel, at a branch per access.
// Loads and conversions are apart, so that all loads of a thread can be under way before it waits for one.
struct Raw {
    uint4 words[2];  // the second of fp32 only

    __device__ __forceinline__ void load(const void* p, DType t, int64_t i) {
        const uint4* from = reinterpret_cast<const uint4*>(static_cast<const char*>(p) + i * size_of(t));
        words[0] = from[0];
        if (t == DType::f32) words[1] = from[1];
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

__device__ __forceinline__ void store_any(void* p, DType t, int64_t i, const float (&v)[kVec]) {
    switch (t) {
        case DType::f32:
            return store(static_cast<float*>(p) + i, v);
        case DType::bf16:
            return store(static_cast<__nv_bfloat16*>(p) + i, v);
        case DType::f16:
            return store(static_cast<__half*>(p) + i, v);
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

// Elements [i, i + count), count < kVec or not aligned: one by one
__device__ __forceinline__ void load_few(float (&v)[kVec], const void* p, DType t, int64_t i, int count) {
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] = k < count ? load_one(p, t, i + k) : 0.0f;
}
__device__ __forceinline__ void store_some(void* p, DType t, int64_t i, int count, bool wide, const float (&v)[kVec]) {
    if (wide && count == kVec) {
        store_any(p, t, i, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k)
        if (k < count) store_one(p, t, i + k, v[k]);
}

__device__ __forceinline__ int64_t first_element() { return (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kVec; }
__device__ __forceinline__ int elements_left(int64_t i, int64_t n) { return n - i < kVec ? int(n - i) : kVec; }

__global__ void __launch_bounds__(kThreads) cast_kernel(Cast a, bool wide) {
    const int64_t i = first_element();
    if (i >= a.n) return;
    const int count = elements_left(i, a.n);
    float v[kVec];
    if (wide && count == kVec) {
        Raw raw;
        raw.load(a.x, a.dtype, i);
        raw.to(v, a.dtype);
    } else {
        load_few(v, a.x, a.dtype, i, count);
    }
    store_some(a.out, a.out_dtype, i, count, wide, v);
}

__global__ void __launch_bounds__(kThreads) reduce_add_kernel(ReduceAdd r, bool wide) {
    const int64_t i = first_element();
    if (i >= r.n) return;
    const int count = elements_left(i, r.n);
    float a[kVec], b[kVec];
    if (wide && count == kVec) {
        Raw raw_a, raw_b;
        raw_a.load(r.a, r.a_dtype, i);
        raw_b.load(r.b, r.b_dtype, i);
        raw_a.to(a, r.a_dtype);
        raw_b.to(b, r.b_dtype);
    } else {
        load_few(a, r.a, r.a_dtype, i, count);
        load_few(b, r.b, r.b_dtype, i, count);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) a[k] = (a[k] + b[k]) * r.scale;
    store_some(r.out, r.out_dtype, i, count, wide, a);
}

// out may be one of the rows: a thread has read its elements of every row before it writes.
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(SumRows a, bool wide) {
    const int64_t i = first_element();
    if (i >= a.n) return;
    const int count = elements_left(i, a.n);
    float sum[kVec], v[kVec];
    const auto add = [&](const float(&x)[kVec]) {
#pragma unroll
        for (int k = 0; k < kVec; ++k) sum[k] += x[k];
    };
    if (wide && count == kVec) {
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
        load_few(sum, a.x, a.dtype, i, count);
        for (int64_t row = 1; row < a.rows; ++row) {
            load_few(v, a.x, a.dtype, row * a.stride + i, count);
            add(v);
        }
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] *= a.scale;
    store_some(a.out, a.out_dtype, i, count, wide, sum);
}

// A thread makes the kVec normals from element first_element() of the tensor (not of this range), so that every cut of
// it shares the work of Philox's groups of four.
__global__ void __launch_bounds__(kThreads) random_normal_kernel(RandomNormal a, int64_t group, bool wide) {
    group += (int64_t(blockIdx.x) * kThreads + threadIdx.x) * (kVec / 4);
    const int64_t i = 4 * group - a.first;  // below 0 where the range begins inside a group
    if (i >= a.n) return;
    float z[kVec];
#pragma unroll
    for (int k = 0; k < kVec; k += 4) philox_normal4(a.seed, uint64_t(group + k / 4), a.stream, z + k);
#pragma unroll
    for (int k = 0; k < kVec; ++k) z[k] = fmaf(a.std, z[k], a.mean);
    if (wide && i >= 0 && i + kVec <= a.n) {
        store_any(a.x, a.dtype, i, z);
        if (a.x32 != nullptr) store_any(a.x32, DType::f32, i, z);
        return;
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
        if (i + k < 0 || i + k >= a.n) continue;
        store_one(a.x, a.dtype, i + k, z[k]);
        if (a.x32 != nullptr) a.x32[i + k] = z[k];
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

void random_normal_cuda(const RandomNormal& a, CudaStream stream) {
    if (a.n == 0) return;
    const int64_t first_group = a.first / 4, skipped = a.first % 4;
    const bool wide = skipped == 0 && aligned_to(16, a.x, a.x32);
    launch(kernel<random_normal_kernel>, flat(a.n + skipped, stream), a, first_group, wide);
}

}  // namespace rz
