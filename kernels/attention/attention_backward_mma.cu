// Attention backward on tensor cores (sm_75 and later), deterministic: one kernel for dk and dv, one for dq, no
// atomics. Both keep 128 rows of two tensors in shared memory (64 where a block has 64 KiB of it), 16 per warp, and
// stream tiles of the other two past them:
//
//   dk, dv:  rows k, v;    stream q, d_o over the group's heads in order.  s^T = k q^T, dp^T = v d_o^T, dv += p^T d_o,
//   dk += ds^T q dq:      rows q, d_o;  stream k, v.                                     s = q k^T,   dp = d_o v^T, dq
//   += ds k
//
// with p = exp(scale s - lse) and ds = p (dp - delta). p and ds never leave the registers: the accumulators of the
// first two products are the A operands of the others.
#include "kernels/attention/attention_mma.cuh"

namespace rz {
namespace {

constexpr int kWarpRows = 16;

// kSmall: within 64 KiB, in half as many warps
template <int D, bool kSmall>
struct Tiles {
    static constexpr int kRows = kSmall ? 64 : 128, kThreads = 32 * kRows / kWarpRows;
    // 99 KiB, an sm_89's limit, hold two stages at D = 128.
    static constexpr int kStream = kSmall ? (D <= 96 ? 32 : 16) : D <= 80 ? 64 : 32;
};

template <class T, int D, bool kForKeys, bool kSmall>
struct Backward {
    using Rows = SmemRows<D>;
    static constexpr int kRows = Tiles<D, kSmall>::kRows, kStream = Tiles<D, kSmall>::kStream;
    static constexpr int kChunk = kStream < 32 ? kStream : 32, kN = kChunk / 8;  // rows per pass through the registers
    static constexpr int kTileBytes = Rows::bytes(kStream);
    static constexpr int kStageBytes = 2 * kTileBytes;
    static constexpr int kStatBytes = 2 * kStream * int(sizeof(float));  // lse2, delta of a stage's queries
    static constexpr int kSmemBytes = 2 * Rows::bytes(kRows) + 2 * (kStageBytes + (kForKeys ? kStatBytes : 0));
    static_assert(!kSmall || kSmemBytes <= 64 << 10);

    // In shared memory: k or q, v or d_o, two stages of the streamed tiles, two of their lse2 and delta
    static constexpr int kX1 = 0, kX2 = Rows::bytes(kRows), kStages = 2 * kX2;

    // Where this block and warp work
    unsigned char* smem;
    float* stats;
    int row;    // the warp's first row in the tile
    int first;  // its place, counted from key 0
    int batch;
    const AttentionShape* shape;
    float scale;                      // of scores, for exp2
    float row_lse2[2], row_delta[2];  // of rows g and g + 8, for dq

    float grad1[D / 8][4], grad2[D / 8][4];  // dk or dq; dv

    // The warp's rows as A operands, where there are registers for them: reading them again for every tile makes shared
    // memory the bound.
    static constexpr bool kHold = !kForKeys || D <= 96;
    uint32_t x1[kHold ? D / 16 : 1][4], x2[kHold ? D / 16 : 1][4];

    __device__ __forceinline__ void hold_rows() {
        if constexpr (kHold)
#pragma unroll
            for (int step = 0; step < D / 16; ++step) {
                load_a<D>(x1[step], smem, kX1, row, step);
                load_a<D>(x2[step], smem, kX2, row, step);
            }
    }

    __device__ __forceinline__ void score_products(float (&s)[kN][4], float (&dp)[kN][4], int y1, int y2, int chunk) {
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[n][e] = dp[n][e] = 0;
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            uint32_t b0[2], b1[2];
            uint32_t(&a1)[4] = x1[kHold ? step : 0], (&a2)[4] = x2[kHold ? step : 0];
            if constexpr (!kHold) {
                load_a<D>(a1, smem, kX1, row, step);
                load_a<D>(a2, smem, kX2, row, step);
            }
#pragma unroll
            for (int n = 0; n < kN; n += 2) {
                load_b<D>(b0, b1, smem, y1, chunk + 8 * n, step);
                mma<T>(s[n], a1, b0);
                mma<T>(s[n + 1], a1, b1);
                load_b<D>(b0, b1, smem, y2, chunk + 8 * n, step);
                mma<T>(dp[n], a2, b0);
                mma<T>(dp[n + 1], a2, b1);
            }
        }
    }

    // Whether documents hide key from query, both counted from key 0
    __device__ __forceinline__ bool hides(int query, int key) const {
        return first_key(*shape, batch, query - int(shape->offset())) > key;
    }
    // Hides what comes before the queries' documents. `position`: of the chunk's first streamed row.
    __device__ __forceinline__ void hide_documents(float (&p)[kN][4], int position) const {
        const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int streamed = position + 8 * n + 2 * pair + e % 2, own = first + g + 8 * (e / 2);
                if (kForKeys ? hides(streamed, own) : hides(own, streamed)) p[n][e] = 0;
            }
    }

    // s becomes p. `position`: of the chunk's first streamed row.
    __device__ __forceinline__ void probabilities(float (&s)[kN][4], const float* lse2, int position, bool masked,
                                                  bool documents) {
        const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
        const int ahead = position - first;  // streamed row 0 against the warp's row 0
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int column = 8 * n + 2 * pair + e % 2, r = g + 8 * (e / 2);
                const float l = kForKeys ? lse2[column] : row_lse2[e / 2];
                float p = ptx::ex2(fmaf(s[n][e], scale, -l));
                if (masked && (kForKeys ? ahead + column < r : ahead + column > min(r, int(shape->Tk) - 1 - first)))
                    p = 0;
                s[n][e] = p;
            }
        if (documents) hide_documents(s, position);
    }
    // dp becomes ds.
    __device__ __forceinline__ void score_gradients(float (&s)[kN][4], float (&dp)[kN][4], const float* lse2) {
        const int pair = int(threadIdx.x) % 4;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float delta = kForKeys ? lse2[kStream + 8 * n + 2 * pair + e % 2] : row_delta[e / 2];
                dp[n][e] = s[n][e] * (dp[n][e] - delta);
            }
    }

    __device__ __forceinline__ void add_product(float (&grad)[D / 8][4], const float (&weights)[kN][4], int y,
                                                int chunk) {
#pragma unroll
        for (int step = 0; step < kChunk / 16; ++step) {
            uint32_t a[4], b0[2], b1[2];
            to_a<T>(a, weights[2 * step], weights[2 * step + 1]);
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                load_b_trans<D>(b0, b1, smem, y, chunk + 16 * step, n / 2);
                mma<T>(grad[n], a, b0);
                mma<T>(grad[n + 1], a, b1);
            }
        }
    }

    // One streamed tile whose first row is at `position`
    __device__ __forceinline__ void consume(int stage, int position) {
        const int y1 = kStages + stage * kStageBytes, y2 = y1 + kTileBytes;
        const float* lse2 = stats + stage * 2 * kStream;
#pragma unroll 1
        for (int chunk = 0; chunk < kStream; chunk += kChunk) {
            const int from = position + chunk, to = from + kChunk - 1;
            if (kForKeys ? to < first : from > first + kWarpRows - 1) continue;  // masked for the whole warp
            const bool masked = kForKeys ? from < first + kWarpRows - 1 : to > min(first, int(shape->Tk) - 1);
            bool documents = false;
            if (shape->first_key != nullptr) {
                // Hidden for the whole warp: from its first query its last key, from the first streamed one.
                if (kForKeys ? hides(from, first + kWarpRows - 1) : hides(first, to)) continue;
                documents = kForKeys ? hides(to, first) : hides(first + kWarpRows - 1, from);
            }
            float s[kN][4], dp[kN][4];
            score_products(s, dp, y1, y2, chunk);
            probabilities(s, lse2 + chunk, from, masked, documents);
            score_gradients(s, dp, lse2 + chunk);
            if constexpr (kForKeys) add_product(grad2, s, y2, chunk);
            add_product(grad1, dp, y1, chunk);
        }
    }

    // Through the warp's own rows of `tile`, which no other warp reads
    template <bool kRotates>
    __device__ __forceinline__ void store(T* out, int64_t row_stride, int count, unsigned char* tile,
                                          const float (&grad)[D / 8][4], float factor, const Rope& back) {
        __syncwarp();
        accumulators_to_tile<T, D>(tile, row, grad, factor, factor);
        __syncwarp();
        if (kRotates && back.x != nullptr) rotate_tile_rows<T, D, kWarpRows>(tile, row, count, back, batch, first);
        store_tile_rows<T, D, kWarpRows>(out, row_stride, count, tile, row, back.amax);
    }
};

template <class Work>
__device__ __forceinline__ Work begin(unsigned char* smem, int block_first, int batch, const AttentionShape& shape) {
    Work w;
    w.smem = smem;
    w.stats = reinterpret_cast<float*>(smem + Work::kStages + 2 * Work::kStageBytes);
    w.row = int(threadIdx.x) / 32 * kWarpRows;
    w.first = block_first + w.row;
    w.batch = batch;
    w.shape = &shape;
    w.scale = shape.scale * kLog2e;
#pragma unroll
    for (int n = 0; n < int(std::size(w.grad1)); ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) w.grad1[n][e] = w.grad2[n][e] = 0;
    return w;
}

// Grid (K, B, key tiles); early keys have the most queries, so they start first.
template <class T, int D, bool kSmall>
__global__ void __launch_bounds__(Tiles<D, kSmall>::kThreads) attention_backward_kv_mma_kernel(AttentionBackward a) {
    using Work = Backward<T, D, true, kSmall>;
    constexpr int kRows = Work::kRows, kStream = Work::kStream, kThreads = Tiles<D, kSmall>::kThreads;
    if constexpr (!(kSmall ? kHas64KiB : kHasMore)) return;
    GPU_DYN_SMEM(smem);
    const AttentionShape& s = a.shape;
    const int64_t kv_head = blockIdx.x, batch = blockIdx.y;
    const int j0 = int(blockIdx.z) * kRows, group = int(s.H / s.K), Tq = int(s.Tq), Tk = int(s.Tk);
    const int offset = int(s.offset());
    Work w = begin<Work>(smem, j0, int(batch), s);
    const BackwardStats row_stats(a);
    const int first_tile = max(0, j0 - offset) / kStream;
    const int end = (queries_before(s, batch, min(j0 + kRows, Tk) - 1) + kStream - 1) / kStream;
    const int tiles = max(0, end - first_tile);  // none: no query sees these keys

    const auto fetch = [&](int i) {
        const int64_t head = kv_head * group + i / tiles, t0 = (first_tile + i % tiles) * kStream;
        const int count = Tq - int(t0);
        unsigned char* stage = smem + Work::kStages + i % 2 * Work::kStageBytes;
        copy_rows<T, D, kStream>(stage, static_cast<const T*>(a.q) + batch * s.q_batch + t0 * s.q_row + head * D,
                                 s.q_row, count, kThreads);
        copy_rows<T, D, kStream>(stage + Work::kTileBytes,
                                 static_cast<const T*>(a.d_o) + batch * s.o_batch + t0 * s.o_row + head * D, s.o_row,
                                 count, kThreads);
        if (threadIdx.x < 2 * kStream / 4) {
            const int r = int(threadIdx.x) * 4 % kStream;
            const float* source = threadIdx.x < kStream / 4 ? row_stats.lse2 : row_stats.delta;
            ptx::cp_async16(w.stats + i % 2 * 2 * kStream + threadIdx.x * 4,
                            source + row_stats.row(batch * s.H + head, t0 + r));
        }
    };
    const int64_t at = batch * s.kv_batch + int64_t(j0) * s.kv_row + kv_head * D;
    copy_rows<T, D, kRows>(smem + Work::kX1, static_cast<const T*>(a.k) + at, s.kv_row, Tk - j0, kThreads);
    copy_rows<T, D, kRows>(smem + Work::kX2, static_cast<const T*>(a.v) + at, s.kv_row, Tk - j0, kThreads);
    if (tiles > 0) fetch(0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    w.hold_rows();
    for (int i = 0; i < group * tiles; ++i) {
        ptx::cp_async_wait<0>();
        __syncthreads();  // the tile has landed, and everyone has left the buffer that the next one goes to
        if (i + 1 < group * tiles) fetch(i + 1);
        ptx::cp_async_commit();
        w.consume(i % 2, offset + (first_tile + i % tiles) * kStream);
    }
    const int64_t row_at = at + w.row * s.kv_row;
    const int count = Tk - w.first;
    if (a.sum_dkv) {
        add_rows<D>(static_cast<float*>(a.dk) + row_at, s.kv_row, count, w.grad1, s.scale);
        add_rows<D>(static_cast<float*>(a.dv) + row_at, s.kv_row, count, w.grad2, 1.0f);
        return;
    }
    w.template store<true>(static_cast<T*>(a.dk) + row_at, s.kv_row, count, smem + Work::kX1, w.grad1, s.scale, a.back);
    w.template store<false>(static_cast<T*>(a.dv) + row_at, s.kv_row, count, smem + Work::kX2, w.grad2, 1.0f, a.back);
}

// Grid (H, B, query tiles), the longest first.
template <class T, int D, bool kSmall>
__global__ void __launch_bounds__(Tiles<D, kSmall>::kThreads) attention_backward_q_mma_kernel(AttentionBackward a) {
    using Work = Backward<T, D, false, kSmall>;
    constexpr int kRows = Work::kRows, kStream = Work::kStream, kThreads = Tiles<D, kSmall>::kThreads;
    if constexpr (!(kSmall ? kHas64KiB : kHasMore)) return;
    GPU_DYN_SMEM(smem);
    const AttentionShape& s = a.shape;
    const int64_t head = blockIdx.x, batch = blockIdx.y;
    const int t0 = int(gridDim.z - 1 - blockIdx.z) * kRows, Tq = int(s.Tq), Tk = int(s.Tk), offset = int(s.offset());
    const int64_t kv_at = batch * s.kv_batch + head / (s.H / s.K) * D;
    Work w = begin<Work>(smem, offset + t0, int(batch), s);
    const BackwardStats row_stats(a);
    const int tiles = (min(offset + min(t0 + kRows, Tq), Tk) + kStream - 1) / kStream;
    const int first_tile = min(first_key(s, batch, t0) / kStream, tiles - 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int t = t0 + w.row + int(threadIdx.x) % 32 / 4 + 8 * h;
        const int64_t from = row_stats.row(batch * s.H + head, min(t, Tq - 1));
        w.row_lse2[h] = row_stats.lse2[from], w.row_delta[h] = row_stats.delta[from];
    }
    const auto fetch = [&](int i) {
        const int j0 = i * kStream;
        const int64_t from = kv_at + int64_t(j0) * s.kv_row;
        unsigned char* stage = smem + Work::kStages + i % 2 * Work::kStageBytes;
        copy_rows<T, D, kStream>(stage, static_cast<const T*>(a.k) + from, s.kv_row, Tk - j0, kThreads);
        copy_rows<T, D, kStream>(stage + Work::kTileBytes, static_cast<const T*>(a.v) + from, s.kv_row, Tk - j0,
                                 kThreads);
    };
    const int64_t q_at = batch * s.q_batch + int64_t(t0) * s.q_row + head * D;
    copy_rows<T, D, kRows>(smem + Work::kX1, static_cast<const T*>(a.q) + q_at, s.q_row, Tq - t0, kThreads);
    copy_rows<T, D, kRows>(smem + Work::kX2,
                           static_cast<const T*>(a.d_o) + batch * s.o_batch + int64_t(t0) * s.o_row + head * D, s.o_row,
                           Tq - t0, kThreads);
    fetch(first_tile);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    w.hold_rows();
    for (int i = first_tile; i < tiles; ++i) {
        ptx::cp_async_wait<0>();
        __syncthreads();  // the tile has landed, and everyone has left the buffer that the next one goes to
        if (i + 1 < tiles) fetch(i + 1);
        ptx::cp_async_commit();
        w.consume(i % 2, i * kStream);
    }
    w.template store<true>(static_cast<T*>(a.dq) + q_at + w.row * s.q_row, s.q_row, Tq - t0 - w.row, smem + Work::kX1,
                           w.grad1, s.scale, a.back);
}

}  // namespace

bool attention_backward_mma(const AttentionBackward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (s.fastest < AttentionKernels::mma ||
        !mma_covers(s, a.dq, a.dk, a.dv, a.d_o, a.q, a.k, a.v, a.back.cos_table, a.back.sin_table))
        return false;
    bool done = false;
    const auto run = [&]<class T, int D, bool kSmall>() {
        using ForKeys = Backward<T, D, true, kSmall>;
        const unsigned tiles = blocks_for(s.Tk, ForKeys::kRows), q_tiles = blocks_for(s.Tq, ForKeys::kRows);
        if (tiles > 65535 || q_tiles > 65535) return;
        const dim3 threads(Tiles<D, kSmall>::kThreads);
        launch(kernel<attention_backward_kv_mma_kernel<T, D, kSmall>>,
               LaunchConfig(dim3(unsigned(s.K), unsigned(s.B), tiles), threads, ForKeys::kSmemBytes, stream), a);
        launch(kernel<attention_backward_q_mma_kernel<T, D, kSmall>>,
               LaunchConfig(dim3(unsigned(s.H), unsigned(s.B), q_tiles), threads,
                            Backward<T, D, false, kSmall>::kSmemBytes, stream),
               a);
        done = true;
    };
    with_mma_shape(s, [&]<class T, int D>() {
        if constexpr (std::is_same_v<T, __half>)
            if (!has_shared(Backward<T, D, true, false>::kSmemBytes)) return run.template operator()<T, D, true>();
        run.template operator()<T, D, false>();
    });
    return done;
}

}  // namespace rz
