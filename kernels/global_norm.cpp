#include "kernels/global_norm.h"

#include <cmath>
#include <limits>

#include "kernels/checks.h"

#define RZ_SIMD_FILE "kernels/global_norm.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

template <class T>
void sum_squares_t(const SumSquares& a) {
    const int64_t blocks = ceil_div(a.at + a.n, a.block);
    const T* x = static_cast<const T*>(a.x);
#pragma omp parallel for schedule(static) if (a.n >= kSerialBelow)
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = b == 0 ? 0 : b * a.block - a.at, last = (b + 1) * a.block - a.at;
        const int64_t end = last < a.n ? last : a.n;
        double sum = 0;  // a square of two fp32 values is exact in double, and can't overflow
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; ++i) sum += double(float(x[i])) * double(float(x[i]));
        a.partial[b] = sum;
    }
}

void sum_squares(const SumSquares& a) {
    with_dtype(a.dtype, [&]<class T>() { sum_squares_t<T>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void sum_squares_cpu(const SumSquares& a) { RZ_SIMD_CALL(sum_squares, a); }

void clip_scale_cpu(const ClipScale& a) {
    double sum = 0;
    for (int64_t i = 0; i < a.count; ++i) sum += a.partial[a.order ? a.order[i] : i];
    const float average = a.unscale ? a.average * *a.unscale : a.average;
    const double norm = std::sqrt(sum) * double(average);
    *a.norm = float(norm);
    if (!std::isfinite(*a.norm))
        *a.scale = std::numeric_limits<float>::quiet_NaN();
    else if (a.max_norm > 0)
        *a.scale = float(double(average) * std::fmin(1.0, double(a.max_norm) / (norm + 1e-6)));
    else
        *a.scale = average;
}

void sum_squares(Stream& stream, const SumSquares& a) {
    const char* op = "sum_squares";
    check_size(op, "n", a.n, 0);
    require(a.block > 0 && a.block % 256 == 0, "%s: block is %ld; it must be a positive multiple of 256", op, a.block);
    require(a.at >= 0 && a.at < a.block && a.at * size_of(a.dtype) % 16 == 0,
            "%s: x at %ld of a block of %ld; it must be in it, and at a multiple of 16 bytes", op, a.at, a.block);
    if (a.n == 0) return;
    check_pointers(op, {{"partial", a.partial}, {"x", a.x, 16}});
    stream.run(a, sum_squares_cpu, RZ_CUDA_OP(sum_squares_cuda));
}

void clip_scale(Stream& stream, const ClipScale& a) {
    const char* op = "clip_scale";
    check_size(op, "count", a.count, 0);
    check_pointers(op, {{"norm", a.norm}, {"scale", a.scale}});
    if (a.count > 0) check_pointer(op, "partial", a.partial, 8);
    stream.run(a, clip_scale_cpu, RZ_CUDA_OP(clip_scale_cuda));
}

}  // namespace rz
#endif
