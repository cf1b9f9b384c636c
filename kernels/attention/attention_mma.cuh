#pragma once
// Pieces of the tensor-core attention kernels: rows of D 16-bit elements in shared memory, and the fragments of
// mma.m16n8k16 (layouts in ptx.cuh) taken from them; what the backward kernels know of each query.

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/rotate.cuh"

namespace rz {

// The workspace of the backward pass, two values per query: lse2 = lse * log2(e), and delta, the row's sum of d_o * o.
// Both are (B, H, T rounded up to 64) f32, one after the other, zero beyond T.
struct BackwardStats {
    int64_t T_padded;
    float* lse2;
    float* delta;

    __host__ __device__ __forceinline__ explicit BackwardStats(const AttentionBackward& a)
        : T_padded((a.shape.Tq + 63) / 64 * 64),
          lse2(static_cast<float*>(a.workspace)),
          delta(lse2 + a.shape.B * a.shape.H * T_padded) {}
    // head: batch * H + head
    __device__ __forceinline__ int64_t row(int64_t head, int64_t t) const { return head * T_padded + t; }
};

// Says if this code may have kernels that only a GPU of compute capability 7.5 runs, whose blocks take up to 64 KiB of
// shared memory, and those that it can't run.
#if defined(__CUDA_ARCH__)
constexpr bool kHas64KiB = __CUDA_ARCH__ < 800, kHasMore = !kHas64KiB;
#else
constexpr bool kHas64KiB = true, kHasMore = true;
#endif

// First value of a running maximum: below every score, and finite, so that a row that has seen no key yet, and then a
// tile of hidden ones, still has a difference of maxima. Times any scale up to 128 it stays finite.
constexpr float kNoScore = -0x1p120f;

// The first key that query t of a batch row sees, counted from key 0 and at least 0; t may lie beyond the last query.
__device__ __forceinline__ int first_key(const AttentionShape& s, int64_t batch, int t) {
    if (s.first_key == nullptr) return 0;
    return max(0, int(s.first_key[batch * s.first_key_batch + min(t, int(s.Tq) - 1)] - s.k_at));
}
// How many queries see key `last` or an earlier one as far as documents go: those behind them start their documents
// later. All, where no mask is.
__device__ __forceinline__ int queries_before(const AttentionShape& s, int64_t batch, int last) {
    if (s.first_key == nullptr) return int(s.Tq);
    int some = 0, none = int(s.Tq);  // every query before `some` does, none from `none` on
    while (some < none) {
        const int middle = some + (none - some) / 2;
        if (first_key(s, batch, middle) <= last)
            some = middle + 1;
        else
            none = middle;
    }
    return some;
}

// A row's sum of exponentials as a factor of its output; 0 for a row that sees no key.
__device__ __forceinline__ float inverse_of(float sum) { return sum == 0 ? 0.0f : 1.0f / sum; }

// Rows of D elements in 16-byte chunks, placed so that the eight rows that ldmatrix reads at one chunk lie in different
// banks: by an XOR where a row is a multiple of 128 bytes, else by an odd number of chunks per row.
template <int D>
struct SmemRows {
    static_assert(D % 16 == 0);
    static constexpr int kChunks = D / 8;
    static constexpr bool kXor = kChunks % 8 == 0;
    static constexpr int kStride = kXor ? kChunks : kChunks | 1;

    static constexpr int bytes(int rows) { return rows * kStride * 16; }
    __device__ static __forceinline__ int offset(int row, int chunk) {
        return (row * kStride + (kXor ? chunk ^ (row & 7) : chunk)) * 16;
    }
};

// Starts the copy of kRows rows, of which the first `count` exist; the others become zero.
template <class T, int D, int kRows>
__device__ __forceinline__ void copy_rows(unsigned char* tile, const T* source, int64_t row_stride, int count,
                                          int threads) {
    using Rows = SmemRows<D>;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < kRows * Rows::kChunks; i += threads) {
        const int row = i / Rows::kChunks, chunk = i % Rows::kChunks;
        const bool exists = row < count;
        ptx::cp_async16(tile + Rows::offset(row, chunk), source + (exists ? row * row_stride : int64_t(0)) + chunk * 8,
                        exists ? 16 : 0);
    }
}

// Address of a lane's 16 bytes for ldmatrix: row `row + lane_row` of the tile at smem + tile, chunk 2 * step + half.
// `row` is a multiple of 8. The XOR is taken after the tile's offset is added, so that the compiler cannot keep the
// eight steps' addresses in registers across tiles: the accumulators need them.
template <int D>
__device__ __forceinline__ const unsigned char* lane_address(const unsigned char* smem, int tile, int row, int lane_row,
                                                             int half, int step) {
    using Rows = SmemRows<D>;
    if constexpr (Rows::kXor) {
        const int lane_offset = (lane_row * Rows::kStride + (half ^ (lane_row & 7))) * 16;
        return smem + ((tile + lane_offset) ^ (32 * step)) + row * Rows::kStride * 16;
    } else {
        return smem + tile + ((row + lane_row) * Rows::kStride + 2 * step + half) * 16;
    }
}

// A: 16 rows from `row`, elements 16 step .. + 15
template <int D>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const unsigned char* smem, int tile, int row, int step) {
    const int lane = int(threadIdx.x) % 32;
    ptx::ldmatrix_x4(a, lane_address<D>(smem, tile, row, lane % 16, lane / 16, step));
}

// B of two neighbouring n-tiles, where row n of the tile holds column n of B: 16 rows from `row`, elements 16 step ..
// + 15.
template <int D>
__device__ __forceinline__ void load_b(uint32_t (&b0)[2], uint32_t (&b1)[2], const unsigned char* smem, int tile,
                                       int row, int step) {
    const int lane = int(threadIdx.x) % 32;
    uint32_t r[4];
    ptx::ldmatrix_x4(r, lane_address<D>(smem, tile, row, lane % 8 + lane / 16 * 8, lane / 8 % 2, step));
    b0[0] = r[0], b0[1] = r[1], b1[0] = r[2], b1[1] = r[3];
}

// B of two neighbouring n-tiles, where row k of the tile is row k of B: 16 rows from `row`, elements 16 pair .. + 15.
template <int D>
__device__ __forceinline__ void load_b_trans(uint32_t (&b0)[2], uint32_t (&b1)[2], const unsigned char* smem, int tile,
                                             int row, int pair) {
    const int lane = int(threadIdx.x) % 32;
    uint32_t r[4];
    ptx::ldmatrix_x4_trans(r, lane_address<D>(smem, tile, row, lane % 16, lane / 16, pair));
    b0[0] = r[0], b0[1] = r[1], b1[0] = r[2], b1[1] = r[3];
}

template <class T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        ptx::mma_m16n8k16_bf16(c, a, b, c);
    else
        ptx::mma_m16n8k16_fp16(c, a, b, c);
}

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    uint32_t bits;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &pair, 4);
    } else {
        const __half2 pair = __floats2half2_rn(low, high);
        memcpy(&bits, &pair, 4);
    }
    return bits;
}

// Two neighbouring accumulators (16 x 16) as the A operand of the next product
template <class T>
__device__ __forceinline__ void to_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack_pair<T>(left[0], left[1]);
    a[1] = pack_pair<T>(left[2], left[3]);
    a[2] = pack_pair<T>(right[0], right[1]);
    a[3] = pack_pair<T>(right[2], right[3]);
}

// Writes a warp's accumulators (16 rows, D columns; rows g and g+8 times scale[0] and scale[1]) to its rows of a tile.
template <class T, int D>
__device__ __forceinline__ void accumulators_to_tile(unsigned char* tile, int row, const float (&acc)[D / 8][4],
                                                     float scale_low, float scale_high) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<uint32_t*>(tile + SmemRows<D>::offset(row + g, n) + 4 * pair) =
            pack_pair<T>(acc[n][0] * scale_low, acc[n][1] * scale_low);
        *reinterpret_cast<uint32_t*>(tile + SmemRows<D>::offset(row + g + 8, n) + 4 * pair) =
            pack_pair<T>(acc[n][2] * scale_high, acc[n][3] * scale_high);
    }
}

// A warp adds its accumulators times `scale` to 16 rows of fp32, of which `count` exist.
template <int D>
__device__ __forceinline__ void add_rows(float* out, int64_t row_stride, int count, const float (&acc)[D / 8][4],
                                         float scale) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (g + 8 * h >= count) continue;
        float* row = out + (g + 8 * h) * row_stride + 2 * pair;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            row[8 * n] += acc[n][2 * h] * scale;
            row[8 * n + 1] += acc[n][2 * h + 1] * scale;
        }
    }
}

// Calls f(row, chunk) for the chunks of kRows rows of a tile, one lane each. Eight lanes, whose 16-byte reads go
// together, take eight chunks of one row; what a row has beyond a multiple of eight (kRest) they take from rows kRest
// apart: an odd number of chunks per row puts those into different banks.
template <int D, int kRows, class F>
__device__ __forceinline__ void for_chunks(uint32_t lane, const F& f) {
    using Rows = SmemRows<D>;
    constexpr int kRest = Rows::kChunks % 8, kWhole = Rows::kChunks - kRest;
    for (int i = int(lane); i < kRows * kWhole; i += 32) f(i / kWhole, i % kWhole);
    if constexpr (kRest > 0) {
        static_assert(kRows % 8 == 0 && 8 % kRest == 0 && !Rows::kXor);
        for (int i = int(lane); i < kRows * kRest; i += 32) {
            const int group = i / 8, member = i % 8 / kRest;
            f(group / kRest * 8 + member * kRest + group % kRest, kWhole + i % kRest);
        }
    }
}

// RoPE's backward pass over kRows of a warp's rows of a tile, of which `count` exist; the first is row t of the batch's
template <class T, int D, int kRows>
__device__ __forceinline__ void rotate_tile_rows(unsigned char* tile, int row, int count, const Rope& back, int batch,
                                                 int t) {
    constexpr int kPairs = D / 16;  // of chunks
    uint32_t lane = threadIdx.x % 32;
    ptx::forget(lane);  // as below
#pragma unroll 1
    for (int i = int(lane); i < min(count, kRows) * kPairs; i += 32) {
        const int r = i / kPairs, chunk = i % kPairs;
        const int64_t position = back.positions ? back.positions[batch * back.T + t + r] : back.first_position + t + r;
        Pack<T, 8> low, high;
        T* const at_low = reinterpret_cast<T*>(tile + SmemRows<D>::offset(row + r, chunk));
        T* const at_high = reinterpret_cast<T*>(tile + SmemRows<D>::offset(row + r, chunk + kPairs));
        low.load(at_low), high.load(at_high);
        float x[8], y[8], c[8], s[8];
        load(c, back.cos_table + position * (D / 2) + 8 * chunk);
        load(s, back.sin_table + position * (D / 2) + 8 * chunk);
#pragma unroll
        for (int k = 0; k < 8; ++k) s[k] = -s[k];
        low.to(x), high.to(y);
        rotate(x, y, c, s);
        store(at_low, x), store(at_high, y);
    }
    __syncwarp();
}

// A warp stores kRows of its rows of a tile, of which `count` exist.
template <class T, int D, int kRows>
__device__ __forceinline__ void store_tile_rows(T* out, int64_t row_stride, int count, const unsigned char* tile,
                                                int row, uint32_t* amax = nullptr) {
    const auto at = [&](int r, int chunk) {
        return reinterpret_cast<const uint4*>(tile + SmemRows<D>::offset(row + r, chunk));
    };
    uint32_t lane = threadIdx.x % 32;
    ptx::forget(lane);  // or what follows from it would be kept in registers by a kernel that comes here more than once
    for_chunks<D, kRows>(lane, [&](int r, int chunk) {
        if (r < count) *reinterpret_cast<uint4*>(out + r * row_stride + chunk * 8) = *at(r, chunk);
    });
    if (amax == nullptr) return;
    uint32_t most = 0;  // read again: a condition in the loop above makes nvcc part its store into four
    for_chunks<D, kRows>(lane, [&](int r, int chunk) {
        if (r >= count) return;
        Pack<T, 8> pack;
        pack.words[0] = *at(r, chunk);
        float x[8];
        pack.to(x);
        most = max(most, magnitude_bits(x));
    });
    warp_join<T>(amax, most);
}

// ---- host side

inline int device_attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess)
        fail("attention: the CUDA device does not tell its attribute %d", int(attribute));
    return value;
}

// True: a block of the current device may take that much shared memory.
inline bool has_shared(size_t bytes) {
    return size_t(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) >= bytes;
}

// True: the tensor-core kernels take this shape on the current device, given its pointers.
template <class... P>
bool mma_covers(const AttentionShape& s, const P*... pointers) {
    if (s.dtype == DType::f32 || (s.D != 64 && s.D != 80 && s.D != 96 && s.D != 128)) return false;
    if (s.dtype == DType::bf16 && device_attribute(cudaDevAttrComputeCapabilityMajor) < 8) return false;
    if (!aligned_to(16, pointers...) || s.Tk > 0x7fffff00 || s.offset() + s.Tq > 0x7fffff00) return false;
    return ((s.q_row | s.q_batch | s.kv_row | s.kv_batch | s.o_row | s.o_batch) & 7) == 0;
}

// f.operator()<T, D>()
template <class F>
void with_mma_shape(const AttentionShape& s, F&& f) {
    const auto with_type = [&]<class T>() {
        if (s.D == 64)
            f.template operator()<T, 64>();
        else if (s.D == 80)
            f.template operator()<T, 80>();
        else if (s.D == 96)
            f.template operator()<T, 96>();
        else
            f.template operator()<T, 128>();
    };
    if (s.dtype == DType::bf16)
        with_type.template operator()<__nv_bfloat16>();
    else
        with_type.template operator()<__half>();
}

}  // namespace rz
