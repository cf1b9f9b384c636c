#pragma once
// The 8-bit floats of OCP OFP8 (2023) and the scale format of OCP MX 1.0 (2023), on the host. Kernels use CUDA's own
// conversions, which give the same bits.
//
//           bits (sign, exponent, fraction)  largest  smallest normal, subnormal  infinity  NaN
//   e4m3    1 4 3                            448      2^-6, 2^-9                  none      S.1111.111
//   e5m2    1 5 2                            57344    2^-14, 2^-16                unused    S.11111.{01,10,11}
//   e8m0    0 8 0: 2^(code - 127)            2^127    2^-127                      none      255
//
// Conversion to e4m3 and e5m2 rounds to nearest, ties to even, and saturates: whatever is larger than the largest, and
// infinity, becomes the largest. The sign of zero is kept; NaN becomes a NaN. Conversion to e8m0 rounds up: a scale
// that is rounded down would let the largest element saturate (arXiv 2506.08027).

#include <array>
#include <bit>
#include <cstdint>

#include "kernels/runtime/names.h"

namespace rz {

enum class Fp8 { e4m3, e5m2 };
template <>
inline constexpr auto kNames<Fp8> = std::to_array<Named<Fp8>>({{Fp8::e4m3, "e4m3"}, {Fp8::e5m2, "e5m2"}});

constexpr float fp8_max(Fp8 t) { return t == Fp8::e4m3 ? 448.0f : 57344.0f; }

template <Fp8 kType>
constexpr uint8_t to_fp8(float x) {
    constexpr int kFraction = kType == Fp8::e4m3 ? 3 : 2, kBias = kType == Fp8::e4m3 ? 7 : 15;
    constexpr uint32_t kMost = std::bit_cast<uint32_t>(fp8_max(kType));
    constexpr uint32_t kNormal = uint32_t(127 - kBias + 1) << 23;                  // the smallest normal number
    constexpr uint32_t kMagic = uint32_t(127 + 23 - kBias + 1 - kFraction) << 23;  // its last place: the smallest one
    const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return uint8_t(sign | 0x7f);
    if (a >= kMost) return uint8_t(sign | (((kMost >> (23 - kFraction)) - ((127u - kBias) << kFraction))));
    if (a < kNormal) {  // the addition rounds to a multiple of the smallest number
        const float sum = std::bit_cast<float>(a) + std::bit_cast<float>(kMagic);
        return uint8_t(sign | (std::bit_cast<uint32_t>(sum) - kMagic));
    }
    const uint32_t rounded = a + (1u << (22 - kFraction)) - 1 + (a >> (23 - kFraction) & 1);
    return uint8_t(sign | ((rounded >> (23 - kFraction)) - ((127u - kBias) << kFraction)));
}

// What a code stands for; e5m2's infinities too.
template <Fp8 kType>
constexpr float from_fp8(uint8_t code) {
    constexpr int kFraction = kType == Fp8::e4m3 ? 3 : 2, kBias = kType == Fp8::e4m3 ? 7 : 15;
    const uint32_t sign = uint32_t(code & 0x80) << 24, a = code & 0x7f;
    if (kType == Fp8::e4m3 ? a == 0x7f : a > 0x7c) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (kType == Fp8::e5m2 && a == 0x7c) return std::bit_cast<float>(sign | 0x7f800000u);
    constexpr float kSmallest = std::bit_cast<float>(uint32_t(127 - kBias + 1 - kFraction) << 23);
    if (a < 1u << kFraction) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(a) * kSmallest));
    return std::bit_cast<float>(sign | ((a << (23 - kFraction)) + ((127u - kBias) << 23)));
}

template <Fp8 kType>
constexpr std::array<float, 256> make_fp8_table() {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code) table[size_t(code)] = from_fp8<kType>(uint8_t(code));
    return table;
}
inline constexpr std::array<float, 256> kE4m3Values = make_fp8_table<Fp8::e4m3>();
inline constexpr std::array<float, 256> kE5m2Values = make_fp8_table<Fp8::e5m2>();

constexpr const std::array<float, 256>& fp8_values(Fp8 t) { return t == Fp8::e4m3 ? kE4m3Values : kE5m2Values; }

// The smallest power of two that is not below x >= 0. Below 2^-127 it is that; beyond 2^127, and for infinity and NaN,
// the NaN.
constexpr uint8_t to_e8m0(float x) {
    const uint32_t a = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
    if (a <= 0x00400000u) return 0;  // 2^-127, a subnormal number
    const uint32_t code = (a >> 23) + ((a & 0x7fffffu) != 0);
    return uint8_t(code > 254 ? 255 : code);
}
constexpr float from_e8m0(uint8_t code) {
    return std::bit_cast<float>(code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : uint32_t(code) << 23);
}

// 1 / scale. A NaN keeps its bits, which a GPU's division replaces.
constexpr float fp8_inverse(float scale) { return scale == scale ? 1 / scale : scale; }

}  // namespace rz
