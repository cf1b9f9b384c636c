#pragma once
// RoPE's turn of pairs (rope.h), with the same bits wherever it is done: compilers choose by what is around it which
// product they fuse into a sum, so it is said here.

namespace rz {

// (x, y) turned by the angle with cosine c and sine s
template <int kN>
__device__ __forceinline__ void rotate(float (&x)[kN], float (&y)[kN], const float (&c)[kN], const float (&s)[kN]) {
#pragma unroll
    for (int k = 0; k < kN; ++k) {
        const float u = x[k], v = y[k];
        x[k] = __fmaf_rn(u, c[k], -__fmul_rn(v, s[k]));
        y[k] = __fmaf_rn(v, c[k], __fmul_rn(u, s[k]));
    }
}

}  // namespace rz
