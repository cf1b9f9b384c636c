#include "kernels/qk_norm.h"

#include <cstring>

#include "kernels/checks.h"
#include "kernels/magnitude.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/qk_norm.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

// The angles of a row, or nullptr.
struct Angles {
    const float *cosine, *sine;
};
inline Angles angles_of(const QkNorm& a, int64_t n) {
    if (!a.cos_table) return {nullptr, nullptr};
    const int64_t position = a.positions ? a.positions[n] : a.first_position + n % a.T;
    return {a.cos_table + position * (a.D / 2), a.sin_table + position * (a.D / 2)};
}

// Mean over all heads that head h is normalised with: what the ranks have summed, over how many elements that is.
inline float sum_of_ranks(const QkNorm& a, const float* sums, int64_t n, int64_t h) {
    float sum = 0;
    for (int64_t r = 0; r < a.ranks; ++r) sum += sums[(r * a.N + n) * 2 + (h < a.heads ? 0 : 1)];
    return sum;
}
inline float elements_of(const QkNorm& a, int64_t h) {
    return float(h < a.heads ? a.heads * a.ranks * a.D : a.kv_heads * a.ranks / a.sharers * a.D);
}

template <class T>
inline const T* gain_of(const QkNorm& a, int64_t h) {
    const int64_t own = h < a.heads ? h : h - a.heads;
    return static_cast<const T*>(h < a.heads ? a.wq : a.wk) + (a.squares ? own * a.D : 0);
}

template <class T>
inline float rstd_of(const QkNorm& a, int64_t n, int64_t h, const T* x) {
    if (a.squares) return 1.0f / __builtin_sqrtf(sum_of_ranks(a, a.squares, n, h) / elements_of(a, h) + a.eps);
    Vec squares{};
    for_vectors(a.D, [&](int64_t j, auto lanes) RZ_LAMBDA {
        const Vec v = load(x + j, lanes);
        squares += v * v;
    });
    return 1.0f / __builtin_sqrtf(sum_of(squares) / float(a.D) + a.eps);
}

template <class T>
void qk_norm_forward_t(const QkNormForward& f) {
    const QkNorm& a = f.norm;
    const int64_t half = a.D / 2, all = (a.heads + a.kv_heads) * a.D;
#pragma omp parallel for schedule(static) if (a.N * all >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        const Angles angle = angles_of(a, n);
        T* row = static_cast<T*>(f.x) + n * a.row_stride;
        if (f.kept) std::memcpy(static_cast<T*>(f.kept) + n * all, row, size_t(all) * sizeof(T));
        for (int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
            const T* w = gain_of<T>(a, h);
            T *lower = row + h * a.D, *upper = lower + half;
            const float rstd = rstd_of(a, n, h, lower);
            for_vectors(half, [&](int64_t j, auto lanes) RZ_LAMBDA {
                const Vec x = load(lower + j, lanes) * rstd * load(w + j, lanes),
                          y = load(upper + j, lanes) * rstd * load(w + half + j, lanes);
                const Vec c = angle.cosine ? load(angle.cosine + j, lanes) : Vec{} + 1.0f,
                          s = angle.sine ? load(angle.sine + j, lanes) : Vec{};
                store(lower + j, x * c - y * s, lanes);
                store(upper + j, y * c + x * s, lanes);
            });
        }
    }
}

// dy = a head's gradient, rotated back
template <class T>
inline void rotate_back(float* dy, const T* dx, const Angles& angle, int64_t half) {
    for_vectors(half, [&](int64_t j, auto lanes) RZ_LAMBDA {
        const Vec u = load(dx + j, lanes), v = load(dx + half + j, lanes);
        const Vec c = angle.cosine ? load(angle.cosine + j, lanes) : Vec{} + 1.0f,
                  s = angle.sine ? load(angle.sine + j, lanes) : Vec{};
        store(dy + j, u * c + v * s, lanes);
        store(dy + half + j, v * c - u * s, lanes);
    });
}

template <class T>
void qk_sums_t(const QkSums& f) {
    const QkNorm& a = f.norm;
    const int64_t all = a.heads + a.kv_heads;
#pragma omp parallel for schedule(static) if (a.N * all * a.D >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        const Angles angle = angles_of(a, n);
        alignas(64) float dy[kMaxQkNormDim];
        for (int kind = 0; kind < 2; ++kind) {
            Vec sum{};
            for (int64_t h = kind ? a.heads : 0; h < (kind ? all : a.heads); ++h) {
                const T* x = static_cast<const T*>(f.x) + n * (f.dy ? all * a.D : a.row_stride) + h * a.D;
                if (f.dy) rotate_back(dy, static_cast<const T*>(f.dy) + n * a.row_stride + h * a.D, angle, a.D / 2);
                for_vectors(a.D, [&](int64_t j, auto lanes) RZ_LAMBDA {
                    const Vec v = load(x + j, lanes);
                    sum += f.dy ? load(dy + j, lanes) * load(gain_of<T>(a, h) + j, lanes) * v : v * v;
                });
            }
            const int64_t first = kind ? a.heads : 0;
            f.sums[2 * n + kind] = f.dy   ? sum_of(sum) * rstd_of<T>(a, n, first, nullptr)
                                   : kind ? sum_of(sum) / float(a.sharers)
                                          : sum_of(sum);
        }
    }
}

// One row: dx, and its share of dw added to dw_part (gains, D).
template <class T>
inline void qk_norm_backward_row(const QkNormBackward& b, int64_t n, float* dw_part) {
    const QkNorm& a = b.norm;
    const int64_t half = a.D / 2, all = (a.heads + a.kv_heads) * a.D;
    const Angles angle = angles_of(a, n);
    alignas(64) float dy[kMaxQkNormDim];
    for (int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
        const T* w = gain_of<T>(a, h);
        float* dw = dw_part + (a.squares ? h : h < a.heads ? 0 : 1) * a.D;
        const T* x = static_cast<const T*>(b.kept) + n * all + h * a.D;
        T* dx = static_cast<T*>(b.dx) + n * a.row_stride + h * a.D;
        const float rstd = rstd_of(a, n, h, x);
        rotate_back(dy, dx, angle, half);
        Vec dots{};
        for_vectors(a.D, [&](int64_t j, auto lanes) RZ_LAMBDA {
            const Vec g = load(dy + j, lanes) * load(x + j, lanes);
            dots += g * load(w + j, lanes);
            store(dw + j, load(dw + j, lanes) + g * rstd, lanes);
        });
        // of dy*w*xhat, times rstd: dx uses x, not xhat
        const float mean =
            !a.squares ? sum_of(dots) / float(a.D) * rstd * rstd
                       : sum_of_ranks(a, b.dots, n, h) / elements_of(a, h) * rstd / float(h < a.heads ? 1 : a.sharers);
        for_vectors(a.D, [&](int64_t j, auto lanes) RZ_LAMBDA {
            store(dx + j, rstd * (load(dy + j, lanes) * load(w + j, lanes) - load(x + j, lanes) * mean), lanes);
        });
    }
}

template <class T, class G>
void qk_norm_backward_t(const QkNormBackward& b) {
    const QkNorm& a = b.norm;
    constexpr int64_t kParts = 256;  // fewer than a device's: nothing here runs beside so many others
    const int64_t most = qk_norm_backward_parts(a.gains()), some = most < kParts ? most : kParts;
    const int64_t parts = a.N < some ? a.N : some, columns = a.gains() * a.D;
#pragma omp parallel for schedule(static) if (a.N * (a.heads + a.kv_heads) * a.D >= kSerialBelow)
    for (int64_t p = 0; p < parts; ++p) {
        float* part = b.scratch + p * columns;
        for (int64_t c = 0; c < columns; ++c) part[c] = 0;
        for (int64_t n = p * a.N / parts; n < (p + 1) * a.N / parts; ++n) qk_norm_backward_row<T>(b, n, part);
    }
    G* dw = static_cast<G*>(b.dw);
    for_vectors(columns, [&](int64_t c, auto lanes) RZ_LAMBDA {
        Vec sum{};
        for (int64_t p = 0; p < parts; ++p) sum += load(b.scratch + p * columns + c, lanes);
        if (dw)
            store(dw + c, load(dw + c, lanes) + sum, lanes);
        else
            store(b.dw_sum + c, sum, lanes);
    });
}

void qk_sums(const QkSums& a) {
    with_dtype(a.norm.dtype, [&]<class T>() { qk_sums_t<T>(a); });
}

void qk_norm_forward(const QkNormForward& a) {
    with_dtype(a.norm.dtype, [&]<class T>() { qk_norm_forward_t<T>(a); });
}

void qk_norm_backward(const QkNormBackward& a) {
    with_grad_dtype(a.norm.dtype, a.grad_dtype, [&]<class T, class G>() { qk_norm_backward_t<T, G>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

int64_t qk_norm_backward_parts(int64_t gains) {
    constexpr int64_t kVectors = 4096;  // of D, if there are no more gains
    return gains < kVectors ? kVectors / gains : 1;
}

int64_t qk_norm_backward_scratch(int64_t D, int64_t gains) {
    return checked_mul(qk_norm_backward_parts(gains) * gains, D, "qk_norm_backward: rows of scratch x D");
}

void qk_sums_cpu(const QkSums& a) { RZ_SIMD_CALL(qk_sums, a); }
void qk_norm_forward_cpu(const QkNormForward& a) { RZ_SIMD_CALL(qk_norm_forward, a); }
void qk_norm_backward_cpu(const QkNormBackward& a) {
    RZ_SIMD_CALL(qk_norm_backward, a);
    if (a.amax) join_magnitudes(a.amax, a.norm.dtype, a.dx, a.norm.N, a.norm.row_stride, a.norm.row_stride);
}

static void check_norm(const char* op, const QkNorm& a) {
    check_sizes(op, {{"N", a.N, 0},
                     {"T", a.T, 1},
                     {"heads", a.heads, 1},
                     {"kv_heads", a.kv_heads, 1},
                     {"first_position", a.first_position, 0}});
    require(a.D > 0 && a.D % 2 == 0 && a.D <= kMaxQkNormDim, "%s: D is %ld; it must be even and at most %ld", op, a.D,
            kMaxQkNormDim);
    require(a.row_stride >= checked_mul(a.heads + a.kv_heads, a.D, "qk_norm: heads x D"),
            "%s: row_stride %ld is less than the heads x D = %ld x %ld", op, a.row_stride, a.heads + a.kv_heads, a.D);
    require(a.eps > 0, "%s: eps is %g; it must be positive, or a head of zeros divides by zero", op, double(a.eps));
    check_pointers(op, {{"wq", a.wq, size_of(a.dtype)}, {"wk", a.wk, size_of(a.dtype)}});
    require(!a.cos_table == !a.sin_table, "%s: cos_table and sin_table are needed, or neither", op);
    if (a.positions) check_pointer(op, "positions", a.positions, 4);
    if (a.squares) check_pointer(op, "squares", a.squares, 8);
    check_sizes(op, {{"ranks", a.ranks, 1}, {"sharers", a.sharers, 1}});
    require(checked_mul(a.kv_heads, a.ranks, "qk_norm: kv_heads x ranks") % a.sharers == 0,
            "%s: %ld ranks of %ld key heads, each with %ld sharers", op, a.ranks, a.kv_heads, a.sharers);
}

void qk_sums(Stream& stream, const QkSums& a) {
    const char* op = "qk_sums";
    check_norm(op, a.norm);
    if (a.norm.N == 0) return;
    check_pointers(op, {{"sums", a.sums, 8}, {"x", a.x, 16}});
    if (a.dy) check_pointer(op, "dy", a.dy, 16);
    require(!a.dy == !a.norm.squares, "%s: squares are needed with dy, and without are what is made", op);
    stream.run(a, qk_sums_cpu, RZ_CUDA_OP(qk_sums_cuda));
}

void qk_norm_forward(Stream& stream, const QkNormForward& a) {
    const char* op = "qk_norm_forward";
    check_norm(op, a.norm);
    if (a.norm.N == 0) return;
    check_pointer(op, "x", a.x, 16);
    if (a.kept) check_pointer(op, "kept", a.kept, 16);
    stream.run(a, qk_norm_forward_cpu, RZ_CUDA_OP(qk_norm_forward_cuda));
}

void qk_norm_backward(Stream& stream, const QkNormBackward& a) {
    const char* op = "qk_norm_backward";
    check_norm(op, a.norm);
    check_grad_dtype(op, a.grad_dtype, a.norm.dtype);
    if (a.norm.N == 0) return;
    check_pointers(op, {{"dx", a.dx, 16}, {"kept", a.kept, 16}});
    require(!a.dw != !a.dw_sum, "%s: dw or dw_sum is needed, and not both", op);
    if (a.dw) check_pointer(op, "dw", a.dw, size_of(a.grad_dtype));
    if (a.dw_sum) check_pointer(op, "dw_sum", a.dw_sum, 4);
    check_pointer(op, "scratch", a.scratch, 16);
    require(!a.dots == !a.norm.squares, "%s: squares and dots are needed, or neither", op);
    if (a.dots) check_pointer(op, "dots", a.dots, 8);
    require(!a.amax || a.norm.row_stride % a.norm.D == 0, "%s: with amax, row_stride %ld must be a multiple of D = %ld",
            op, a.norm.row_stride, a.norm.D);
    stream.run(a, qk_norm_backward_cpu, RZ_CUDA_OP(qk_norm_backward_cuda));
}

}  // namespace rz
#endif
