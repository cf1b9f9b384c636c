#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/checks.h"
#include "kernels/philox.h"

#define RZ_SIMD_FILE "kernels/elementwise.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

constexpr int64_t kChunk = 4096;  // elements converted to fp32 at a time: 27 combinations of types from 3 loops

inline int64_t chunk_size(int64_t n, int64_t begin) { return n - begin < kChunk ? n - begin : kChunk; }

inline void load_chunk(float* out, DType t, const void* x, int64_t begin, int64_t count) {
    with_dtype(t, [&]<class T>() {
        const T* p = static_cast<const T*>(x) + begin;
        for_vectors(count, [&](int64_t i, auto lanes) RZ_LAMBDA { store(out + i, load(p + i, lanes), lanes); });
    });
}

inline void store_chunk(void* out, DType t, int64_t begin, int64_t count, const float* x) {
    with_dtype(t, [&]<class T>() {
        T* p = static_cast<T*>(out) + begin;
        for_vectors(count, [&](int64_t i, auto lanes) RZ_LAMBDA { store(p + i, load(x + i, lanes), lanes); });
    });
}

void cast(const Cast& a) {
#pragma omp parallel for schedule(static) if (a.n >= 2 * kSerialBelow)
    for (int64_t begin = 0; begin < a.n; begin += kChunk) {
        float x[kChunk];
        const int64_t count = chunk_size(a.n, begin);
        load_chunk(x, a.dtype, a.x, begin, count);
        store_chunk(a.out, a.out_dtype, begin, count, x);
    }
}

// The ring's addition is bound by memory: where all types are the same, each value passes through registers once.
inline bool one_type(const ReduceAdd& a) { return a.out_dtype == a.a_dtype && a.a_dtype == a.b_dtype; }

inline void add_chunk(const ReduceAdd& a, int64_t begin, int64_t count) {
    with_dtype(a.a_dtype, [&]<class T>() {
        const T* x = static_cast<const T*>(a.a) + begin;
        const T* y = static_cast<const T*>(a.b) + begin;
        T* out = static_cast<T*>(a.out) + begin;
        for_vectors(count, [&](int64_t i, auto lanes) RZ_LAMBDA {
            store(out + i, (load(x + i, lanes) + load(y + i, lanes)) * a.scale, lanes);
        });
    });
}

void reduce_add(const ReduceAdd& a) {
    const bool fused = one_type(a);
#pragma omp parallel for schedule(static) if (a.n >= 2 * kSerialBelow)
    for (int64_t begin = 0; begin < a.n; begin += kChunk) {
        float x[kChunk], y[kChunk];
        const int64_t count = chunk_size(a.n, begin);
        if (fused) {
            add_chunk(a, begin, count);
            continue;
        }
        load_chunk(x, a.a_dtype, a.a, begin, count);
        load_chunk(y, a.b_dtype, a.b, begin, count);
        for (int64_t i = 0; i < count; ++i) x[i] = (x[i] + y[i]) * a.scale;
        store_chunk(a.out, a.out_dtype, begin, count, x);
    }
}

inline void sum_rows_chunk(const SumRows& a, int64_t begin, int64_t count) {
    with_dtype(a.dtype, [&]<class T>() {
        const T* x = static_cast<const T*>(a.x) + begin;
        T* out = static_cast<T*>(a.out) + begin;
        for_vectors(count, [&](int64_t i, auto lanes) RZ_LAMBDA {
            Vec sum = load(x + i, lanes);
            for (int64_t row = 1; row < a.rows; ++row) sum += load(x + row * a.stride + i, lanes);
            store(out + i, sum * a.scale, lanes);
        });
    });
}

void sum_rows(const SumRows& a) {
    const bool fused = a.out_dtype == a.dtype;
#pragma omp parallel for schedule(static) if (a.n * a.rows >= 2 * kSerialBelow)
    for (int64_t begin = 0; begin < a.n; begin += kChunk) {
        float sum[kChunk], y[kChunk];
        const int64_t count = chunk_size(a.n, begin);
        if (fused) {
            sum_rows_chunk(a, begin, count);
            continue;
        }
        load_chunk(sum, a.dtype, a.x, begin, count);
        for (int64_t row = 1; row < a.rows; ++row) {
            load_chunk(y, a.dtype, a.x, row * a.stride + begin, count);
            for (int64_t i = 0; i < count; ++i) sum[i] += y[i];
        }
        for (int64_t i = 0; i < count; ++i) sum[i] *= a.scale;
        store_chunk(a.out, a.out_dtype, begin, count, sum);
    }
}

void ema(const Ema& a) {
#pragma omp parallel for schedule(static) if (a.n >= 2 * kSerialBelow)
    for (int64_t begin = 0; begin < a.n; begin += kChunk) {
        const int64_t end = begin + chunk_size(a.n, begin);
        for (int64_t i = begin; i < end; ++i)
            a.average[i] = __builtin_fmaf(a.weight, a.x[i] - a.average[i], a.average[i]);
    }
}

void random_normal(const RandomNormal& a) {
    const int64_t first_group = a.first / 4, groups = (a.first + a.n + 3) / 4 - first_group;
    constexpr int64_t kGroups = kChunk / 4;
#pragma omp parallel for schedule(static) if (a.n >= kSerialBelow)
    for (int64_t g = 0; g < groups; g += kGroups) {
        float z[kChunk];
        const int64_t count = groups - g < kGroups ? groups - g : kGroups;
        for (int64_t i = 0; i < count; ++i) philox_normal4(a.seed, uint64_t(first_group + g + i), a.stream, z + 4 * i);
        for (int64_t i = 0; i < 4 * count; ++i) z[i] = fmaf(a.std, z[i], a.mean);
        // z[0] is element 4 * (first_group + g) of the tensor, which may lie before this range's first.
        int64_t begin = 4 * (first_group + g) - a.first, from = 0, end = begin + 4 * count;
        if (begin < 0) from = -begin, begin = 0;
        if (end > a.n) end = a.n;
        store_chunk(a.x, a.dtype, begin, end - begin, z + from);
        if (a.x32) store_chunk(a.x32, DType::f32, begin, end - begin, z + from);
    }
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void cast_cpu(const Cast& a) { RZ_SIMD_CALL(cast, a); }
void reduce_add_cpu(const ReduceAdd& a) { RZ_SIMD_CALL(reduce_add, a); }
void sum_rows_cpu(const SumRows& a) { RZ_SIMD_CALL(sum_rows, a); }
void ema_cpu(const Ema& a) {
    if (std::isfinite(*a.grad_scale)) RZ_SIMD_CALL(ema, a);
}
void random_normal_cpu(const RandomNormal& a) { RZ_SIMD_CALL(random_normal, a); }

void cast(Stream& stream, const Cast& a) {
    check_size("cast", "n", a.n, 0);
    if (a.n == 0) return;
    check_pointers("cast", {{"out", a.out, size_of(a.out_dtype)}, {"x", a.x, size_of(a.dtype)}});
    require(a.out != a.x || size_of(a.out_dtype) == size_of(a.dtype),
            "cast: %s to %s in place; the sizes differ, so give it another buffer", name_of(a.dtype),
            name_of(a.out_dtype));
    stream.run(a, cast_cpu, RZ_CUDA_OP(cast_cuda));
}

void reduce_add(Stream& stream, const ReduceAdd& a) {
    check_size("reduce_add", "n", a.n, 0);
    if (a.n == 0) return;
    check_pointers(
        "reduce_add",
        {{"out", a.out, size_of(a.out_dtype)}, {"a", a.a, size_of(a.a_dtype)}, {"b", a.b, size_of(a.b_dtype)}});
    require((a.out != a.a || a.out_dtype == a.a_dtype) && (a.out != a.b || a.out_dtype == a.b_dtype),
            "reduce_add: out is one of the inputs but has another type; give it another buffer");
    stream.run(a, reduce_add_cpu, RZ_CUDA_OP(reduce_add_cuda));
}

void sum_rows(Stream& stream, const SumRows& a) {
    check_sizes("sum_rows", {{"n", a.n, 0}, {"rows", a.rows, 1}});
    require(a.rows == 1 || a.stride >= a.n, "sum_rows: rows of %ld elements are only %ld apart; they must not overlap",
            a.n, a.stride);
    if (a.n == 0) return;
    check_pointers("sum_rows", {{"out", a.out, size_of(a.out_dtype)}, {"x", a.x, size_of(a.dtype)}});
    stream.run(a, sum_rows_cpu, RZ_CUDA_OP(sum_rows_cuda));
}

void ema(Stream& stream, const Ema& a) {
    check_size("ema", "n", a.n, 0);
    require(a.weight > 0 && a.weight <= 1, "ema: weight is %g; it must be in (0, 1]", double(a.weight));
    if (a.n == 0) return;
    check_pointers("ema", {{"average", a.average}, {"x", a.x}, {"grad_scale", a.grad_scale}});
    stream.run(a, ema_cpu, RZ_CUDA_OP(ema_cuda));
}

void random_normal(Stream& stream, const RandomNormal& a) {
    check_sizes("random_normal", {{"n", a.n, 0}, {"first", a.first, 0}});
    require(std::isfinite(a.mean) && std::isfinite(a.std), "random_normal: mean %g and std %g must be finite",
            double(a.mean), double(a.std));
    if (a.n == 0) return;
    check_pointer("random_normal", "x", a.x, size_of(a.dtype));
    stream.run(a, random_normal_cpu, RZ_CUDA_OP(random_normal_cuda));
}

}  // namespace rz
#endif
