#include "kernels/statistics.h"

#include "kernels/checks.h"

#define RZ_SIMD_FILE "kernels/statistics.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

typedef float VecHalved __attribute__((vector_size(RZ_SIMD_WIDTH / 2)));
typedef double VecDouble __attribute__((vector_size(RZ_SIMD_WIDTH)));

// Four sums: the next vector's does not wait for the last one's.
struct Squares {
    VecDouble sums[4] = {};

    template <class T, class Lanes>
    RZ_INLINE void add(int at, const T* x, const T* minus, Lanes lanes) {
        const Vec a = load(x, lanes), b = minus ? load(minus, lanes) : Vec{};
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const VecDouble d = wide(a, half) - wide(b, half);
            sums[at + half] += d * d;
        }
    }
    static RZ_INLINE VecDouble wide(Vec x, int half) {
        VecHalved part;
        __builtin_memcpy(&part, reinterpret_cast<const char*>(&x) + half * int(sizeof part), sizeof part);
        return __builtin_convertvector(part, VecDouble);
    }
    RZ_INLINE double total() const {
        const VecDouble all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        double sum = 0;
        for (int64_t i = 0; i < kLanes / 2; ++i) sum += all[i];
        return sum;
    }
};

template <class T>
RZ_INLINE double squares_of(const T* x, const T* minus, int64_t n) {
    Squares s;
    int64_t i = 0;
    const auto rest = [&](int64_t at) RZ_LAMBDA { return minus ? minus + at : nullptr; };
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        s.add(0, x + i, rest(i), AllLanes{});
        s.add(2, x + i + kLanes, rest(i + kLanes), AllLanes{});
    }
    for (; i < n; i += kLanes) s.add(0, x + i, rest(i), SomeLanes{n - i < kLanes ? n - i : kLanes});
    return s.total();
}

template <class T>
void segment_squares_t(const SegmentSquares& a) {
    const T *x = static_cast<const T*>(a.x), *minus = static_cast<const T*>(a.minus);
#pragma omp parallel for schedule(static) if (a.n >= kSerialBelow)
    for (int64_t s = 0; s < a.segments; ++s) {
        const int64_t from = a.bounds[s] - a.first, to = a.bounds[s + 1] - a.first;
        const int64_t begin = from < 0 ? 0 : from, end = to < a.n ? to : a.n;
        // Two loops: whether there is a second operand is not asked at each element.
        a.sums[s] += minus ? squares_of<T>(x + begin, minus + begin, end - begin)
                           : squares_of<T>(x + begin, nullptr, end - begin);
    }
}

void segment_squares(const SegmentSquares& a) {
    with_dtype(a.dtype, [&]<class T>() { segment_squares_t<T>(a); });
}

void block_statistics(const BlockStatistics& a) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t r = 0; r < a.rows; ++r) sum += 1 / (double(a.rstd[r]) * double(a.rstd[r])) - double(a.eps);
    *a.squares += sum;
    float largest = -__builtin_inff();
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < a.count; ++i) largest = a.lse[i] > largest ? a.lse[i] : largest;
    const float logit = largest / a.sharpness;
    *a.largest = logit > *a.largest ? logit : *a.largest;
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void segment_squares_cpu(const SegmentSquares& a) { RZ_SIMD_CALL(segment_squares, a); }
void block_statistics_cpu(const BlockStatistics& a) { RZ_SIMD_CALL(block_statistics, a); }

void segment_squares(Stream& stream, const SegmentSquares& a) {
    const char* op = "segment_squares";
    check_size(op, "segments", a.segments, 0);
    check_size(op, "n", a.n, 0);
    if (a.segments == 0 || a.n == 0) return;
    check_pointer(op, "sums", a.sums, 8);
    check_pointer(op, "x", a.x, size_of(a.dtype));
    if (a.minus) check_pointer(op, "minus", a.minus, size_of(a.dtype));
    check_pointer(op, "bounds", a.bounds, 8);
    stream.run(a, segment_squares_cpu, RZ_CUDA_OP(segment_squares_cuda));
}

void block_statistics(Stream& stream, const BlockStatistics& a) {
    const char* op = "block_statistics";
    check_size(op, "rows", a.rows, 0);
    check_size(op, "count", a.count, 0);
    require(a.sharpness > 0, "%s: sharpness is %g; it must be positive", op, double(a.sharpness));
    check_pointer(op, "squares", a.squares, 8);
    check_pointer(op, "largest", a.largest, 4);
    if (a.rows > 0) check_pointer(op, "rstd", a.rstd, 4);
    if (a.count > 0) check_pointer(op, "lse", a.lse, 4);
    stream.run(a, block_statistics_cpu, RZ_CUDA_OP(block_statistics_cuda));
}

}  // namespace rz
#endif
