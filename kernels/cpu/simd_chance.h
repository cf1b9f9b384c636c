// Stochastic rounding (kernels/stochastic_rounding.h) of vectors. Included inside a pass of kernels/cpu/simd.h after
// simd_vec.h, in the pass's namespace.
//
// No #pragma once: included once per pass.

constexpr int64_t kBlock = 1024;  // elements whose random words are made at once; a multiple of 4

typedef uint64_t VecWide __attribute__((vector_size(RZ_SIMD_WIDTH)));
constexpr int64_t kGroups = RZ_SIMD_WIDTH / 8;  // Philox groups per vector, one in each 64-bit lane
constexpr int kVectors = 4;
constexpr int64_t kTogether = kVectors * kGroups;

// Products of the low halves of the lanes
RZ_INLINE VecWide product(VecWide a, VecWide b) {
#if defined(__x86_64__) && RZ_SIMD_WIDTH == 16
    return VecWide(_mm_mul_epu32(__m128i(a), __m128i(b)));
#elif defined(__x86_64__) && RZ_SIMD_WIDTH == 32
    return VecWide(_mm256_mul_epu32(__m256i(a), __m256i(b)));
#elif defined(__x86_64__) && RZ_SIMD_WIDTH == 64
    return VecWide(_mm512_maskz_mul_epu32(0xff, __m512i(a), __m512i(b)));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// philox4x32 of kTogether groups from `group`: the words stand as 4 per group do in its order. Several vectors at a
// time: one alone waits for its products. The upper halves of the lanes hold what is left of products; only low halves
// are read.
RZ_INLINE void philox_groups(uint32_t* words, uint64_t seed, uint64_t group, uint64_t stream) {
    VecWide first;
    for (int64_t i = 0; i < kGroups; ++i) first[i] = group + uint64_t(i);
    const VecWide zero = {}, multiplier0 = zero + 0xD2511F53u, multiplier1 = zero + 0xCD9E8D57u;
    VecWide c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        c0[v] = first + uint64_t(v * kGroups), c1[v] = c0[v] >> 32;
        c2[v] = zero + uint32_t(stream), c3[v] = zero + (stream >> 32);
    }
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        const VecWide key0 = zero + k0, key1 = zero + k1;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const VecWide p0 = product(c0[v], multiplier0), p1 = product(c2[v], multiplier1);
            c0[v] = (p1 >> 32) ^ c1[v] ^ key0;
            c1[v] = p1;
            c2[v] = (p0 >> 32) ^ c3[v] ^ key1;
            c3[v] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    VecWide begin, end;
    for (uint64_t i = 0; i < uint64_t(kGroups); ++i) {
        begin[i] = i / 2 + (i % 2) * kGroups;
        end[i] = begin[i] + kGroups / 2;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        const VecWide low = (c0[v] & 0xffffffffu) | (c1[v] << 32), high = (c2[v] & 0xffffffffu) | (c3[v] << 32);
        const VecWide halves[2] = {shuffled(low, high, begin), shuffled(low, high, end)};
        __builtin_memcpy(words + v * 4 * kGroups, halves, sizeof halves);
    }
}

// Words of elements from logical offset `first`, which may lie inside a group.
struct Chance {
    uint32_t words[kBlock + 4 + 4 * kTogether + kLanes];
    int64_t skipped;

    void fill(uint64_t seed, int64_t first, int64_t n, uint64_t stream) {
        skipped = first % 4;
        const int64_t groups = ceil_div(n + skipped, 4);
        for (int64_t g = 0; g < groups; g += kTogether)
            philox_groups(words + 4 * g, seed, uint64_t(first / 4 + g), stream);
    }
    RZ_INLINE VecBits at(int64_t i) const { return bits_of(load(reinterpret_cast<const float*>(words) + skipped + i)); }
};

// x where T is fp32, else rounded by chance
template <class T, class Lanes>
RZ_INLINE void store_by_chance(T* p, Vec x, VecBits chance, Lanes lanes) {
    if constexpr (std::is_same_v<T, float>) {
        store(p, x, lanes);
    } else {
        const VecBits u = bits_of(x), carried = u + (chance & 0xffffu);
        const VecHalf kept = narrowed((x != x ? u | 0x400000u : carried) >> 16);
        if constexpr (std::is_same_v<Lanes, AllLanes>)
            *reinterpret_cast<VecHalfU*>(p) = kept;
        else
            __builtin_memcpy(p, &kept, size_t(lanes.count) * sizeof(T));
    }
}
