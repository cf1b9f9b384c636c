#pragma once
// Counter-based normal random numbers, the same bits on both backends: g++, nvcc and the emulator compile this text.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): key (seed low, seed high), counter (group low, group high, stream
// low, stream high), four words out. Group g makes the normals of elements 4g .. 4g+3: words (0, 1) make elements 4g
// and 4g+1, words (2, 3) make 4g+2 and 4g+3, by Box & Muller (1958): the first word of a pair is the radius, the second
// the angle; the cosine comes first.
//
// Only IEEE additions, multiplications and square roots and explicit fmaf, never a product that a compiler may fuse
// into an addition by itself: so that equal inputs give equal bits everywhere.

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define RZ_HD __host__ __device__ __forceinline__
#else
#define RZ_HD inline __attribute__((always_inline))
#endif

namespace rz {

struct PhiloxWords {
    uint32_t w[4];
};

RZ_HD PhiloxWords philox4x32(uint64_t seed, uint64_t group, uint64_t stream) {
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    uint32_t c0 = uint32_t(group), c1 = uint32_t(group >> 32), c2 = uint32_t(stream), c3 = uint32_t(stream >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
        c1 = uint32_t(p1);
        c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c3 = uint32_t(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// ln(u) for u in [2^-24, 1), within two units in the last place. u = 2^e m with m in [sqrt(1/2), sqrt(2)); polynomial
// in m - 1.
RZ_HD float philox_log(float u) {
    const uint32_t bits = std::bit_cast<uint32_t>(u);
    const int32_t e = int32_t(bits - 0x3f3504f3u) >> 23;
    const float x = std::bit_cast<float>(bits - (uint32_t(e) << 23)) - 1.0f;
    const float z = x * x;
    float p = 7.0376836292e-2f;
    p = fmaf(p, x, -1.1514610310e-1f);
    p = fmaf(p, x, 1.1676998740e-1f);
    p = fmaf(p, x, -1.2420140846e-1f);
    p = fmaf(p, x, 1.4249322787e-1f);
    p = fmaf(p, x, -1.6668057665e-1f);
    p = fmaf(p, x, 2.0000714765e-1f);
    p = fmaf(p, x, -2.4999993993e-1f);
    p = fmaf(p, x, 3.3333331174e-1f);
    const float cubic = p * x * z;
    const float low = fmaf(-0.5f, z, fmaf(float(e), -2.12194440e-4f, cubic));
    return fmaf(float(e), 0.693359375f, x + low);
}

// Two independent standard normals from two words. |z| < 5.8.
RZ_HD void normal_pair(uint32_t radius_word, uint32_t angle_word, float& z0, float& z1) {
    const float u = float((radius_word >> 9) * 2 + 1) * 0x1p-24f;  // an odd multiple of 2^-24: never 0, never 1
    const float radius = sqrtf(-2.0f * philox_log(u));

    // The angle is (quadrant + t) quarter turns, t in [-1/2, 1/2).
    const uint32_t quadrant = angle_word >> 30;
    const float t = fmaf(float((angle_word << 2) >> 8), 0x1p-24f, -0.5f);
    const float a = t * 1.57079632679f;
    const float z = a * a;
    float s = fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = fmaf(s, z, -1.6666654611e-1f);
    s = fmaf(s * z, a, a);
    float c = fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f);
    c = fmaf(c * z, z, fmaf(-0.5f, z, 1.0f));
    const float cosine = quadrant & 1 ? s : c, sine = quadrant & 1 ? c : s;
    z0 = radius * (quadrant == 1 || quadrant == 2 ? -cosine : cosine);
    z1 = radius * (quadrant >= 2 ? -sine : sine);
}

// The normals of elements 4*group .. 4*group + 3.
RZ_HD void philox_normal4(uint64_t seed, uint64_t group, uint64_t stream, float z[4]) {
    const PhiloxWords words = philox4x32(seed, group, stream);
    normal_pair(words.w[0], words.w[1], z[0], z[1]);
    normal_pair(words.w[2], words.w[3], z[2], z[3]);
}

}  // namespace rz
