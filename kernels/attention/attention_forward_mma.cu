// Attention forward on tensor cores (sm_75 and later), after FlashAttention-2 (Dao 2023): a block owns 128 queries of
// one head, a warp 32 of them; keys and values stream through two buffers, one barrier per tile, or through one buffer
// and two barriers where two blocks would else not fit on an A100. P stays in registers: the accumulator of q k^T is
// the A operand of p v.
#include "kernels/attention/attention_mma.cuh"

namespace rz {
namespace {

constexpr int kRows = 128, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kWarpRows = kRows / kWarps, kM = kWarpRows / 16;

// Most shared memory of a block where two are to fit into a multiprocessor: 164 KiB (A100), or the 100 KiB of compute
// capability 8.6, 8.9 and 12.x, less the KiB that the system takes of each block. Of 7.5's 64 KiB one block takes most.
constexpr int kWideSmem = 80 << 10, kNarrowSmem = 49 << 10;

// How a tile's keys are cut: 64 of them, or 32 where 64 would leave an SM of 100 KiB one block of four warps.
template <int D, bool kNarrow>
struct Tiles {
    static constexpr int kKeys = kNarrow ? 32 : 64, kMost = kNarrow ? kNarrowSmem : kWideSmem;
    // True: the next tile's keys and values have buffers of their own
    static constexpr bool kDouble = SmemRows<D>::bytes(kRows + 4 * kKeys) <= kMost;
    static constexpr int kBytes = SmemRows<D>::bytes(kRows + (kDouble ? 4 : 2) * kKeys);
    static_assert(kBytes <= kMost);
};
// 64 keys fit twice into 100 KiB.
static_assert(Tiles<64, false>::kBytes <= kNarrowSmem);

// Running maximum (of unscaled scores) and this lane's share of the row sums, for rows g and g + 8 of each 16
struct RowState {
    float top[kM][2], sum[kM][2];
};

template <class T, int D, int kN>
__device__ __forceinline__ void scores(float (&s)[kM][kN][4], const unsigned char* smem, int k, int row) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        uint32_t a[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) load_a<D>(a[m], smem, 0, row + 16 * m, step);
#pragma unroll
        for (int n = 0; n < kN; n += 2) {
            uint32_t b0[2], b1[2];
            load_b<D>(b0, b1, smem, k, 8 * n, step);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                mma<T>(s[m][n], a[m], b0);
                mma<T>(s[m][n + 1], a[m], b1);
            }
        }
    }
}

// `first_hidden`: how many keys of the tile the warp's first row sees; each next row sees one more. `keys` exist.
template <int kN>
__device__ __forceinline__ void apply_mask(float (&s)[kM][kN][4], int first_hidden, int keys) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (8 * n + 2 * pair + e % 2 >= min(first_hidden + 16 * m + g + 8 * (e / 2), keys))
                    s[m][n][e] = -INFINITY;
}

// Hides what comes before the rows' documents. t: the warp's first row; j0: the tile's first key.
template <int kN>
__device__ __forceinline__ void hide_documents(float (&s)[kM][kN][4], const AttentionShape& shape, int64_t batch, int t,
                                               int j0) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int hidden = first_key(shape, batch, t + 16 * m + g + 8 * h) - j0;
#pragma unroll
            for (int n = 0; n < kN; ++n)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; ++e)
                    if (8 * n + 2 * pair + e % 2 < hidden) s[m][n][e] = -INFINITY;
        }
}

// s becomes exp2(scale * (s - new maximum)); state and o are rescaled to the new maximum.
template <int D, int kN>
__device__ __forceinline__ void online_softmax(float (&s)[kM][kN][4], float (&o)[kM][D / 8][4], RowState& state,
                                               float scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float top = state.top[m][h];
#pragma unroll
            for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
            top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
            const float shrink = ptx::ex2((state.top[m][h] - top) * scale), base = top * scale;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < kN; ++n)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; ++e) {
                    s[m][n][e] = ptx::ex2(fmaf(s[m][n][e], scale, -base));
                    sum += s[m][n][e];
                }
            state.sum[m][h] = state.sum[m][h] * shrink + sum;
            state.top[m][h] = top;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) o[m][n][2 * h] *= shrink, o[m][n][2 * h + 1] *= shrink;
        }
}

template <class T, int D, int kN>
__device__ __forceinline__ void add_values(float (&o)[kM][D / 8][4], const float (&p)[kM][kN][4],
                                           const unsigned char* smem, int v) {
#pragma unroll
    for (int step = 0; step < kN / 2; ++step) {
        uint32_t a[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) to_a<T>(a[m], p[m][2 * step], p[m][2 * step + 1]);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b0[2], b1[2];
            load_b_trans<D>(b0, b1, smem, v, 16 * step, n / 2);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                mma<T>(o[m][n], a[m], b0);
                mma<T>(o[m][n + 1], a[m], b1);
            }
        }
    }
}

// Normalises, stores the log-sum-exp, and stores o through the warp's own rows of the query tile.
template <class T, int D>
__device__ __forceinline__ void finish(const AttentionForward& a, float (&o)[kM][D / 8][4], RowState& state,
                                       unsigned char* tile, int row, int t0) {
    const AttentionShape& s = a.shape;
    const int lane = int(threadIdx.x) % 32, g = lane / 4;
    const int64_t head = blockIdx.x, batch = blockIdx.y;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = state.sum[m][h];
            sum += __shfl_xor_sync(kFullWarp, sum, 1);
            sum += __shfl_xor_sync(kFullWarp, sum, 2);
            inverse[h] = inverse_of(sum);
            const int t = t0 + row + 16 * m + g + 8 * h;
            if (lane % 4 == 0 && t < s.Tq)
                a.lse[(batch * s.H + head) * s.Tq + t] = state.top[m][h] * s.scale + logf(sum);
        }
        accumulators_to_tile<T, D>(tile, row + 16 * m, o[m], inverse[0], inverse[1]);
    }
    __syncwarp();
    T* out = static_cast<T*>(a.o) + batch * s.o_batch + int64_t(t0 + row) * s.o_row + head * D;
    store_tile_rows<T, D, kWarpRows>(out, s.o_row, int(s.Tq) - t0 - row, tile, row, a.amax);
}

// Grid (H, B, query tiles), the longest tiles first; the heads of a group are neighbours and share keys in L2.
template <class T, int D, bool kNarrow>
__global__ void __launch_bounds__(kThreads) attention_forward_mma_kernel(AttentionForward a) {
    if constexpr (D > 64 && !kNarrow && !kHasMore) return;
    using Rows = SmemRows<D>;
    constexpr int kKeys = Tiles<D, kNarrow>::kKeys, kN = kKeys / 8;
    constexpr bool kDouble = Tiles<D, kNarrow>::kDouble;
    GPU_DYN_SMEM(smem);
    // The queries, then the keys and values of one or two tiles
    constexpr int kStages = Rows::bytes(kRows), kStage = Rows::bytes(2 * kKeys), kValues = Rows::bytes(kKeys);
    const auto stage_of = [](int tile) { return kStages + (kDouble ? tile % 2 * kStage : 0); };
    const AttentionShape& s = a.shape;
    const int64_t head = blockIdx.x, batch = blockIdx.y, kv_head = head / (s.H / s.K);
    const int t0 = int(gridDim.z - 1 - blockIdx.z) * kRows, offset = int(s.offset());
    const int64_t kv_at = batch * s.kv_batch + kv_head * D;
    const int row = int(threadIdx.x) / 32 * kWarpRows;                     // the warp's first
    const int seen = min(offset + min(t0 + kRows, int(s.Tq)), int(s.Tk));  // keys that the tile's last query sees
    const int tiles = (seen + kKeys - 1) / kKeys, first_tile = min(first_key(s, batch, t0) / kKeys, tiles - 1);
    const int warp_hidden = first_key(s, batch, t0 + row);                       // keys that no row of the warp sees,
    const int warp_hidden_last = first_key(s, batch, t0 + row + kWarpRows - 1);  // and that not all rows do

    const auto fetch = [&](const void* from, int tile, int at) {
        copy_rows<T, D, kKeys>(smem + stage_of(tile) + at,
                               static_cast<const T*>(from) + kv_at + int64_t(tile) * kKeys * s.kv_row, s.kv_row,
                               int(s.Tk) - tile * kKeys, kThreads);
    };
    copy_rows<T, D, kRows>(smem, static_cast<const T*>(a.q) + batch * s.q_batch + int64_t(t0) * s.q_row + head * D,
                           s.q_row, int(s.Tq) - t0, kThreads);
    fetch(a.k, first_tile, 0);
    if (kDouble) fetch(a.v, first_tile, kValues);
    ptx::cp_async_commit();

    float o[kM][D / 8][4] = {};
    RowState state;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) state.top[m][h] = kNoScore, state.sum[m][h] = 0;
    for (int tile = first_tile; tile < tiles; ++tile) {
        ptx::cp_async_wait<0>();
        __syncthreads();  // what was fetched has landed, and everyone has left the buffer that is filled next
        if (!kDouble) {
            fetch(a.v, tile, kValues);
        } else if (tile + 1 < tiles) {
            fetch(a.k, tile + 1, 0);
            fetch(a.v, tile + 1, kValues);
        }
        ptx::cp_async_commit();
        const int j0 = tile * kKeys;
        const int warp_first = offset + t0 + row;                                        // its first row's position
        const bool sees = j0 <= warp_first + kWarpRows - 1 && j0 + kKeys > warp_hidden;  // any of the tile's keys
        const int stage = stage_of(tile);
        float p[kM][kN][4];
        if (sees) scores<T, D>(p, smem, stage, row);
        if (!kDouble) {
            ptx::cp_async_wait<0>();
            __syncthreads();  // the values have landed, and everyone has left the keys
            if (tile + 1 < tiles) fetch(a.k, tile + 1, 0);
            ptx::cp_async_commit();
        }
        if (!sees) continue;
        if (j0 + kKeys - 1 > min(warp_first, int(s.Tk) - 1)) apply_mask(p, warp_first + 1 - j0, int(s.Tk) - j0);
        if (j0 < warp_hidden_last) hide_documents(p, s, batch, t0 + row, j0);
        online_softmax<D>(p, o, state, s.scale * kLog2e);
        add_values<T, D>(o, p, smem, stage + kValues);
    }
    finish<T, D>(a, o, state, smem, row, t0);
}

}  // namespace

bool attention_forward_mma(const AttentionForward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (s.fastest < AttentionKernels::mma || !mma_covers(s, a.o, a.q, a.k, a.v)) return false;
    const unsigned tiles = blocks_for(s.Tq, kRows);
    if (tiles > 65535) return false;
    const LaunchConfig config(dim3(unsigned(s.H), unsigned(s.B), tiles), dim3(kThreads), 0, stream);
    const bool narrow = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) < 132 << 10;
    with_mma_shape(s, [&]<class T, int D>() {
        const auto run = [&]<bool kNarrow>() {
            LaunchConfig own = config;
            own.smem = Tiles<D, kNarrow>::kBytes;
            launch(kernel<attention_forward_mma_kernel<T, D, kNarrow>>, own, a);
        };
        if constexpr (D > 64)
            if (narrow) return run.template operator()<true>();
        run.template operator()<false>();
    });
    return true;
}

}  // namespace rz
