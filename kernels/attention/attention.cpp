#include "kernels/attention/attention_largest.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/magnitude.h"
#include "kernels/scratch.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/attention/attention.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"
#include "kernels/cpu/simd_tile.h"

// Queries and keys are met in blocks of kBlock, a multiple of both kTileRows and kLanes. Tiles of words (simd_tile.h)
// come in three layouts, from a matrix X (rows, D):
//
//   rows        word (r, c) holds X[r, 2c], X[r, 2c + 1]     a row as it lies: left operand, summed over columns
//   zipped      word (r, c) holds X[2r, c], X[2r + 1, c]     right operand, or transposed left one, summed over rows
//   transposed  word (c, r) of `rows`                        right operand, summed over columns
//
// (with one value in a word, rows and zipped are the same). Rows are padded, so that a power of two in D does not put a
// whole column on few cache sets. Every row of o, dq, dk, dv is summed in an order that depends on its position alone.
constexpr int64_t kBlock = kTileRows == 14 ? 112 : 96;
constexpr int64_t kPad = 16;
constexpr int64_t kKeyStride = kBlock + kPad;

inline int64_t max_threads() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

#ifdef RZ_SIMD_BF16
RZ_INLINE uint32_t pair_of(bf16 first, bf16 second) { return uint32_t(first.bits) | uint32_t(second.bits) << 16; }
#endif

// The first `words` words of a vector, from values as they lie (two bf16 to a word) or converted to fp32 (one to a
// word).
template <class W, class T>
RZ_INLINE Vec load_words(const T* from, int64_t words) {
    if constexpr (W::kPer == 1) return words == kLanes ? load(from) : load(from, SomeLanes{words});
    Vec x{};
    if (words == kLanes)
        __builtin_memcpy(&x, from, sizeof x);
    else
        __builtin_memcpy(&x, from, size_t(words) * 4);
    return x;
}

// Rows [0, rows) of x, `stride` apart; rows up to `padded` become zero.
template <class W, class T>
__attribute__((noinline)) void pack_rows(typename W::Word* out, int64_t ld, const T* x, int64_t stride, int64_t rows,
                                         int64_t padded, int64_t D) {
    const int64_t words = D / W::kPer;
    for (int64_t r = 0; r < padded; ++r) {
        typename W::Word* to = out + r * ld;
        if (r >= rows) {
            for (int64_t c = 0; c < words; ++c) to[c] = 0;
            continue;
        }
        const T* from = x + r * stride;
        for (int64_t c = 0; c < words; c += kLanes)  // the row's padding takes what a last vector has too much
            store(reinterpret_cast<float*>(to) + c, load_words<W>(from + c * W::kPer, least(kLanes, words - c)));
    }
}

// As pack_rows, two rows to a word; columns up to the next whole vector become zero.
template <class W, class T>
__attribute__((noinline)) void pack_zipped(typename W::Word* out, int64_t ld, const T* x, int64_t stride, int64_t rows,
                                           int64_t padded, int64_t D) {
    for (int64_t r = 0; r < padded; r += W::kPer) {
        typename W::Word* to = out + r / W::kPer * ld;
        const T* from = x + r * stride;
        if constexpr (W::kPer == 1) {
            if (r < rows)
                for_vectors(D, [&](int64_t c, auto lanes) RZ_LAMBDA { store(to + c, load(from + c, lanes), lanes); });
        }
#ifdef RZ_SIMD_BF16
        if constexpr (W::kPer == 2) {
            if (r + 1 < rows) {
#pragma omp simd
                for (int64_t c = 0; c < D; ++c) to[c] = pair_of(from[c], from[stride + c]);
            } else if (r < rows) {
#pragma omp simd
                for (int64_t c = 0; c < D; ++c) to[c] = from[c].bits;
            }
        }
#endif
        for (int64_t c = r < rows ? D : 0; c < round_up(D, kLanes); ++c) to[c] = 0;
    }
}

// Rows [0, rows) of x become columns; columns up to kBlock become zero.
template <class W, class T>
__attribute__((noinline)) void pack_transposed(typename W::Word* out, const T* x, int64_t stride, int64_t rows,
                                               int64_t D) {
    const int64_t words = D / W::kPer;
    for (int64_t r0 = 0; r0 < kBlock; r0 += kLanes)
        for (int64_t c0 = 0; c0 < words; c0 += kLanes) {
            const int64_t columns = least(kLanes, words - c0);
            Vec square[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) {
                const T* from = x + (r0 + i) * stride + c0 * W::kPer;
                square[i] = r0 + i < rows ? load_words<W>(from, columns) : Vec{};
            }
            transpose(square);
            for (int64_t j = 0; j < columns; ++j)
                store(reinterpret_cast<float*>(out) + (c0 + j) * kKeyStride + r0, square[j]);
        }
}

// Rounds vector c of a row of fp32 values to the words of the next product.
template <class W>
RZ_INLINE void write_rows_layout(typename W::Word* row, int64_t c, Vec x) {
    if constexpr (W::kPer == 1)
        store(row + c, x);
    else
        store(reinterpret_cast<bf16*>(row) + c, x);
}
#ifdef RZ_SIMD_BF16
// Vector c of two neighbouring rows
RZ_INLINE void write_zipped_layout(uint32_t* row, int64_t c, Vec first, Vec second) {
    const VecBits low = widened(bf16_halves(first)), high = widened(bf16_halves(second));
    store(reinterpret_cast<float*>(row) + c, from_bits(low | high << 16));
}
#endif

// How many of a block's keys, from its first on, queries do not see because they come before their document
struct Hidden {
    const int32_t* first_key;  // of the rows' first query; nullptr: none
    int64_t block;             // position of the block's first key

    RZ_INLINE int64_t operator()(int64_t row) const { return first_key ? most(first_key[row] - block, 0) : 0; }
};
inline Hidden hidden_keys(const AttentionShape& s, int64_t b, int64_t t, int64_t k0) {
    return {s.first_key ? s.first_key + b * s.first_key_batch + t : nullptr, s.k_at + k0};
}

// Lane numbers, to tell which of a vector's keys are visible
RZ_INLINE Vec lane_numbers() {
    Vec x;
    for (int64_t i = 0; i < kLanes; ++i) x[i] = float(i);
    return x;
}

// Begin of element (b, t, head) of a strided tensor.
template <class T>
RZ_INLINE T* at(void* p, int64_t batch_stride, int64_t row_stride, int64_t D, int64_t b, int64_t t, int64_t head) {
    return static_cast<T*>(p) + b * batch_stride + t * row_stride + head * D;
}
template <class T>
RZ_INLINE const T* at(const void* p, int64_t batch_stride, int64_t row_stride, int64_t D, int64_t b, int64_t t,
                      int64_t head) {
    return static_cast<const T*>(p) + b * batch_stride + t * row_stride + head * D;
}

// Hands out pieces of one block of memory, 64-byte aligned. Without memory it only counts.
struct Carver {
    char* base;
    int64_t used = 0;
    template <class T>
    T* take(int64_t count) {
        T* p = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += round_up(count * int64_t(sizeof(T)), 64);
        return p;
    }
};

// ---- forward --------------------------------------------------------------------------------------------------------

template <class W>
struct ForwardTiles {
    using Word = typename W::Word;
    int64_t ld_words, ld_d;  // strides of a row of D values: in words, and one value to a word
    Word *kt, *v;            // keys transposed, values zipped
    Word* q;                 // (group, kBlock) rows
    float *o, *max, *sum;    // (group, kBlock) running output, maximum and sum of exponentials
    float* s;                // (kTileRows) scores
    Word* p;                 // (kTileRows) rows

    int64_t carve(char* memory, int64_t group, int64_t D) {
        Carver c{memory};
        ld_words = round_up(D / W::kPer, 16) + kPad;
        ld_d = round_up(D, 16) + kPad;
        kt = c.take<Word>(D / W::kPer * kKeyStride);
        v = c.take<Word>(kBlock / W::kPer * ld_d);
        q = c.take<Word>(group * kBlock * ld_words);
        o = c.take<float>(group * kBlock * ld_d);
        max = c.take<float>(group * kBlock);
        sum = c.take<float>(group * kBlock);
        s = c.take<float>(kTileRows * kKeyStride);
        p = c.take<Word>(kTileRows * kKeyStride);
        return c.used;
    }
};

// Online softmax of one row of n scores (whole vectors) of which those from `hidden` to `visible`, at least one, count:
// p gets the exponentials, zero before and after them. Returns what earlier sums are to be multiplied by.
template <class W>
RZ_INLINE float softmax_row(typename W::Word* p, float* s, int64_t n, int64_t hidden, int64_t visible, float scale,
                            float& running_max, float& running_sum) {
    Vec maxima = splat(-__builtin_inff());
    for (int64_t c = 0; c < n; c += kLanes) {
        Vec x = load(s + c);
        if (c + kLanes > visible || c < hidden) {
            if (c + kLanes > visible) x = lane_numbers() < float(visible - c) ? x : splat(-__builtin_inff());
            if (c < hidden) x = lane_numbers() < float(hidden - c) ? splat(-__builtin_inff()) : x;
            store(s + c, x);
        }
        maxima = larger(x, maxima);
    }
    const float block_max = max_of(maxima) * scale, max = block_max > running_max ? block_max : running_max;
    Vec sums{};
    for (int64_t c = 0; c < n; c += kLanes) {
        const Vec x = load(s + c);
        Vec e = exp(x * scale - max);
        if (c + kLanes > visible || c < hidden) e = x == -__builtin_inff() ? Vec{} : e;
        sums += e;
        write_rows_layout<W>(p, c, e);
    }
    const float correction = running_max == max ? 1.0f : exp(splat(running_max - max))[0];
    running_sum = running_sum * correction + sum_of(sums);
    running_max = max;
    return correction;
}

// One strip of queries against one block of keys. `position` is the first query's, relative to the block's first key.
template <class W>
void forward_strip(const ForwardTiles<W>& t, int64_t row, int64_t position, const Hidden& hidden, int64_t valid,
                   int64_t keys, int64_t D, float scale) {
    const int64_t n = least(keys, position + valid);  // keys that the strip's last query sees
    tile_strip<W>(t.s, kKeyStride, t.q + row * t.ld_words, t.ld_words, 1, t.kt, kKeyStride, n, D / W::kPer, false,
                  valid);
    const int64_t columns = round_up(n, kLanes), ld_p = kKeyStride / W::kPer;
    float* o = t.o + row * t.ld_d;
    for (int64_t r = 0; r < kTileRows; ++r) {
        const int64_t visible = r < valid ? least(keys, position + r + 1) : 0, before = r < valid ? hidden(r) : 0;
        if (visible <= before) {
            for (int64_t c = 0; c < columns; c += kLanes) write_rows_layout<W>(t.p + r * ld_p, c, Vec{});
            continue;
        }
        const float correction = softmax_row<W>(t.p + r * ld_p, t.s + r * kKeyStride, columns, before, visible, scale,
                                                t.max[row + r], t.sum[row + r]);
        if (correction != 1.0f)
            for (int64_t d = 0; d < D; d += kLanes) store(o + r * t.ld_d + d, load(o + r * t.ld_d + d) * correction);
    }
    tile_strip<W>(o, t.ld_d, t.p, ld_p, 1, t.v, t.ld_d, D, ceil_div(n, W::kPer), true, valid);
}

template <class T, class W>
void forward_block(const AttentionForward& a, float* largest, int64_t b, int64_t kv, int64_t q0) {
    const AttentionShape& s = a.shape;
    const int64_t group = s.H / s.K, D = s.D;
    ForwardTiles<W> t;
    t.carve(static_cast<char*>(thread_scratch<2>(t.carve(nullptr, group, D))), group, D);

    const int64_t rows = least(kBlock, s.Tq - q0);
    const int64_t offset = s.offset() + q0;  // of the block's first query, counted from key 0
    for (int64_t g = 0; g < group; ++g)
        pack_rows<W>(t.q + g * kBlock * t.ld_words, t.ld_words,
                     at<T>(a.q, s.q_batch, s.q_row, D, b, q0, kv * group + g), s.q_row, rows, round_up(rows, kTileRows),
                     D);
    for (int64_t g = 0; g < group; ++g) {
        for (int64_t i = 0; i < round_up(rows, kTileRows) * t.ld_d; i += kLanes)
            store(t.o + g * kBlock * t.ld_d + i, Vec{});
        for (int64_t r = 0; r < rows; ++r) t.max[g * kBlock + r] = -__builtin_inff(), t.sum[g * kBlock + r] = 0;
    }

    const int64_t first_block = hidden_keys(s, b, q0, 0)(0) / kBlock;
    for (int64_t k0 = first_block * kBlock; k0 < least(offset + rows, s.Tk); k0 += kBlock) {
        const int64_t keys = least(kBlock, s.Tk - k0);
        pack_transposed<W>(t.kt, at<T>(a.k, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, keys, D);
        pack_zipped<W>(t.v, t.ld_d, at<T>(a.v, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, keys, kBlock, D);
        for (int64_t g = 0; g < group; ++g)
            for (int64_t r = 0; r < rows; r += kTileRows) {
                const int64_t position = offset + r - k0, valid = least(kTileRows, rows - r);
                const Hidden hidden = hidden_keys(s, b, q0 + r, k0);
                if (position + valid > 0 && hidden(0) < keys)
                    forward_strip<W>(t, g * kBlock + r, position, hidden, valid, keys, D, s.scale);
            }
    }

    for (int64_t g = 0; g < group; ++g) {
        const int64_t h = kv * group + g;
        const float *max = t.max + g * kBlock, *sum = t.sum + g * kBlock;
        for_vectors(rows, [&](int64_t r, auto lanes) RZ_LAMBDA {
            store(a.lse + (b * s.H + h) * s.Tq + q0 + r, load(max + r, lanes) + log(load(sum + r, lanes)), lanes);
            if (largest) store(largest + (b * s.H + h) * s.Tq + q0 + r, load(max + r, lanes), lanes);
        });
        for (int64_t r = 0; r < rows; ++r) {
            T* o = at<T>(a.o, s.o_batch, s.o_row, D, b, q0 + r, h);
            const float* from = t.o + (g * kBlock + r) * t.ld_d;
            const bool sees_none = sum[r] == 0;
            if (sees_none) a.lse[(b * s.H + h) * s.Tq + q0 + r] = -__builtin_inff();
            const float inverse = sees_none ? 0.0f : 1.0f / sum[r];
            for_vectors(D, [&](int64_t d, auto lanes) RZ_LAMBDA { store(o + d, load(from + d) * inverse, lanes); });
        }
    }
}

// Few queries, as when text is generated: packing would cost more than the products.
template <class T>
void forward_row(const AttentionForward& a, float* largest, int64_t b, int64_t h, int64_t t) {
    const AttentionShape& s = a.shape;
    const int64_t D = s.D, keys = s.Tk - s.Tq + t + 1, kv = h / (s.H / s.K);
    float* p = static_cast<float*>(thread_scratch<2>(4 * (keys + D)));
    float* sum_v = p + keys;
    const T* q = at<T>(a.q, s.q_batch, s.q_row, D, b, t, h);
    float max = -__builtin_inff();
    for (int64_t j = 0; j < keys; ++j) {
        const T* k = at<T>(a.k, s.kv_batch, s.kv_row, D, b, j, kv);
        Vec dots{};
        for_vectors(D, [&](int64_t d, auto lanes) RZ_LAMBDA { dots += load(q + d, lanes) * load(k + d, lanes); });
        p[j] = sum_of(dots) * s.scale;
        max = p[j] > max ? p[j] : max;
    }
    Vec sums{};
    for_vectors(keys, [&](int64_t j, auto lanes) RZ_LAMBDA {
        Vec e = exp(load(p + j, lanes) - max);
        store(p + j, e, lanes);
        sums += load(p + j, lanes);  // zeros beyond the end
    });
    for (int64_t d = 0; d < D; ++d) sum_v[d] = 0;
    for (int64_t j = 0; j < keys; ++j) {
        const T* v = at<T>(a.v, s.kv_batch, s.kv_row, D, b, j, kv);
        for_vectors(D, [&](int64_t d, auto lanes)
                           RZ_LAMBDA { store(sum_v + d, load(sum_v + d, lanes) + p[j] * load(v + d, lanes), lanes); });
    }
    const float sum = sum_of(sums);
    T* o = at<T>(a.o, s.o_batch, s.o_row, D, b, t, h);
    for_vectors(D, [&](int64_t d, auto lanes) RZ_LAMBDA { store(o + d, load(sum_v + d, lanes) / sum, lanes); });
    a.lse[(b * s.H + h) * s.Tq + t] = max + __builtin_logf(sum);
    if (largest) largest[(b * s.H + h) * s.Tq + t] = max;
}

template <class T, class W>
void forward_t(const AttentionForward& a, float* largest) {
    const AttentionShape& s = a.shape;
    if (s.Tq < s.Tk && s.Tq <= 4 && s.q_at < 0 && !s.first_key) {
#pragma omp parallel for collapse(3) schedule(static) if (s.B * s.H * s.Tq * s.Tk * s.D >= 4 * kSerialBelow)
        for (int64_t b = 0; b < s.B; ++b)
            for (int64_t h = 0; h < s.H; ++h)
                for (int64_t t = 0; t < s.Tq; ++t) forward_row<T>(a, largest, b, h, t);
        return;
    }
    const int64_t blocks = ceil_div(s.Tq, kBlock), heads = s.B * s.K;
#pragma omp parallel for schedule(dynamic) if (s.B * s.H * s.Tq * s.Tk * s.D >= 4 * kSerialBelow)
    for (int64_t i = 0; i < blocks * heads; ++i) {
        const int64_t block = blocks - 1 - i / heads, head = i % heads;  // the longest first
        forward_block<T, W>(a, largest, head / s.K, head % s.K, block * kBlock);
    }
}

#ifdef RZ_SIMD_BF16
void attention_largest(const AttentionLargest& a) { forward_t<bf16, Bf16Word>(a.forward, a.largest); }
#else
void attention_largest(const AttentionLargest& a) {
    with_dtype(a.forward.shape.dtype, [&]<class T>() { forward_t<T, Fp32Word>(a.forward, a.largest); });
}
#endif

// ---- backward -------------------------------------------------------------------------------------------------------
//
// With P = exp(scale q k^T - lse) and delta = rowsum(do * o):
//   dv = P^T do,  dS = P * (do v^T - delta) * scale,  dq = dS k,  dk = dS^T q

template <class W>
struct BackwardTiles {
    using Word = typename W::Word;
    int64_t ld_words, ld_d;
    Word *kt, *vt, *k_zip;           // one block of keys and values
    Word *q, *d_o, *q_zip, *do_zip;  // one block of queries
    float *s, *dp;                   // (kTileRows) scores and gradient of the probabilities
    Word *p_zip, *ds_zip, *ds;       // (kBlock) P and dS
    float *dk, *dv;                  // (kBlock) sums
    float* dq;                       // (group, Tq padded) sums

    int64_t carve(char* memory, int64_t dq_rows, int64_t D) {
        Carver c{memory};
        ld_words = round_up(D / W::kPer, 16) + kPad;
        ld_d = round_up(D, 16) + kPad;
        kt = c.take<Word>(D / W::kPer * kKeyStride);
        vt = c.take<Word>(D / W::kPer * kKeyStride);
        k_zip = c.take<Word>(kBlock / W::kPer * ld_d);
        q = c.take<Word>(kBlock * ld_words);
        d_o = c.take<Word>(kBlock * ld_words);
        q_zip = c.take<Word>(kBlock / W::kPer * ld_d);
        do_zip = c.take<Word>(kBlock / W::kPer * ld_d);
        s = c.take<float>(W::kPer * kTileRows * kKeyStride);
        dp = c.take<float>(W::kPer * kTileRows * kKeyStride);
        p_zip = c.take<Word>(kBlock / W::kPer * kKeyStride);
        ds_zip = c.take<Word>(kBlock / W::kPer * kKeyStride);
        ds = c.take<Word>(kBlock * kKeyStride / W::kPer);
        dk = c.take<float>(kBlock * ld_d);
        dv = c.take<float>(kBlock * ld_d);
        dq = c.take<float>(dq_rows * ld_d);
        return c.used;
    }
};

// P and dS of one strip of queries, from its scores t.s and t.dp; both are zero where the mask hides the key, up to the
// end of the block.
template <class W>
void probabilities(const BackwardTiles<W>& t, int64_t row, int64_t position, const Hidden& hidden, int64_t valid,
                   int64_t keys, float scale, const float* lse, const float* delta) {
    for (int64_t r = 0; r < kTileRows; r += W::kPer)
        for (int64_t c = 0; c < kBlock; c += kLanes) {
            Vec p[W::kPer], ds[W::kPer];
            for (int64_t i = 0; i < W::kPer; ++i) {
                const int64_t visible = r + i < valid ? least(keys, position + r + i + 1) - c : 0;
                const int64_t before = r + i < valid ? hidden(r + i) - c : 0;
                p[i] = ds[i] = Vec{};
                if (visible <= 0 || before >= kLanes) continue;
                const int64_t at = (r + i) * kKeyStride + c;
                const Vec e = exp(load(t.s + at) * scale - lse[r + i]);
                const Vec gradient = e * (load(t.dp + at) - delta[r + i]) * scale;
                p[i] = e, ds[i] = gradient;
                if (visible < kLanes) {
                    const auto seen = lane_numbers() < float(visible);
                    p[i] = seen ? p[i] : Vec{}, ds[i] = seen ? ds[i] : Vec{};
                }
                if (before > 0) {
                    const auto unseen = lane_numbers() < float(before);
                    p[i] = unseen ? Vec{} : p[i], ds[i] = unseen ? Vec{} : ds[i];
                }
            }
            if constexpr (W::kPer == 1) {
                store(t.p_zip + (row + r) * kKeyStride + c, p[0]);
                store(t.ds_zip + (row + r) * kKeyStride + c, ds[0]);
            }
#ifdef RZ_SIMD_BF16
            if constexpr (W::kPer == 2) {
                for (int64_t i = 0; i < 2; ++i) write_rows_layout<W>(t.ds + (row + r + i) * (kKeyStride / 2), c, ds[i]);
                write_zipped_layout(t.p_zip + (row + r) / 2 * kKeyStride, c, p[0], p[1]);
                write_zipped_layout(t.ds_zip + (row + r) / 2 * kKeyStride, c, ds[0], ds[1]);
            }
#endif
        }
}

// One block of queries of one head against the block of keys at k0 that is packed in t.
template <class T, class W>
void backward_pair(const AttentionBackward& a, const BackwardTiles<W>& t, int64_t b, int64_t h, int64_t q0, int64_t k0,
                   float* dq, bool want_dq, bool want_dkv) {
    const AttentionShape& s = a.shape;
    const int64_t D = s.D, rows = least(kBlock, s.Tq - q0), keys = least(kBlock, s.Tk - k0);
    const int64_t padded = round_up(rows, kTileRows);
    const T* q = at<T>(a.q, s.q_batch, s.q_row, D, b, q0, h);
    const T* d_o = at<T>(a.d_o, s.o_batch, s.o_row, D, b, q0, h);
    const float* lse = a.lse + (b * s.H + h) * s.Tq + q0;
    const float* delta = static_cast<const float*>(a.workspace) + (b * s.H + h) * s.Tq + q0;
    pack_rows<W>(t.q, t.ld_words, q, s.q_row, rows, padded, D);
    pack_rows<W>(t.d_o, t.ld_words, d_o, s.o_row, rows, padded, D);
    if (want_dkv) {
        pack_zipped<W>(t.q_zip, t.ld_d, q, s.q_row, rows, padded, D);
        pack_zipped<W>(t.do_zip, t.ld_d, d_o, s.o_row, rows, padded, D);
    }
    const typename W::Word* ds = W::kPer == 1 ? t.ds_zip : t.ds;
    for (int64_t r = 0; r < rows; r += kTileRows) {
        const int64_t position = s.offset() + q0 + r - k0, valid = least(kTileRows, rows - r);
        const int64_t n = most(least(keys, position + valid), 0);
        tile_strip<W>(t.s, kKeyStride, t.q + r * t.ld_words, t.ld_words, 1, t.kt, kKeyStride, n, D / W::kPer, false,
                      valid);
        tile_strip<W>(t.dp, kKeyStride, t.d_o + r * t.ld_words, t.ld_words, 1, t.vt, kKeyStride, n, D / W::kPer, false,
                      valid);
        probabilities<W>(t, r, position, hidden_keys(s, b, q0 + r, k0), valid, keys, s.scale, lse + r, delta + r);
        if (want_dq)
            tile_strip<W>(dq + r * t.ld_d, t.ld_d, ds + r * (kKeyStride / W::kPer), kKeyStride / W::kPer, 1, t.k_zip,
                          t.ld_d, D, ceil_div(n, W::kPer), true, valid);
    }
    if (!want_dkv) return;
    for (int64_t key = 0; key < keys; key += kTileRows) {
        const int64_t first = most(k0 + key - s.offset() - q0, 0) / W::kPer;  // earlier queries see none of these keys
        const int64_t depth = ceil_div(rows, W::kPer) - first;
        if (depth <= 0) break;
        const int64_t valid = least(kTileRows, keys - key);
        tile_strip<W>(t.dv + key * t.ld_d, t.ld_d, t.p_zip + first * kKeyStride + key, 1, kKeyStride,
                      t.do_zip + first * t.ld_d, t.ld_d, D, depth, true, valid);
        tile_strip<W>(t.dk + key * t.ld_d, t.ld_d, t.ds_zip + first * kKeyStride + key, 1, kKeyStride,
                      t.q_zip + first * t.ld_d, t.ld_d, D, depth, true, valid);
    }
}

template <class T>
void write_rows(T* to, int64_t stride, const float* from, int64_t ld, int64_t rows, int64_t D) {
    for (int64_t r = 0; r < rows; ++r)
        for_vectors(
            D, [&](int64_t d, auto lanes) RZ_LAMBDA { store(to + r * stride + d, load(from + r * ld + d), lanes); });
}
inline void read_rows(float* to, int64_t ld, const float* from, int64_t stride, int64_t rows, int64_t D) {
    for (int64_t r = 0; r < rows; ++r)
        for_vectors(
            D, [&](int64_t d, auto lanes) RZ_LAMBDA { store(to + r * ld + d, load(from + r * stride + d, lanes)); });
}

// Queries [q_begin, q_end) against keys [k_begin, k_end) of one key/value head; both begin at block boundaries. dq is
// complete if the keys are all there, dk and dv if the queries are.
template <class T, class W>
void backward_part(const AttentionBackward& a, int64_t b, int64_t kv, int64_t q_begin, int64_t q_end, int64_t k_begin,
                   int64_t k_end, bool want_dq, bool want_dkv) {
    const AttentionShape& s = a.shape;
    const int64_t group = s.H / s.K, D = s.D, dq_rows = round_up(q_end - q_begin, kBlock);
    BackwardTiles<W> t;
    const int64_t dq_total = want_dq ? group * dq_rows : 0;
    t.carve(static_cast<char*>(thread_scratch<2>(t.carve(nullptr, dq_total, D))), dq_total, D);
    for (int64_t i = 0; i < dq_total * t.ld_d; i += kLanes) store(t.dq + i, Vec{});

    for (int64_t k0 = k_begin; k0 < k_end; k0 += kBlock) {
        const int64_t keys = least(kBlock, s.Tk - k0);
        const T* k = at<T>(a.k, s.kv_batch, s.kv_row, D, b, k0, kv);
        const T* v = at<T>(a.v, s.kv_batch, s.kv_row, D, b, k0, kv);
        pack_transposed<W>(t.kt, k, s.kv_row, keys, D);
        pack_transposed<W>(t.vt, v, s.kv_row, keys, D);
        if (want_dq) pack_zipped<W>(t.k_zip, t.ld_d, k, s.kv_row, keys, kBlock, D);
        if (want_dkv)
            for (int64_t i = 0; i < kBlock * t.ld_d; i += kLanes) store(t.dk + i, Vec{}), store(t.dv + i, Vec{});
        if (want_dkv && a.sum_dkv) {
            read_rows(t.dk, t.ld_d, at<float>(a.dk, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, keys, D);
            read_rows(t.dv, t.ld_d, at<float>(a.dv, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, keys, D);
        }
        const int64_t first_block = most(k0 - s.offset(), 0) / kBlock;  // of queries that see these keys
        for (int64_t g = 0; g < group; ++g)
            for (int64_t q0 = most(q_begin, first_block * kBlock); q0 < q_end; q0 += kBlock) {
                if (hidden_keys(s, b, q0, k0)(0) >= keys) break;  // nor do later queries see any of these
                backward_pair<T, W>(a, t, b, kv * group + g, q0, k0, t.dq + (g * dq_rows + q0 - q_begin) * t.ld_d,
                                    want_dq, want_dkv);
            }
        if (!want_dkv) continue;
        if (a.sum_dkv) {
            write_rows(at<float>(a.dk, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, t.dk, t.ld_d, keys, D);
            write_rows(at<float>(a.dv, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, t.dv, t.ld_d, keys, D);
            continue;
        }
        write_rows(at<T>(a.dk, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, t.dk, t.ld_d, keys, D);
        write_rows(at<T>(a.dv, s.kv_batch, s.kv_row, D, b, k0, kv), s.kv_row, t.dv, t.ld_d, keys, D);
    }
    if (want_dq)
        for (int64_t g = 0; g < group; ++g)
            write_rows(at<T>(a.dq, s.q_batch, s.q_row, D, b, q_begin, kv * group + g), s.q_row,
                       t.dq + g * dq_rows * t.ld_d, t.ld_d, q_end - q_begin, D);
}

template <class T>
void row_sums(const AttentionBackward& a) {
    const AttentionShape& s = a.shape;
    float* delta = static_cast<float*>(a.workspace);
#pragma omp parallel for collapse(2) schedule(static) if (s.B * s.H * s.Tq * s.D >= kSerialBelow)
    for (int64_t b = 0; b < s.B; ++b)
        for (int64_t t = 0; t < s.Tq; ++t)
            for (int64_t h = 0; h < s.H; ++h) {
                const T* o = at<T>(a.o, s.o_batch, s.o_row, s.D, b, t, h);
                const T* d_o = at<T>(a.d_o, s.o_batch, s.o_row, s.D, b, t, h);
                Vec sums{};
                for_vectors(
                    s.D, [&](int64_t d, auto lanes) RZ_LAMBDA { sums += load(o + d, lanes) * load(d_o + d, lanes); });
                delta[(b * s.H + h) * s.Tq + t] = sum_of(sums);
            }
}

template <class T, class W>
void backward_t(const AttentionBackward& a) {
    const AttentionShape& s = a.shape;
    row_sums<T>(a);
    const int64_t heads = s.B * s.K, q_blocks = ceil_div(s.Tq, kBlock), blocks = ceil_div(most(s.Tq, s.Tk), kBlock);
    const bool parallel = s.B * s.H * s.Tq * s.Tk * s.D >= 4 * kSerialBelow;
    if (!parallel || blocks == 1 || heads >= max_threads()) {
#pragma omp parallel for schedule(dynamic) if (parallel)
        for (int64_t i = 0; i < heads; ++i) backward_part<T, W>(a, i / s.K, i % s.K, 0, s.Tq, 0, s.Tk, true, true);
        return;
    }
    // Too few heads to go round: blocks of keys and blocks of queries, 7 products for 5. The same sums in the same
    // order.
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < 2 * heads * blocks; ++i) {
        const int64_t head = i / 2 % heads, j = i / 2 / heads;
        const int64_t k0 = j * kBlock, q0 = (q_blocks - 1 - j) * kBlock;  // the longest first
        if (i % 2 == 0 && k0 < s.Tk)
            backward_part<T, W>(a, head / s.K, head % s.K, 0, s.Tq, k0, least(k0 + kBlock, s.Tk), false, true);
        if (i % 2 == 1 && q0 >= 0)
            backward_part<T, W>(a, head / s.K, head % s.K, q0, least(q0 + kBlock, s.Tq), 0,
                                least(s.offset() + q0 + kBlock, s.Tk), true, false);
    }
}

#ifdef RZ_SIMD_BF16
void attention_backward(const AttentionBackward& a) { backward_t<bf16, Bf16Word>(a); }
#else
void attention_backward(const AttentionBackward& a) {
    with_dtype(a.shape.dtype, [&]<class T>() { backward_t<T, Fp32Word>(a); });
}
#endif

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

// The pass for CPUs with bf16 instructions holds bf16 alone.
void attention_largest_cpu(const AttentionLargest& all) {
    const AttentionForward& a = all.forward;
    const AttentionShape& s = a.shape;
    s.dtype == DType::bf16 ? RZ_SIMD_CALL(attention_largest, all) : RZ_SIMD_CALL_PLAIN(attention_largest, all);
    for (int64_t b = 0; a.amax && b < s.B; ++b)
        join_magnitudes(a.amax, s.dtype, static_cast<char*>(a.o) + b * s.o_batch * size_of(s.dtype), s.Tq, s.H * s.D,
                        s.o_row);
}
void attention_forward_cpu(const AttentionForward& a) { attention_largest_cpu({a, nullptr}); }
void attention_backward_cpu(const AttentionBackward& a) {
    a.shape.dtype == DType::bf16 ? RZ_SIMD_CALL(attention_backward, a) : RZ_SIMD_CALL_PLAIN(attention_backward, a);
    if (a.back.x) rope_cpu(a.back);
}

}  // namespace rz
#endif
