#include "kernels/statistics.h"

#include "kernels/checks.h"

#define RZ_SIMD_FILE "kernels/statistics.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

template <class T>
void segment_squares_t(const SegmentSquares& a) {
    const T *x = static_cast<const T*>(a.x), *minus = static_cast<const T*>(a.minus);
#pragma omp parallel for schedule(dynamic) if (a.n >= kSerialBelow)
    for (int64_t s = 0; s < a.segments; ++s) {
        const int64_t from = a.bounds[s] - a.first, to = a.bounds[s + 1] - a.first;
        const int64_t begin = from < 0 ? 0 : from, end = to < a.n ? to : a.n;
        double sum = 0;
        if (minus) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = begin; i < end; ++i) {
                const double d = double(float(x[i])) - double(float(minus[i]));
                sum += d * d;
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = begin; i < end; ++i) sum += double(float(x[i])) * double(float(x[i]));
        }
        a.sums[s] += sum;
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
    check_sizes(op, {{"segments", a.segments, 0}, {"n", a.n, 0}});
    if (a.segments == 0 || a.n == 0) return;
    check_pointers(op, {{"sums", a.sums, 8}, {"x", a.x, size_of(a.dtype)}});
    if (a.minus) check_pointer(op, "minus", a.minus, size_of(a.dtype));
    check_pointer(op, "bounds", a.bounds, 8);
    stream.run(a, segment_squares_cpu, RZ_CUDA_OP(segment_squares_cuda));
}

void block_statistics(Stream& stream, const BlockStatistics& a) {
    const char* op = "block_statistics";
    check_sizes(op, {{"rows", a.rows, 0}, {"count", a.count, 0}});
    require(a.sharpness > 0, "%s: sharpness is %g; it must be positive", op, double(a.sharpness));
    check_pointers(op, {{"squares", a.squares, 8}, {"largest", a.largest}});
    if (a.rows > 0) check_pointer(op, "rstd", a.rstd, 4);
    if (a.count > 0) check_pointer(op, "lse", a.lse, 4);
    stream.run(a, block_statistics_cpu, RZ_CUDA_OP(block_statistics_cuda));
}

}  // namespace rz
#endif
