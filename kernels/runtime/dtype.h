#pragma once
// Element types. bf16 is the upper half of an fp32; conversion to it rounds to nearest, ties to even (NaN stays NaN).
// `bf16` is layout-compatible with CUDA's __nv_bfloat16, so a buffer is the same bytes on both backends.

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rz {

struct bf16;
struct f16;

// One row per type. NCCL's, MPI's, oneDNN's and cuBLASLt's names are read only where their headers are included. MPI
// has no 2-byte floats: comm/ moves their bits and adds them itself.
//
//      type  C++    name    safetensors config.json  NCCL          MPI           oneDNN cuBLASLt
#define RZ_DTYPES(ROW)                                                                         \
    ROW(f32, float, "fp32", "F32", "float32", ncclFloat32, MPI_FLOAT, f32, CUDA_R_32F)         \
    ROW(bf16, bf16, "bf16", "BF16", "bfloat16", ncclBfloat16, MPI_UINT16_T, bf16, CUDA_R_16BF) \
    ROW(f16, f16, "fp16", "F16", "float16", ncclFloat16, MPI_UINT16_T, f16, CUDA_R_16F)

enum class DType : int {
#define RZ_ROW(type, ...) type,
    RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
};

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

constexpr int64_t size_of(DType t) {
    switch (t) {
#define RZ_ROW(type, cpp, ...) \
    case DType::type:          \
        return sizeof(cpp);
        RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
    }
    __builtin_unreachable();
}

struct DTypeNames {
    DType type;
    const char *name, *safetensors, *config_json;  // name: in flags and messages
};
inline constexpr DTypeNames kDTypes[] = {
#define RZ_ROW(type, cpp, name, safetensors, config_json, ...) {DType::type, name, safetensors, config_json},
    RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
};
constexpr const DTypeNames& names_of(DType t) { return kDTypes[int(t)]; }
constexpr const char* name_of(DType t) { return names_of(t).name; }

// The type that `text` names in one column: find_dtype("BF16", &DTypeNames::safetensors).
constexpr std::optional<DType> find_dtype(std::string_view text, const char* DTypeNames::*column) {
    for (const DTypeNames& row : kDTypes)
        if (text == row.*column) return row.type;
    return std::nullopt;
}
// By its name in flags; throws naming `what` and the names that there are.
DType parse_dtype(const char* what, std::string_view text);

// with_dtype(t, []<class T>() { ... });
template <class F>
decltype(auto) with_dtype(DType t, F&& f) {
    switch (t) {
#define RZ_ROW(type, cpp, ...) \
    case DType::type:          \
        return f.template operator()<cpp>();
        RZ_DTYPES(RZ_ROW)
#undef RZ_ROW
    }
    __builtin_unreachable();
}

}  // namespace rz
