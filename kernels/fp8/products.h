#pragma once
// What the products of codes share on the CPU: checks, decoding, and the one rounding to C.

#include <utility>

#include "kernels/checks.h"
#include "kernels/fp8/fp8.h"

namespace rz {

// Whether there is anything to multiply; throws where no GPU has such a product. `g` is Fp8Gemm, Fp8BlockGemm or
// Fp8MxGemm.
template <class G>
bool check_fp8_product(const char* op, const G& g, int64_t multiple, const void* a_scale, const void* b_scale) {
    for (const auto& [name, value] : {std::pair("M", g.M), {"N", g.N}, {"K", g.K}})
        require(value >= 0 && value % multiple == 0, "%s: %s is %ld; fp8 products need a multiple of %ld", op, name,
                value, multiple);
    require(g.c_dtype != DType::f16, "%s: C is fp16; it must be bf16 or fp32", op);
    if (g.M == 0 || g.N == 0) return false;
    require(g.K > 0, "%s: K is 0", op);
    check_pointers(
        op, {{"c", g.c, 16}, {"a", g.a, 16}, {"b", g.b, 16}, {"a_scale", a_scale, 16}, {"b_scale", b_scale, 16}});
    return true;
}

// Exact: bf16 has the range of e5m2 and more bits than both types.
inline void decode_fp8(bf16* out, const uint8_t* codes, int64_t n, Fp8 type) {
    bf16 values[256];
    for (int i = 0; i < 256; ++i) values[i] = bf16(fp8_values(type)[size_t(i)]);
#pragma omp parallel for schedule(static) if (n >= kSerialBelow)
    for (int64_t i = 0; i < n; ++i) out[i] = values[codes[i]];
}

// C = scale * sums + beta * C
template <class G>
void write_fp8_product(const G& g, const float* sums, float scale) {
    with_dtype(g.c_dtype, [&]<class C>() {
        C* c = static_cast<C*>(g.c);
#pragma omp parallel for schedule(static) if (g.M * g.N >= kSerialBelow)
        for (int64_t i = 0; i < g.M * g.N; ++i) {
            const float own = scale * sums[i];
            c[i] = C(g.beta == 0 ? own : own + g.beta * float(c[i]));
        }
    });
}

}  // namespace rz
