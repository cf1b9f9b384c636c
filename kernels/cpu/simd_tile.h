// A matrix product on tiles that lie in the cache, for one instruction set. Included inside a pass of
// kernels/cpu/simd.h, in the pass's namespace, after kernels/cpu/simd_vec.h; no #pragma once.
//
// C (M, N) fp32 = or += A (M, K) B (K, N). B and C are row-major with padded rows: columns up to the next multiple of
// kLanes exist, and C's are overwritten. A is read one word at a time with any two strides, so that a transposed A
// costs nothing. M goes in strips of kTileRows; the rows that fill up the last strip exist too. A word is one fp32
// value, or two neighbouring values along K in bf16. Each element of C is one chain of multiply-adds in ascending k,
// however many rows are computed with it.

// A strip times two vectors fills the registers with sums: 28 of 32, or 12 of 16.
#if RZ_SIMD_WIDTH == 64
constexpr int64_t kTileRows = 14;
#else
constexpr int64_t kTileRows = 6;
#endif

struct Fp32Word {
    using Word = float;
    static constexpr int64_t kPer = 1;  // values in a word
    static RZ_INLINE Vec madd(Vec sum, float a, Vec b) { return sum + a * b; }
};

#ifdef RZ_SIMD_BF16
// Products of bf16 are exact in fp32; both of a word are added to the sum by one instruction, rounding each time.
struct Bf16Word {
    using Word = uint32_t;
    static constexpr int64_t kPer = 2;
    static RZ_INLINE Vec madd(Vec sum, uint32_t a, Vec b) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
    }
};
#endif

template <class W, int kVectors, int kRows>
__attribute__((noinline)) void tile_block(float* c, int64_t ldc, const typename W::Word* a, int64_t a_row, int64_t a_k,
                                          const typename W::Word* b, int64_t ldb, int64_t K, bool accumulate) {
    Vec sum[kRows][kVectors];
    // Unrolled by pragma: a loop that stays a loop would force the sums into memory.
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) {
            sum[r][j] = Vec{};
            if (accumulate) sum[r][j] = *reinterpret_cast<const VecU*>(c + r * ldc + j * kLanes);
        }
    for (int64_t k = 0; k < K; ++k) {
        Vec row[kVectors];
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) row[j] = *reinterpret_cast<const VecU*>(b + k * ldb + j * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            const typename W::Word x = a[r * a_row + k * a_k];
#pragma GCC unroll 2
            for (int j = 0; j < kVectors; ++j) sum[r][j] = W::madd(sum[r][j], x, row[j]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) *reinterpret_cast<VecU*>(c + r * ldc + j * kLanes) = sum[r][j];
}

template <class W, int kVectors>
RZ_INLINE void tile_columns(float* c, int64_t ldc, const typename W::Word* a, int64_t a_row, int64_t a_k,
                            const typename W::Word* b, int64_t ldb, int64_t K, bool accumulate, int64_t rows) {
    if (rows <= 4) return tile_block<W, kVectors, 4>(c, ldc, a, a_row, a_k, b, ldb, K, accumulate);
    if constexpr (kTileRows > 8)
        if (rows <= 8) return tile_block<W, kVectors, 8>(c, ldc, a, a_row, a_k, b, ldb, K, accumulate);
    tile_block<W, kVectors, kTileRows>(c, ldc, a, a_row, a_k, b, ldb, K, accumulate);
}

// One strip of kTileRows rows; K in words. Where it ends a matrix, only its first `rows` are wanted: few more are
// computed.
template <class W>
inline void tile_strip(float* c, int64_t ldc, const typename W::Word* a, int64_t a_row, int64_t a_k,
                       const typename W::Word* b, int64_t ldb, int64_t N, int64_t K, bool accumulate,
                       int64_t rows = kTileRows) {
    int64_t n = 0;
    for (; N - n > kLanes; n += 2 * kLanes)
        tile_columns<W, 2>(c + n, ldc, a, a_row, a_k, b + n, ldb, K, accumulate, rows);
    if (n < N) tile_columns<W, 1>(c + n, ldc, a, a_row, a_k, b + n, ldb, K, accumulate, rows);
}
