// The 8-bit floats against ml_dtypes (stored) and CUDA's own header (where it is), exhaustively; tensors with one scale
// against torchao (stored).

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "kernels/fp8/fp8.h"
#include "kernels/fp8/quantise.h"
#include "kernels/fp8/quantise_mx.h"

#if __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#define RZ_HAVE_CUDA_FP8
#endif

namespace rz {
namespace {

// ml_dtypes 0.6.0, by dev/golden/make_fp8_golden.py
constexpr uint64_t kE4m3Hash = 0xd126f2d8d2ed16d3u, kE4m3ValuesHash = 0xdad1d9c50f749ca5u;
constexpr uint64_t kE5m2Hash = 0x855d40493170ce93u, kE5m2ValuesHash = 0x6c1e56b6fb09c905u;
constexpr uint64_t kE8m0ValuesHash = 0x585811410ec7eae8u;  // without the NaN, code 255

// torchao 0.18.0, torch 2.15.0+cu132, by dev/golden/make_torchao_golden.py
constexpr uint64_t kTorchaoE4m3 = 0xd0256dedb6dd76cfu;
constexpr uint64_t kTorchaoE5m2 = 0x4dd2d7c6d108c79cu;

uint64_t fnv(const void* data, size_t bytes) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
    return h;
}

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// A tensor's codes, as they lie and transposed
struct Quantised {
    Fp8Scale scale = {};
    std::vector<uint8_t> y, y_t;

    template <class T>
    Quantised(const std::vector<T>& x, int64_t rows, int64_t columns, Fp8 type, DType dtype)
        : y(x.size()), y_t(x.size()) {
        abs_max_cpu({&scale, x.data(), int64_t(x.size()), dtype});
        quantise_cpu({y.data(), y_t.data(), &scale, x.data(), rows, columns, type, dtype});
    }
};

template <Fp8 kType>
uint64_t hash_of_all_bf16() {
    std::vector<uint8_t> codes;
    for (uint32_t i = 0; i < 65536; ++i)
        if (const float x = from_bits(i << 16); !std::isnan(x)) codes.push_back(to_fp8<kType>(x));
    return fnv(codes.data(), codes.size());
}

TEST(Fp8, CodesOfAllBf16NumbersAreMlDtypes) {
    EXPECT_EQ(hash_of_all_bf16<Fp8::e4m3>(), kE4m3Hash);
    EXPECT_EQ(hash_of_all_bf16<Fp8::e5m2>(), kE5m2Hash);
}

// Magnitude, scale, codes as they lie and transposed, and what a product is multiplied with. (torchao takes no
// magnitude below 1e-12.)
TEST(Fp8, TensorsAreQuantisedAsByTorchao) {
    constexpr int64_t kRows = 96, kColumns = 160, kSize = kRows * kColumns;
    for (const auto& [type, want] : {std::pair(Fp8::e4m3, kTorchaoE4m3), {Fp8::e5m2, kTorchaoE5m2}}) {
        std::vector<uint8_t> out;
        for (const uint32_t base : {100, 127, 180, 250}) {
            std::vector<uint16_t> x;
            for (uint32_t i = 0; i < kSize; ++i) {
                const uint32_t random = (i + base) * 1664525u + 1013904223u;
                x.push_back(uint16_t(random >> 31 << 15 | (base - (random >> 16 & 15)) << 7 | (random >> 8 & 127)));
            }
            const Quantised q(x, kRows, kColumns, type, DType::bf16);
            out.insert(out.end(), q.y.begin(), q.y.end());
            out.insert(out.end(), q.y_t.begin(), q.y_t.end());
            const auto* inverse = reinterpret_cast<const uint8_t*>(&q.scale.inverse);
            out.insert(out.end(), inverse, inverse + sizeof q.scale.inverse);
        }
        EXPECT_EQ(fnv(out.data(), out.size()), want);
    }
}

TEST(Fp8, ValuesOfAllCodesAreMlDtypes) {
    for (const auto& [values, want] : {std::pair(kE4m3Values, kE4m3ValuesHash), {kE5m2Values, kE5m2ValuesHash}}) {
        std::vector<uint32_t> bits;
        for (const float v : values) bits.push_back(std::isnan(v) ? 0x7fc00000u : std::bit_cast<uint32_t>(v));
        EXPECT_EQ(fnv(bits.data(), bits.size() * 4), want);
    }
    std::vector<uint32_t> bits;
    for (int code = 0; code < 255; ++code) bits.push_back(std::bit_cast<uint32_t>(from_e8m0(uint8_t(code))));
    EXPECT_EQ(fnv(bits.data(), bits.size() * 4), kE8m0ValuesHash);
    EXPECT_TRUE(std::isnan(from_e8m0(255)));
}

// Every number where rounding turns: between two neighbouring codes, one fp32 step below and above; and the limits.
std::vector<float> turning_points(Fp8 t) {
    std::vector<float> points;
    const auto around = [&](float x) {
        for (const float sign : {1.0f, -1.0f})
            for (const float y : {std::nextafter(x, 0.0f), x, std::nextafter(x, INFINITY)}) points.push_back(sign * y);
    };
    const auto& values = fp8_values(t);
    for (int code = 0; values[size_t(code)] < fp8_max(t); ++code) {
        around(values[size_t(code)]);
        around((values[size_t(code)] + values[size_t(code) + 1]) / 2);
    }
    for (const float x : {fp8_max(t), 464.0f, 480.0f, 61440.0f, 65536.0f, 3e38f, float(INFINITY)}) around(x);
    return points;
}

TEST(Fp8, TiesGoToEvenAndTheLargestSaturates) {
    EXPECT_EQ(from_fp8<Fp8::e4m3>(to_fp8<Fp8::e4m3>(464)), 448);
    EXPECT_EQ(from_fp8<Fp8::e4m3>(to_fp8<Fp8::e4m3>(INFINITY)), 448);
    EXPECT_EQ(from_fp8<Fp8::e4m3>(to_fp8<Fp8::e4m3>(0x1p-10f)), 0);
    EXPECT_EQ(from_fp8<Fp8::e4m3>(to_fp8<Fp8::e4m3>(0x1.8p-9f)), 0x1p-8f);
    EXPECT_EQ(from_fp8<Fp8::e5m2>(to_fp8<Fp8::e5m2>(61440)), 57344);
    EXPECT_EQ(from_fp8<Fp8::e5m2>(to_fp8<Fp8::e5m2>(-INFINITY)), -57344);
    EXPECT_EQ(from_fp8<Fp8::e5m2>(to_fp8<Fp8::e5m2>(0x1p-17f)), 0);
    EXPECT_EQ(to_fp8<Fp8::e4m3>(-0.0f), 0x80);
    EXPECT_EQ(to_fp8<Fp8::e5m2>(-1e-30f), 0x80);
    EXPECT_TRUE(std::isnan(from_fp8<Fp8::e4m3>(to_fp8<Fp8::e4m3>(NAN))));
    EXPECT_TRUE(std::isnan(from_fp8<Fp8::e5m2>(to_fp8<Fp8::e5m2>(-NAN))));
}

TEST(Fp8, WhatACodeStandsForHasThatCode) {
    for (int code = 0; code < 256; ++code) {
        const float a = kE4m3Values[size_t(code)], b = kE5m2Values[size_t(code)];
        EXPECT_TRUE(!std::isfinite(a) || to_fp8<Fp8::e4m3>(a) == code) << code;
        EXPECT_TRUE(!std::isfinite(b) || to_fp8<Fp8::e5m2>(b) == code) << code;
        EXPECT_TRUE(code == 255 || to_e8m0(from_e8m0(uint8_t(code))) == code) << code;
    }
}

#ifdef RZ_HAVE_CUDA_FP8

// The header also says what NaN becomes: a NaN, and no more is promised.
void expect_cudas_codes(float x) {
    if (std::isnan(x)) return;
    ASSERT_EQ(to_fp8<Fp8::e4m3>(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) << x;
    ASSERT_EQ(to_fp8<Fp8::e5m2>(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)) << x;
}

// All 65536 upper halves of an fp32, with the lower halves that change a rounding: 400 thousand numbers.
TEST(Fp8, CodesAreThoseOfCudasHeader) {
    for (uint32_t upper = 0; upper < 65536; ++upper)
        for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            expect_cudas_codes(from_bits(upper << 16 | lower));
    for (const Fp8 t : {Fp8::e4m3, Fp8::e5m2})
        for (const float x : turning_points(t)) expect_cudas_codes(x);
}

// Every exponent, with the fractions where rounding up turns.
TEST(Fp8, ScalesRoundUpAsCudasHeaderDoes) {
    for (uint32_t exponent = 0; exponent < 256; ++exponent)
        for (const uint32_t fraction : {0u, 1u, 0x3fffffu, 0x400000u, 0x400001u, 0x7fffffu}) {
            const float x = from_bits(exponent << 23 | fraction);
            ASSERT_EQ(to_e8m0(x), __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf)) << x;
        }
}

#endif

// OCP MX 1.0 rounds the scale down, so the largest element may be twice what fits.
TEST(Fp8, AScaleIsNeverBelowWhatItIsFor) {
    for (const float x : {1.0f, 1.0000001f, 1.5f, 1.9999999f, 2.0f, 3.1e-5f, 0x1p-127f, 1e38f}) {
        EXPECT_GE(from_e8m0(to_e8m0(x)), x);
        EXPECT_LT(from_e8m0(to_e8m0(x)), 2 * x);
    }
}

// ---- quantisation ---------------------------------------------------------------------------------------------------

double snr_of_normal_numbers(Fp8 type) {
    constexpr int64_t kRows = 64, kColumns = 256, n = kRows * kColumns;
    std::vector<float> x(n);
    for (int64_t i = 0; i < n; i += 4) philox_normal4(5, uint64_t(i / 4), 0, &x[size_t(i)]);
    const Quantised q(x, kRows, kColumns, type, DType::f32);
    double signal = 0, noise = 0;
    for (size_t i = 0; i < size_t(n); ++i) {
        const double error = double(fp8_values(type)[q.y[i]] * q.scale.inverse) - double(x[i]);
        signal += double(x[i]) * double(x[i]);
        noise += error * error;
    }
    return 10 * std::log10(signal / noise);
}

// A fraction of f bits rounds with a relative error that is uniform in a binade: 31.5 dB and 25.6 dB for normal
// numbers. A type with one bit less, a scale that flushes small numbers or one that saturates falls below.
TEST(Quantise, NormalNumbersKeepTheirSignalToNoiseRatio) {
    EXPECT_NEAR(snr_of_normal_numbers(Fp8::e4m3), 31.5, 0.4);
    EXPECT_NEAR(snr_of_normal_numbers(Fp8::e5m2), 25.6, 0.4);
}

// Scaled to its own maximum, e5m2 reaches lower than e4m3.
TEST(Quantise, EachTypeIsScaledToItsOwnMaximum) {
    std::vector<float> x(256);
    x[0] = 3, x[1] = -1, x[2] = 0x1p-28f;
    for (const Fp8 t : {Fp8::e4m3, Fp8::e5m2}) {
        const Quantised q(x, 16, 16, t, DType::f32);
        EXPECT_EQ(std::bit_cast<float>(q.scale.amax), 3);
        EXPECT_EQ(fp8_values(t)[q.y[0]], fp8_max(t)) << name_of(t);
        EXPECT_EQ(q.scale.inverse, 1 / (fp8_max(t) / 3));
        EXPECT_EQ(q.y[2] != 0, t == Fp8::e5m2) << "2^-28 of 3: within e5m2's range, below e4m3's";
    }
}

TEST(Quantise, WhatIsNotFiniteMakesTheInverseNaN) {
    for (const float bad : {float(NAN), float(INFINITY), -float(INFINITY)}) {
        std::vector<float> x(256, 1.0f);
        x[77] = bad;
        x[200] = 1e30f;
        EXPECT_TRUE(std::isnan(Quantised(x, 16, 16, Fp8::e4m3, DType::f32).scale.inverse)) << bad;
    }
}

TEST(Quantise, ZerosAndTinyNumbersHaveAUsableScale) {
    EXPECT_EQ(fp8_scale(448, 0), 1);
    for (const float tiny : {0x1p-149f, 0x1p-126f, 1e-37f}) {
        const float s = fp8_scale(448, std::bit_cast<uint32_t>(tiny));
        EXPECT_TRUE(std::isnormal(s));
        EXPECT_TRUE(std::isnormal(1 / s));
        EXPECT_LE(tiny * s, 448);
    }
}

// ---- scales of mx ---------------------------------------------------------------------------------------------------

// The layout of NVIDIA's documents (cuBLAS, "1D block scaling factors layout"), written as they draw it: of a tile of
// 128 x 4, byte 16 (row % 32) + 4 (row / 32) + column; tiles row by row of tiles.
TEST(QuantiseMx, ScalesLieWhereTheLibraryReadsThem) {
    const int64_t rows = 256, inner = 640, columns = inner / 32;
    std::set<int64_t> places;
    for (int64_t tile_row = 0; tile_row < rows / 128; ++tile_row)
        for (int64_t tile_column = 0; tile_column < columns / 4; ++tile_column)
            for (int64_t row = 0; row < 128; ++row)
                for (int64_t column = 0; column < 4; ++column) {
                    const int64_t want =
                        512 * (tile_row * (columns / 4) + tile_column) + 16 * (row % 32) + 4 * (row / 32) + column;
                    const int64_t at = mx_scale_at(inner, 128 * tile_row + row, 4 * tile_column + column);
                    ASSERT_EQ(at, want);
                    places.insert(at);
                }
    EXPECT_EQ(int64_t(places.size()), mx_scales_of(rows, inner));
    EXPECT_EQ(*places.rbegin(), mx_scales_of(rows, inner) - 1);
}

// The scale is never below magnitude / 448, so no number saturates, and never twice that.
TEST(QuantiseMx, ScalesAreRoundedUp) {
    for (const float x : {1.0f, 447.0f, 448.0f, 449.0f, 500.0f, 3e-5f, 1e30f, 3.3e38f, 1e-30f}) {
        const uint8_t scale = mx_scale(std::bit_cast<uint32_t>(x));
        EXPECT_EQ(scale, to_e8m0(x / 448)) << x;
        EXPECT_LE(x / from_e8m0(scale), 448) << x;
        EXPECT_GT(x / from_e8m0(scale), 224) << x;
        EXPECT_EQ(mx_factor(scale) * from_e8m0(scale), 1) << x;
    }
    EXPECT_EQ(mx_scale(0), 0);
    EXPECT_EQ(mx_scale(0x7f800000u), 255);
    EXPECT_EQ(mx_scale(0x7fc00000u), 255);
    EXPECT_TRUE(std::isnan(mx_factor(255)));
}

}  // namespace
}  // namespace rz
