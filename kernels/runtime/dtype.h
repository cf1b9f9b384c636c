#pragma once
// Element types. bf16 is the upper half of an fp32; conversion to it rounds to nearest, ties to even (NaN stays NaN).
// `bf16` is layout-compatible with CUDA's __nv_bfloat16, so a buffer is the same bytes on both backends.

#include <bit>
#include <cstdint>

namespace rz {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };

constexpr int64_t size_of(DType t) { return t == DType::f32 ? 4 : 2; }
constexpr const char* name_of(DType t) { return t == DType::f32 ? "fp32" : t == DType::bf16 ? "bf16" : "fp16"; }

struct bf16 {
    uint16_t bits;
    bf16() = default;
    explicit bf16(float x) {  // one expression: loops over this become vector code
        const uint32_t u = std::bit_cast<uint32_t>(x);
        const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1);
        bits = uint16_t(((u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : rounded) >> 16);
    }
    explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

struct f16 {
    _Float16 value;
    f16() = default;
    explicit f16(float x) : value(_Float16(x)) {}
    explicit operator float() const { return float(value); }
};

template <class T>
constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;

// with_dtype(t, []<class T>() { ... });
template <class F>
decltype(auto) with_dtype(DType t, F&& f) {
    if (t == DType::f32) return f.template operator()<float>();
    if (t == DType::bf16) return f.template operator()<bf16>();
    return f.template operator()<f16>();
}

}  // namespace rz
