#pragma once
// RoPE's turn of pairs (rope.h), the same instructions wherever it is done.

namespace rz {

// (x, y) turned by the angle with cosine c and sine s
template <int kN>
__device__ __forceinline__ void rotate(float (&x)[kN], float (&y)[kN], const float (&c)[kN], const float (&s)[kN]) {
#pragma unroll
    for (int k = 0; k < kN; ++k) {
        const float u = x[k], v = y[k];
        x[k] = u * c[k] - v * s[k];
        y[k] = v * c[k] + u * s[k];
    }
}

}  // namespace rz
