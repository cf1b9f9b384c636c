#pragma once
// Elementary functions as branch-free scalar code, for loops that the compiler turns into vectors.

#include <bit>
#include <cstdint>

#define RZ_INLINE inline __attribute__((always_inline))

namespace rz {

// Stores x, rounded to T. In a loop under `#pragma omp simd` a temporary T would become an array and stop the vectoriser;
// inside a function it doesn't.
template <class T>
RZ_INLINE void store(T* p, float x) {
    *p = T(x);
}
// x rounded to T
template <class T>
RZ_INLINE float rounded(float x) {
    return float(T(x));
}

// e^x with a relative error below 2e-7 (three units of 2^-24). Results under the smallest normal number are 0,
// x above 88.37 gives infinity, NaN stays NaN.
//
// x = n ln2 + r with |r| <= ln2/2: e^x = 2^n e^r, e^r by a polynomial of degree 7. Adding 1.5 * 2^23 rounds to an integer
// and leaves it in the low bits of the sum.
RZ_INLINE float fast_exp(float x) {
    constexpr float kMagic = 12582912.0f;
    const float clamped = x < -87.3f ? -87.3f : x > 88.37f ? 88.37f : x;  // NaN passes
    const float shifted = clamped * 1.44269504f + kMagic;
    const float n = shifted - kMagic;
    float r = clamped - n * 0.693359375f;  // ln2 in two parts: the first product is exact
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
    const float y = p * power;
    return x < -87.3f ? 0.0f : x > 88.37f ? __builtin_inff() : y;
}

// 1 / (1 + e^-x)
RZ_INLINE float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

}  // namespace rz
