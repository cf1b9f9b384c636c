// Vectors of fp32 lanes for one instruction set. Included inside a pass of kernels/cpu/simd.h, in the pass's namespace;
// no #pragma once. A loop over a row is
//
//   for_vectors(C, [&](int64_t c, auto lanes) RZ_LAMBDA { store(y + c, load(x + c, lanes) * scale, lanes); });
//
// where the last call may cover fewer than kLanes elements: those load as zeros beyond the end, and are not stored.

typedef float Vec __attribute__((vector_size(RZ_SIMD_WIDTH)));
typedef float VecU __attribute__((vector_size(RZ_SIMD_WIDTH), aligned(4), may_alias));
typedef uint32_t VecBits __attribute__((vector_size(RZ_SIMD_WIDTH)));
typedef uint16_t VecHalf __attribute__((vector_size(RZ_SIMD_WIDTH / 2)));
typedef uint16_t VecHalfU __attribute__((vector_size(RZ_SIMD_WIDTH / 2), aligned(2), may_alias));

constexpr int64_t kLanes = RZ_SIMD_WIDTH / 4;

struct AllLanes {};
struct SomeLanes {
    int64_t count;
};

RZ_INLINE VecBits bits_of(Vec x) { return std::bit_cast<VecBits>(x); }
RZ_INLINE Vec from_bits(VecBits x) { return std::bit_cast<Vec>(x); }

// GCC 12 converts vectors of integers, and picks the larger of two, by several instructions where the CPU has one.
// (maskz: it warns of the others' undefined values.)

// Whole lanes from halves, and halves from lanes below 2^16
RZ_INLINE VecBits widened(VecHalf x) {
#if defined(__x86_64__) && RZ_SIMD_WIDTH == 64
    return VecBits(_mm512_maskz_cvtepu16_epi32(0xffff, __m256i(x)));
#elif defined(__x86_64__) && RZ_SIMD_WIDTH == 32
    return VecBits(_mm256_cvtepu16_epi32(__m128i(x)));
#else
    return __builtin_convertvector(x, VecBits);
#endif
}
RZ_INLINE VecHalf narrowed(VecBits x) {
#if defined(__x86_64__) && RZ_SIMD_WIDTH == 64
    return VecHalf(_mm512_maskz_cvtepi32_epi16(0xffff, __m512i(x)));
#elif defined(__x86_64__) && RZ_SIMD_WIDTH == 32
    return VecHalf(_mm_packus_epi32(_mm256_castsi256_si128(__m256i(x)), _mm256_extracti128_si256(__m256i(x), 1)));
#else
    return __builtin_convertvector(x, VecHalf);
#endif
}

// a > b ? a : b and a < b ? a : b: b where one of them is a NaN, or both are zero
RZ_INLINE Vec larger(Vec a, Vec b) {
#if defined(__x86_64__) && RZ_SIMD_WIDTH == 64
    return Vec(_mm512_maskz_max_ps(0xffff, __m512(a), __m512(b)));
#elif defined(__x86_64__) && RZ_SIMD_WIDTH == 32
    return Vec(_mm256_max_ps(__m256(a), __m256(b)));
#else
    return a > b ? a : b;
#endif
}
RZ_INLINE Vec smaller(Vec a, Vec b) {
#if defined(__x86_64__) && RZ_SIMD_WIDTH == 64
    return Vec(_mm512_maskz_min_ps(0xffff, __m512(a), __m512(b)));
#elif defined(__x86_64__) && RZ_SIMD_WIDTH == 32
    return Vec(_mm256_min_ps(__m256(a), __m256(b)));
#else
    return a < b ? a : b;
#endif
}

template <class T>
RZ_INLINE Vec load(const T* p, AllLanes = {}) {
    if constexpr (std::is_same_v<T, float>) {
        return *reinterpret_cast<const VecU*>(p);
    } else if constexpr (std::is_same_v<T, bf16>) {
        return from_bits(widened(*reinterpret_cast<const VecHalfU*>(p)) << 16);
    } else {
        Vec x;
        for (int64_t i = 0; i < kLanes; ++i) x[i] = float(p[i]);
        return x;
    }
}

// x's bits as bf16, rounded to nearest even, in the low halves
RZ_INLINE VecBits bf16_bits(Vec x) {
    const VecBits u = bits_of(x);
    const VecBits rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (x != x ? u | 0x400000u : rounded) >> 16;
}

// x as bf16. Where the CPU has an instruction for it, values below the smallest normal become 0.
RZ_INLINE VecHalf bf16_halves(Vec x) {
#ifdef RZ_SIMD_BF16
    return (VecHalf)_mm512_cvtneps_pbh((__m512)x);
#else
    return narrowed(bf16_bits(x));
#endif
}

template <class T>
RZ_INLINE void store(T* p, Vec x, AllLanes = {}) {
    if constexpr (std::is_same_v<T, float>) {
        *reinterpret_cast<VecU*>(p) = x;
    } else if constexpr (std::is_same_v<T, bf16>) {
        *reinterpret_cast<VecHalfU*>(p) = bf16_halves(x);
    } else {
        for (int64_t i = 0; i < kLanes; ++i) p[i] = T(x[i]);
    }
}

template <class T>
RZ_INLINE Vec load(const T* p, SomeLanes lanes) {
    T all[kLanes] = {};
    __builtin_memcpy(all, p, size_t(lanes.count) * sizeof(T));
    return load(all);
}

template <class T>
RZ_INLINE void store(T* p, Vec x, SomeLanes lanes) {
    T all[kLanes];
    store(all, x);
    __builtin_memcpy(p, all, size_t(lanes.count) * sizeof(T));
}

// x rounded to T
template <class T>
RZ_INLINE Vec rounded(Vec x) {
    if constexpr (std::is_same_v<T, float>) return x;
    if constexpr (std::is_same_v<T, bf16>) return from_bits(widened(bf16_halves(x)) << 16);
    T all[kLanes];
    store(all, x);
    return load(all);
}

#define RZ_LAMBDA __attribute__((always_inline))

template <class F>
RZ_INLINE void for_vectors(int64_t n, F&& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, AllLanes{});
    if (i < n) body(i, SomeLanes{n - i});
}

// Lane i is lane order[i] of a and, behind it, b.
template <class V, class Order>
RZ_INLINE V shuffled(V a, V b, Order order) {
#ifdef __clang__
    constexpr auto n = sizeof(V) / sizeof a[0];
    V y;
    for (size_t i = 0; i < n; ++i) y[i] = order[i] < n ? a[order[i]] : b[order[i] - n];
    return y;
#else
    return __builtin_shuffle(a, b, order);
#endif
}

// x with lanes i and i ^ distance swapped
template <int distance>
RZ_INLINE Vec swapped(Vec x) {
    VecBits order;
    for (uint32_t i = 0; i < kLanes; ++i) order[i] = i ^ distance;
    return shuffled(x, x, order);
}

// Transposes a square of kLanes vectors: at each power of two the off-diagonal quarters change places.
template <int distance = 1>
RZ_INLINE void transpose(Vec (&x)[kLanes]) {
    VecBits upper, lower;
    for (uint32_t i = 0; i < kLanes; ++i) {
        upper[i] = i & distance ? (i ^ distance) + kLanes : i;
        lower[i] = i & distance ? i + kLanes : i ^ distance;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
        if (!(i & distance)) {
            const Vec a = x[i], b = x[i | distance];
            x[i] = shuffled(a, b, upper);
            x[i | distance] = shuffled(a, b, lower);
        }
    if constexpr (2 * distance < kLanes) transpose<2 * distance>(x);
}

// The sum, or the maximum, of all lanes, in a fixed tree.
RZ_INLINE float sum_of(Vec x) {
    if constexpr (kLanes > 8) x += swapped<8>(x);
    if constexpr (kLanes > 4) x += swapped<4>(x);
    x += swapped<2>(x);
    x += swapped<1>(x);
    return x[0];
}

RZ_INLINE float max_of(Vec x) {
    if constexpr (kLanes > 8) x = larger(x, swapped<8>(x));
    if constexpr (kLanes > 4) x = larger(x, swapped<4>(x));
    x = larger(x, swapped<2>(x));
    x = larger(x, swapped<1>(x));
    return x[0];
}

RZ_INLINE Vec splat(float x) { return x - Vec{}; }
// The larger and the smaller; a NaN in x stays.
RZ_INLINE Vec at_least(Vec x, float bound) { return larger(splat(bound), x); }
RZ_INLINE Vec at_most(Vec x, float bound) { return smaller(splat(bound), x); }

// The largest of n values and `start`; NaNs do not count. Four chains: one alone waits for each comparison.
template <class T>
RZ_INLINE float largest_of(const T* x, int64_t n, float start) {
    constexpr int64_t kChains = 4;
    Vec tops[kChains] = {splat(start), splat(start), splat(start), splat(start)};
    int64_t i = 0;
    for (; i + kChains * kLanes <= n; i += kChains * kLanes)
#pragma GCC unroll 4
        for (int64_t c = 0; c < kChains; ++c) tops[c] = larger(load(x + i + c * kLanes), tops[c]);
    for (; i + kLanes <= n; i += kLanes) tops[0] = larger(load(x + i), tops[0]);
    if (i < n) {
        Vec last = load(x + i, SomeLanes{n - i});
        for (int64_t j = n - i; j < kLanes; ++j) last[j] = start;
        tops[0] = larger(last, tops[0]);
    }
    return max_of(larger(larger(tops[0], tops[1]), larger(tops[2], tops[3])));
}

// e^x with a relative error below 2e-7 (three units of 2^-24). x is clamped to [-87.3, 88.3] first: e^-87.3 is 1.2e-38,
// the smallest normal number. NaN stays NaN.
//
// x = n ln2 + r with |r| <= ln2/2: e^x = 2^n e^r, e^r by a polynomial of degree 7. Adding 1.5 * 2^23 + 127 rounds to an
// integer and leaves it, with the exponent's bias, in the low bits of the sum.
RZ_INLINE Vec exp(Vec x) {
    constexpr float kMagic = 12582912.0f + 127.0f;
    x = at_most(at_least(x, -87.3f), 88.3f);
    const Vec shifted = x * 1.44269504f + kMagic;
    const Vec n = shifted - kMagic;
    Vec r = x - n * 0.693359375f;  // ln2 in two parts: the first product is exact
    r = r + n * 2.12194440e-4f;
    Vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * from_bits(bits_of(shifted) << 23);
}

// ln(x) for normal x > 0, within three units in the last place. x = 2^e m with m in [sqrt(1/2), sqrt(2)); polynomial in
// m - 1.
RZ_INLINE Vec log(Vec x) {
    typedef int32_t VecInt __attribute__((vector_size(RZ_SIMD_WIDTH)));
    const VecInt e = VecInt(bits_of(x) - 0x3f3504f3u) >> 23;
    const Vec exponent = __builtin_convertvector(e, Vec);
    const Vec y = from_bits(bits_of(x) - (VecBits(e) << 23)) - 1.0f;
    Vec p = 7.0376836292e-2f * y - 1.1514610310e-1f;
    p = p * y + 1.1676998740e-1f;
    p = p * y - 1.2420140846e-1f;
    p = p * y + 1.4249322787e-1f;
    p = p * y - 1.6668057665e-1f;
    p = p * y + 2.0000714765e-1f;
    p = p * y - 2.4999993993e-1f;
    p = p * y + 3.3333331174e-1f;
    const Vec z = y * y;
    const Vec low = p * y * z + exponent * -2.12194440e-4f - 0.5f * z;
    return exponent * 0.693359375f + (y + low);
}

// 1 / (1 + e^-x)
RZ_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }
