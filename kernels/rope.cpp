#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/checks.h"
#include "kernels/magnitude.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/rope.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

template <class T>
void rope_t(const Rope& a) {
    const int64_t half = a.D / 2;
    const float direction = a.inverse ? -1.0f : 1.0f;
#pragma omp parallel for schedule(static) if (a.N * a.heads * a.D >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        const int64_t position = a.positions ? a.positions[n] : a.first_position + n % a.T;
        const float* cosine = a.cos_table + position * half;
        const float* sine = a.sin_table + position * half;
        for (int64_t h = 0; h < a.heads; ++h) {
            T* lower = static_cast<T*>(a.x) + n * a.row_stride + h * a.D;
            T* upper = lower + half;
            for_vectors(half, [&](int64_t j, auto lanes) RZ_LAMBDA {
                const Vec x = load(lower + j, lanes), y = load(upper + j, lanes);
                const Vec c = load(cosine + j, lanes), s = load(sine + j, lanes) * direction;
                store(lower + j, x * c - y * s, lanes);
                store(upper + j, y * c + x * s, lanes);
            });
        }
    }
}

void rope(const Rope& a) {
    with_dtype(a.dtype, [&]<class T>() { rope_t<T>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void rope_cpu(const Rope& a) {
    RZ_SIMD_CALL(rope, a);
    if (a.amax) join_magnitudes(a.amax, a.dtype, a.x, a.N, a.row_stride, a.row_stride);
}

void rope(Stream& stream, const Rope& a) {
    const char* op = "rope";
    check_sizes(op, {{"N", a.N, 0}, {"T", a.T, 1}, {"heads", a.heads, 0}, {"first_position", a.first_position, 0}});
    require(a.D > 0 && a.D % 2 == 0, "%s: D is %ld; elements are rotated in pairs, so it must be even and positive", op,
            a.D);
    require(a.row_stride >= checked_mul(a.heads, a.D, "rope: heads x D"),
            "%s: row_stride %ld is less than heads x D = %ld x %ld", op, a.row_stride, a.heads, a.D);
    require(!a.amax || a.row_stride % a.D == 0, "%s: with amax, row_stride %ld must be a multiple of D = %ld", op,
            a.row_stride, a.D);
    if (a.N == 0 || a.heads == 0) return;
    check_pointers(op, {{"x", a.x, 16}, {"cos_table", a.cos_table}, {"sin_table", a.sin_table}});
    if (a.positions) check_pointer(op, "positions", a.positions, 4);
    stream.run(a, rope_cpu, RZ_CUDA_OP(rope_cuda));
}

// Llama 3.1: wavelengths shorter than original / high_freq_factor stay, those longer than original / low_freq_factor
// are stretched by `factor`, those between are blended.
static double scaled_frequency(double f, const RopeScaling& s) {
    const double original = double(s.original_max_position);
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / s.high_freq_factor) return f;
    if (wavelength > original / s.low_freq_factor) return f / s.factor;
    const double share = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1 - share) * f / s.factor + share * f;
}

// The share of frequency i that is interpolated: 0 for those that turn more than beta_fast times within the original
// length, 1 for those that turn less than beta_slow times, a ramp between.
static double yarn_ramp(int64_t i, int64_t D, double theta, const RopeScaling& s) {
    const auto dimension = [&](double rotations) {
        return double(D) * std::log(double(s.original_max_position) / (rotations * 2 * std::numbers::pi)) /
               (2 * std::log(theta));
    };
    double low = dimension(s.beta_fast), high = dimension(s.beta_slow);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, double(D - 1));
    if (low == high) high += 0.001;
    return std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
}

double rope_attention_factor(const RopeScaling& s) {
    if (s.kind != RopeKind::yarn) return 1;
    if (s.attention_factor > 0) return s.attention_factor;
    const auto scale = [&](double m) { return s.factor <= 1 ? 1.0 : 0.1 * m * std::log(s.factor) + 1; };
    return s.mscale != 0 && s.mscale_all_dim != 0 ? scale(s.mscale) / scale(s.mscale_all_dim) : scale(1);
}

std::vector<double> rope_inverse_frequencies(int64_t D, double theta, const RopeScaling& scaling, int64_t positions) {
    require(D > 0 && D % 2 == 0, "rope: head dimension %ld; it must be even and positive", D);
    require(std::isfinite(theta) && theta > 0, "rope: theta is %g; it must be positive (LLaMA uses 10000 or 500000)",
            theta);
    require(scaling.factor > 0, "rope scaling: factor is %g; it must be positive (1 means none)", scaling.factor);
    if (scaling.factor != 1 && scaling.kind == RopeKind::llama3) {
        require(
            scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor,
            "rope scaling: low_freq_factor %g and high_freq_factor %g; it must be 0 < low < high (Llama 3.1: 1 and 4)",
            scaling.low_freq_factor, scaling.high_freq_factor);
        require(scaling.original_max_position > 0, "rope scaling: original_max_position is %ld; it must be positive",
                scaling.original_max_position);
    }
    if (scaling.kind == RopeKind::dynamic && scaling.factor != 1 && positions > scaling.original_max_position) {
        const double times = double(positions) / double(scaling.original_max_position);
        theta *= std::pow(scaling.factor * times - (scaling.factor - 1), double(D) / double(D - 2));
    }
    std::vector<double> frequencies(size_t(D / 2));
    for (int64_t i = 0; i < D / 2; ++i) {
        const double f = std::pow(theta, -2.0 * double(i) / double(D));
        const double share = scaling.kind == RopeKind::yarn ? yarn_ramp(i, D, theta, scaling) : 1;
        frequencies[size_t(i)] = scaling.factor == 1                 ? f
                                 : scaling.kind == RopeKind::llama3  ? scaled_frequency(f, scaling)
                                 : scaling.kind == RopeKind::dynamic ? f
                                                                     : share * f / scaling.factor + (1 - share) * f;
    }
    return frequencies;
}

void rope_tables(float* cos_table, float* sin_table, int64_t positions, int64_t D, double theta,
                 const RopeScaling& scaling) {
    check_size("rope_tables", "positions", positions, 0);
    const std::vector<double> frequencies = rope_inverse_frequencies(D, theta, scaling, positions);
    const double scale = rope_attention_factor(scaling);
    const int64_t half = D / 2;
#pragma omp parallel for schedule(static) if (positions * half >= kSerialBelow)
    for (int64_t p = 0; p < positions; ++p)
        for (int64_t j = 0; j < half; ++j) {
            const double angle = double(p) * frequencies[size_t(j)];
            cos_table[p * half + j] = float(scale * std::cos(angle));
            sin_table[p * half + j] = float(scale * std::sin(angle));
        }
}

}  // namespace rz
#endif
