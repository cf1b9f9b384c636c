// Kernels of other projects, proven on GPUs, as plain functions: the objects that nvcc makes of their sources know
// nothing of GoogleTest, and the tests nothing of CUTLASS.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace proven {

enum class Types { bf16, int8_by_bf16, e4m3 };

// D (M, N) f32 row-major = 2 A B + 3 C, A and B of device memory
struct Gemm {
    const char* name;
    int m, n, k;
    bool a_row, b_row;  // A (M, K) and B (K, N) row-major; else column-major
    Types types;
    // Returns what went wrong, or nothing.
    std::string (*run)(const Gemm&, const void* a, const void* b, const float* c, float* d);
};

// Softmax attention with scale 1 / sqrt(d). lse (B, H, T) f32; the rest bf16 or fp16: (B, T, H, D), where k and v have
// kv_heads and dk, dv one for each query head; all of them (B, H, T, D) if head_major.
struct Attention {
    const char* name;
    int batch, t, heads, kv_heads, d;
    bool causal, backward, fp16, head_major;
    struct Arrays {
        const uint16_t *q, *k, *v, *d_o;
        uint16_t* o;  // o and lse: forward writes them, backward reads them
        float* lse;
        uint16_t *dq, *dk, *dv;
    };
    std::string (*run)(const Attention&, const Arrays&);
};

#define PROVEN_LIST(type, list)        \
    inline std::vector<type>& list() { \
        static std::vector<type> all;  \
        return all;                    \
    }
PROVEN_LIST(Gemm, gemms)
PROVEN_LIST(Attention, attentions)
#undef PROVEN_LIST

// Objects add their kernels before main.
struct Add {
    Add(std::vector<Gemm> more) { gemms().insert(gemms().end(), more.begin(), more.end()); }
    Add(std::vector<Attention> more) { attentions().insert(attentions().end(), more.begin(), more.end()); }
};

}  // namespace proven
