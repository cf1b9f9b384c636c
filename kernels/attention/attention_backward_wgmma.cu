// Attention backward for Hopper (sm_90a): the two deterministic kernels of attention_backward_mma.cu with TMA and
// wgmma. A producer warp streams tiles of 64 rows; two warpgroups own 64 rows each of k and v (for dk, dv) or of q and
// d_o (for dq). p and ds stay in registers as A operands, and so do q and d_o for dq; the streamed tiles serve once as
// they lie and once transposed. The scores of the next tile are enqueued before the gradients of this one, so that the
// tensor cores have work while exponentials are computed. Blocks stay and take one item after another, as forward.
//
// That takes seven products where five would do: both kernels compute the scores and dp. At D = 128 the first one can
// keep ds in memory, and another kernel computes dq from it (attention_kept.h, attention_backward_dq_wgmma.cu).
//
// Covers bf16 and fp16, D of 64, 80, 96 and 128, any lengths, any strides of whole 16 bytes.
#include "kernels/attention/attention_wgmma.cuh"

namespace rz {
namespace {

// Unused where there is no code for sm_90a.
[[maybe_unused]] constexpr int kGroupRows = 64, kRows = 2 * kGroupRows, kStream = 64, kThreads = 384;

[[maybe_unused]] constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // 128 * 24 + 256 * 240 <= 65536

// x1, x2: k, v or q, d_o of the first warpgroup, then of the second. y1, y2: q, d_o or k, v of every stage.
template <int D>
struct Smem {
    // A stage is given back at the end of the next one's exponentials, just before the one after that is needed.
    static constexpr int kStages = D == 64 ? 4 : 3;
    using Panel = SummedPanels<D>;  // tiles are operands both ways
    static constexpr int kTile = Panel::tile(kStream);
    static_assert(kStream == kGroupRows);
    static constexpr int kX = 0, kY = kX + 4 * kTile, kStats = kY + 2 * kStages * kTile;
    static constexpr int kStatBytes = kStream * int(sizeof(float));  // of a stage's queries: lse2, then delta
    static constexpr int kOut = kStats + 2 * kStages * kStatBytes, kBytes = kOut + SmemRows<D>::bytes(kRows);
};

template <int kStages>
struct Barriers {
    uint64_t x_full, x_empty, full[kStages], empty[kStages];
    int row[kStages];      // the stage's first row, counted from key 0
    int kept[kStages][2];  // where the tile of its ds lies, for each warpgroup's keys (KeptScores)
    Items items;
};

// The tensors of a kernel by role
struct Maps {
    const CUtensorMap* x1;
    const CUtensorMap* x2;
    const CUtensorMap* y1;
    const CUtensorMap* y2;
};

// Keys may have no tile of queries, queries have at least one of keys.
template <bool kForKeys>
__device__ __forceinline__ Item item_of(const AttentionShape& s, const WorkOrder& order, WorkItem w) {
    int H = int(s.H), K = int(s.K);
    ptx::forget(H), ptx::forget(K);  // as in Items::deal
    const int Tk = int(s.Tk), offset = int(s.offset()), group = H / K;
    const int x_heads = kForKeys ? K : H, batch = w.head / x_heads, head = w.head - batch * x_heads;
    if constexpr (kForKeys) {  // early keys have the most queries
        const int row = w.rank * kRows, first = max(0, row - offset) / kStream;
        const int end = (queries_before(s, batch, min(row + kRows, Tk) - 1) + kStream - 1) / kStream;
        return {head, batch, row, head * group, group, first, max(0, end - first)};
    } else {
        const int row = (order.tiles - 1 - w.rank) * kRows;
        const int end = (min(offset + min(row + kRows, int(s.Tq)), Tk) + kStream - 1) / kStream;
        const int first = min(first_key(s, batch, row) / kStream, end - 1);
        return {head, batch, row, head / group, 1, first, end - first};
    }
}

// One thread. At the end an item that does not exist, without rows.
template <int D, bool kForKeys, bool kKeeps>
__device__ __forceinline__ void produce(unsigned char* smem, Barriers<Smem<D>::kStages>& bars,
                                        const AttentionShape& shape, const BackwardStats& stats, const KeptScores& kept,
                                        const Maps& maps) {
    using M = Smem<D>;
    using P = typename M::Panel;
    Cursor<M::kStages> at;
    int round = 0;
    for (;; ++round) {
        const Item& item = bars.items.next(round);
        if (item.tiles < 0) break;
        ptx::mbar_wait(&bars.x_empty, uint32_t(round & 1) ^ 1);
        ptx::mbar_arrive_expect_tx(&bars.x_full, 4 * M::kTile);
        for (int group = 0; group < 2; ++group) {
            unsigned char* x = smem + M::kX + 2 * group * M::kTile;
            const int row = item.row + group * kGroupRows;
            load_panels<P>(x, kStream, maps.x1, &bars.x_full, item.head, row, item.batch);
            load_panels<P>(x + M::kTile, kStream, maps.x2, &bars.x_full, item.head, row, item.batch);
        }
        for (int head = item.y_head; head < item.y_head + item.heads; ++head)
            for (int tile = 0; tile < item.tiles; ++tile, at.advance()) {
                unsigned char* y = smem + M::kY + 2 * at.stage * M::kTile;
                uint64_t* full = &bars.full[at.stage];
                const int row = (item.first_tile + tile) * kStream;
                ptx::mbar_wait(&bars.empty[at.stage], at.parity ^ 1);
                bars.row[at.stage] = kForKeys ? row + int(shape.offset()) : row;
                if constexpr (kKeeps) {
                    const int of = kept.tile(item.batch * int(shape.H) + head, row / kStream, item.row / kStream);
                    bars.kept[at.stage][0] = of;
                    bars.kept[at.stage][1] = of + kept.places.to_next_keys(item.row / kStream);
                }
                ptx::mbar_arrive_expect_tx(full, 2 * M::kTile + (kForKeys ? 2 * M::kStatBytes : 0));
                load_panels<P>(y, kStream, maps.y1, full, head, row, item.batch);
                load_panels<P>(y + M::kTile, kStream, maps.y2, full, head, row, item.batch);
                if constexpr (kForKeys) {
                    unsigned char* to = smem + M::kStats + 2 * at.stage * M::kStatBytes;
                    const int64_t from = stats.row(item.batch * shape.H + head, row);
                    ptx::bulk_load(to, stats.lse2 + from, M::kStatBytes, full);
                    ptx::bulk_load(to + M::kStatBytes, stats.delta + from, M::kStatBytes, full);
                }
            }
    }
    ptx::mbar_wait(&bars.x_empty, uint32_t(round & 1) ^ 1);
    ptx::mbar_arrive(&bars.x_full);
}

// kKeeps: ds is kept; for keys only. kDocuments: false if there are none.
template <class T, int D, bool kForKeys, bool kKeeps = false, bool kDocuments = true>
struct Consumer {
    using M = Smem<D>;
    using P = typename M::Panel;
    unsigned char* smem;
    Barriers<M::kStages>& bars;
    const AttentionShape& shape;
    const KeptScores& kept;
    int group;    // 0 or 1
    float scale;  // of scores, for exp2
    int own = 0;  // place of the warpgroup's first row, counted from key 0
    int round = 0;
    Cursor<M::kStages> at = {};
    float s[kStream / 2], dp[kStream / 2];  // scores, then p; dp, then ds
    uint32_t weights[kStream / 16][4];      // p, then ds, as A operands
    float grad1[D / 2];                     // dk or dq
    float grad2[kForKeys ? D / 2 : 2];      // dv
    uint32_t x1[D / 16][4], x2[D / 16][4];  // q and d_o, for dq
    float row_lse2[2], row_delta[2];        // of rows g and g + 8, for dq

    __device__ __forceinline__ Consumer(unsigned char* smem, Barriers<M::kStages>& bars, const AttentionShape& shape,
                                        const KeptScores& kept, int group)
        : smem(smem), bars(bars), shape(shape), kept(kept), group(group), scale(shape.scale * kLog2e) {}

    __device__ __forceinline__ static int warp_row() { return int(threadIdx.x) % 128 / 32 * 16; }
    // For keys the warpgroup's first row says which it is: one register less in the loop.
    __device__ __forceinline__ const unsigned char* x(int which) const {
        return smem + M::kX + (2 * (kForKeys ? own / kGroupRows % 2 : group) + which) * M::kTile;
    }
    __device__ __forceinline__ const unsigned char* y(int which, int stage) const {
        return smem + M::kY + (2 * stage + which) * M::kTile;
    }
    __device__ __forceinline__ void wait_full() { ptx::mbar_wait(&bars.full[at.stage], at.parity); }
    // A tile that the other warpgroup sees
    __device__ __forceinline__ void pass_over() {
        wait_full();
        release(&bars.empty[at.stage]);
        at.advance();
    }

    // lse2 of the stage's queries, then delta
    __device__ __forceinline__ const float* stats() const {
        return reinterpret_cast<const float*>(smem + M::kStats + 2 * at.stage * M::kStatBytes);
    }

    __device__ __forceinline__ void start_scores() {
        if constexpr (kForKeys)
            start_product<T, D, kStream, P, kStream>(s, operand_rows<P>(x(0)), operand_rows<P>(y(0, at.stage)));
        else
            start_product<T, D, kStream, P>(s, x1, operand_rows<P>(y(0, at.stage)));
    }
    __device__ __forceinline__ void start_dp() {
        if constexpr (kForKeys)
            start_product<T, D, kStream, P, kStream>(dp, operand_rows<P>(x(1)), operand_rows<P>(y(1, at.stage)));
        else
            start_product<T, D, kStream, P>(dp, x2, operand_rows<P>(y(1, at.stage)));
    }
    // Enqueues grad1 += ds y. Behind dv and kAfterDv other groups
    template <int kAfterDv>
    __device__ __forceinline__ void start_grad1(int stage) {
        if constexpr (kForKeys) {
            ptx::wgmma_wait<kAfterDv>();
            ptx::wgmma_pin(grad2);
        }
        pack_operand<T, kStream>(weights, dp);
        start_weighted<T, D>(grad1, weights, y(0, stage));
    }

    // Keys before this one are of earlier documents than the query's, both counted from key 0.
    __device__ __forceinline__ int first_seen(int query) const {
        return first_key(shape, bars.items.of[round & 3].batch, query - int(shape.offset()));
    }
    // What comes before the queries' documents becomes zero. place: as below.
    __device__ __forceinline__ void hide_documents(int place) {
        const int lane = int(threadIdx.x) % 32, pair = lane % 4, row = own + warp_row() + lane / 4;
        // For keys those of the 64 streamed queries, two by each lane, which hands them to others; else of its rows.
        const int first[2] = {first_seen(kForKeys ? own + place + lane : row),
                              first_seen(kForKeys ? own + place + lane + 32 : row + 8)};
#pragma unroll
        for (int i = 0; i < kStream / 2; ++i) {
            const int column = i / 4 * 8 + i % 2, h = i % 4 / 2;
            if constexpr (kForKeys) {
                const int seen = __shfl_sync(kFullWarp, first[column / 32], column % 32 + 2 * pair);
                if (seen > row + 8 * h) s[i] = 0;
            } else {
                if (first[h] > own + place + column + 2 * pair) s[i] = 0;
            }
        }
    }

    // s becomes p. place: where the tile begins, counted from the warpgroup's first row; 0 on the diagonal of whole
    // sequences. Queries do not see later keys.
    __device__ __forceinline__ void probabilities(int place) {
        const int lane = int(threadIdx.x) % 32, pair = lane % 4;
        const float* lse2 = stats();
#pragma unroll
        for (int i = 0; i < kStream / 2; ++i)
            s[i] = ptx::ex2(fmaf(s[i], scale, -(kForKeys ? lse2[i / 4 * 8 + 2 * pair + i % 2] : row_lse2[i % 4 / 2])));
        const int keys = int(shape.Tk) - own;
        if (kForKeys ? place < kStream - 1 || (kKeeps && keys < kGroupRows) : place + kStream > min(1, keys)) {
            const int r = warp_row() + lane / 4 - place;
#pragma unroll
            for (int i = 0; i < kStream / 2; ++i) {
                const int column = i / 4 * 8 + 2 * pair + i % 2;
                int row = r + i % 4 / 2 * 8;
                if (kKeeps && row >= keys - place) row = kStream;  // beyond the last key nothing may be kept
                if (kForKeys ? column < row : column > min(row, keys - 1 - place)) s[i] = 0;
            }
        }
        if (kDocuments && shape.first_key != nullptr &&
            (kForKeys ? first_seen(own + place + kStream - 1) > own : first_seen(own + kGroupRows - 1) > own + place))
            hide_documents(place);
        ptx::wgmma_pin(s);  // computed here, under the products in flight
    }
    // dp becomes ds.
    __device__ __forceinline__ void score_gradients() {
        const int pair = int(threadIdx.x) % 4;
        const float* delta = stats() + kStream;
#pragma unroll
        for (int i = 0; i < kStream / 2; ++i)
            dp[i] = s[i] * (dp[i] - (kForKeys ? delta[i / 4 * 8 + 2 * pair + i % 2] : row_delta[i % 4 / 2]));
    }

    // Writes ds of the tile in `stage`: fragments of 16 queries and the warp's 16 keys. It is packed a second time:
    // ptxas serialises all products if the operand itself is used elsewhere. So that ptxas can't merge the two, the
    // halves are exchanged here; the transposition turns that into neighbouring queries exchanged, and each lane stores
    // to the place of the lane with the neighbouring query.
    __device__ __forceinline__ void keep(int stage) const {
        uint32_t thread = threadIdx.x;
        ptx::forget(thread);  // or the place would be kept in registers
        uint4* to = kept.ds + int64_t(bars.kept[stage][own / kGroupRows % 2]) * kKeptTileChunks +
                    thread % 128 / 32 * 32 + (thread % 32 ^ 4);
        const auto transposed = [&](int i) { return ptx::movmatrix(pack_pair<T>(dp[i + 1], dp[i])); };
#pragma unroll
        for (int i = 0; i < kStream / 2; i += 8)
            ptx::store16(to + i / 8 * 128,
                         make_uint4(transposed(i), transposed(i + 4), transposed(i + 2), transposed(i + 6)));
    }

    // Both loops begin with nothing in flight, s holding p and dp complete, for the tile at `at`: ptxas would serialise
    // products that are in flight where a loop begins again.
    __device__ __forceinline__ void first_scores(int place) {
        start_scores();
        start_dp();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(s);
        probabilities(place);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(dp);
    }
    // From ds of the tile in `stage` to p and dp of the tile at `at`. dv, in flight at the beginning, and dk take turns
    // with the registers of their A operand; under both the tensor cores have other work.
    __device__ __forceinline__ void next_scores(int stage, int place) {
        start_scores();
        if constexpr (kKeeps) keep(stage);
        start_grad1<1>(stage);
        start_dp();
        ptx::wgmma_wait<2>();
        ptx::wgmma_pin(s);
        probabilities(place);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(dp);
        ptx::wgmma_pin(grad1);
        release(&bars.empty[stage]);
    }
    __device__ __forceinline__ void last_gradient() {
        start_grad1<0>(at.stage);
        if constexpr (kKeeps) keep(at.stage);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(grad1);
        release(&bars.empty[at.stage]);
        at.advance();
    }

    // Where the tile at `at` begins, counted from the warpgroup's first row, once it is there. Counted along in
    // registers it would cost some that ptxas needs to keep products in flight.
    __device__ __forceinline__ int place() {
        wait_full();
        return __shfl_sync(kFullWarp, bars.row[at.stage], 0) - own;
    }

    // dk and dv of an item. Of each head a warpgroup may not see the first tile: all its queries come before the keys.
    __device__ __forceinline__ void keys(const Item& item) {
        own = item.row + group * kGroupRows;
        int left = item.heads * item.tiles, from = 0;
        if (kKeeps && own >= int(shape.Tk))  // this tile of keys does not exist
            for (; left > 0; --left) pass_over();
        for (; left > 0 && (from = place()) <= -kStream; --left) pass_over();
        if (left == 0) return release(&bars.x_empty);
        first_scores(from);
        while (true) {
            const int stage = at.stage;
            pack_operand<T, kStream>(weights, s);
            start_weighted<T, D>(grad2, weights, y(1, stage));
            score_gradients();
            if (--left == 0) break;
            at.advance();
            if ((from = place()) <= -kStream) {
                pass_over(), --left;
                from = place();
            }
            next_scores(stage, from);
        }
        release(&bars.x_empty);
        last_gradient();
    }

    // q and d_o as A operands
    __device__ __forceinline__ void load_queries() {
        uint32_t thread = threadIdx.x;
        ptx::forget(thread);  // or the places would be kept in registers from one item to the next
        const int lane = int(thread) % 32, row = int(thread) % 128 / 32 * 16 + lane % 16;
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            // The swizzle exchanges 16-byte chunks of a panel's row by the place of that row in 1024, 512 or 256 bytes.
            constexpr int kSteps = P::kColumns / 16, kChunks = 2 * kSteps;
            const int chunk = (step % kSteps * 2 + lane / 16) ^ (row * kChunks / 8 % kChunks);
            const int at_step = step / kSteps * P::bytes(kStream) + P::bytes(row) + chunk * 16;
            ptx::ldmatrix_x4(x1[step], x(0) + at_step);
            ptx::ldmatrix_x4(x2[step], x(1) + at_step);
        }
    }

    // dq of an item. The first warpgroup may see a tile less than the second.
    __device__ __forceinline__ void queries(const Item& item) {
        own = int(shape.offset()) + item.row + group * kGroupRows;
        const int end = (min(own + kGroupRows, int(shape.Tk)) + kStream - 1) / kStream, first = item.first_tile;
        const int mine = max(1, min(item.tiles, end - first)), others = item.tiles - mine;
        load_queries();
        release(&bars.x_empty);
        first_scores(place());
        for (int left = mine - 1; left > 0; --left) {
            const int stage = at.stage;
            score_gradients();
            at.advance();
            next_scores(stage, place());
        }
        score_gradients();
        last_gradient();
        for (int left = others; left > 0; --left) pass_over();
    }

    // As store(), but adds to fp32.
    __device__ __forceinline__ void add(void* out, int64_t at_row, int64_t row_stride, int count,
                                        const float (&grad)[D / 2], float factor) {
        float acc[D / 8][4];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) acc[i / 4][i % 4] = grad[i];
        add_rows<D>(static_cast<float*>(out) + at_row + warp_row() * row_stride, row_stride, count - warp_row(), acc,
                    factor);
    }
    // Rows of the warp, `count` of the warpgroup's 64 exist
    template <bool kRotates>
    __device__ __forceinline__ void store(void* out, int64_t at_row, int64_t row_stride, int count,
                                          const float (&grad)[D / 2], float factor, const Rope& back,
                                          const Item& item) {
        const int row = group * kGroupRows + warp_row();
        store_rows<T, D>(static_cast<T*>(out) + at_row + warp_row() * row_stride, row_stride, count - warp_row(),
                         smem + M::kOut, row, grad, factor, factor, back.amax, kRotates ? &back : nullptr, item.batch,
                         item.row + row);
    }

    // Each thread's two rows of q
    __device__ __forceinline__ void load_stats(const BackwardStats& rows, const Item& item) {
        const int first = item.row + group * kGroupRows + warp_row() + int(threadIdx.x) % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int t = min(first + 8 * h, int(rows.T_padded) - 1);
            const int64_t from = rows.row(item.batch * shape.H + item.head, t);
            row_lse2[h] = rows.lse2[from], row_delta[h] = rows.delta[from];
        }
    }

    // The item is read again, so that it needs no registers while it is worked on.
    __device__ __forceinline__ void finish(const AttentionBackward& a) {
        const AttentionShape& shape = a.shape;
        const Item item = bars.items.get(round);
        const int first = item.row + group * kGroupRows, count = int(kForKeys ? shape.Tk : shape.Tq) - first;
        const int64_t column = int64_t(item.head) * D;
        if constexpr (kForKeys) {
            const int64_t to = item.batch * shape.kv_batch + int64_t(first) * shape.kv_row + column;
            if (a.sum_dkv) {
                add(a.dk, to, shape.kv_row, count, grad1, shape.scale);
                add(a.dv, to, shape.kv_row, count, grad2, 1.0f);
                return;
            }
            store<true>(a.dk, to, shape.kv_row, count, grad1, shape.scale, a.back, item);
            store<false>(a.dv, to, shape.kv_row, count, grad2, 1.0f, a.back, item);
        } else {
            store<true>(a.dq, item.batch * shape.q_batch + int64_t(first) * shape.q_row + column, shape.q_row, count,
                        grad1, shape.scale, a.back, item);
        }
    }

    __device__ __forceinline__ void run(const AttentionBackward& a, const BackwardStats& stats) {
        for (;; ++round) {
            ptx::mbar_wait(&bars.x_full, uint32_t(round & 1));
            const Item item = bars.items.get(round);
            if (item.tiles < 0) return;
#pragma unroll
            for (int i = 0; i < D / 2; ++i) grad1[i] = 0;
#pragma unroll
            for (int i = 0; i < (kForKeys ? D / 2 : 2); ++i) grad2[i] = 0;
            if constexpr (!kForKeys) load_stats(stats, item);
            if constexpr (kForKeys)
                keys(item);
            else
                queries(item);
            finish(a);
        }
    }
};

// Starts the producer or a consumer.
template <class T, int D, bool kForKeys, bool kKeeps = false, bool kDocuments = true>
__device__ __forceinline__ void run_block(unsigned char* smem, Barriers<Smem<D>::kStages>& bars,
                                          const AttentionBackward& a, const BackwardStats& stats,
                                          const KeptScores& kept, const WorkOrder& order, const Maps& maps) {
    if (threadIdx.x == 0) {
        bars.items.init();
        ptx::mbar_init(&bars.x_full, 1);
        ptx::mbar_init(&bars.x_empty, 8);  // one lane of each consumer warp
        for (int stage = 0; stage < Smem<D>::kStages; ++stage) {
            ptx::mbar_init(&bars.full[stage], 1);
            ptx::mbar_init(&bars.empty[stage], 8);
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();
    const int group = warpgroup();
    if (group == 0) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (threadIdx.x == 0) produce<D, kForKeys, kKeeps>(smem, bars, a.shape, stats, kept, maps);
        if (threadIdx.x == 32)
            bars.items.deal(order, a.beside.next_tile, [&](WorkItem w) {
                if (kKeeps) w.head += kept.first_key_head;
                return item_of<kForKeys>(a.shape, order, w);
            });
        return;
    }
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T, D, kForKeys, kKeeps, kDocuments>(smem, bars, a.shape, kept, group - 1).run(a, stats);
}

// Grids of order.blocks blocks. The bodies exist for sm_90a alone: compiled_for_sm90a().
template <class T, int D, bool kKeeps, bool kDocuments>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_kv_wgmma_kernel(AttentionBackward a, BackwardStats stats, KeptScores kept, WorkOrder order,
                                       const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                                       const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    GPU_DYN_SMEM(smem);
    __shared__ Barriers<Smem<D>::kStages> bars;
    run_block<T, D, true, kKeeps, kDocuments>(smem, bars, a, stats, kept, order, {&k, &v, &q, &d_o});
#endif
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_q_wgmma_kernel(AttentionBackward a, BackwardStats stats, WorkOrder order,
                                      const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                                      const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_o) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    GPU_DYN_SMEM(smem);
    __shared__ Barriers<Smem<D>::kStages> bars;
    run_block<T, D, false>(smem, bars, a, stats, KeptScores{nullptr, KeptPlaces(a.shape), 0, 0, 0}, order,
                           {&q, &d_o, &k, &v});
#endif
}

}  // namespace

bool attention_has_wgmma() {
    return compiled_for_sm90a(kernel<attention_backward_kv_wgmma_kernel<__nv_bfloat16, 128, true, true>>.address());
}

bool attention_backward_wgmma(const AttentionBackward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (!wgmma_covers(s, a.dq, a.dk, a.dv, a.d_o, a.q, a.k, a.v, a.back.cos_table, a.back.sin_table)) return false;
    bool done = false;
    with_mma_shape(s, [&]<class T, int D>() {
        const auto& kv_kernel = kernel<attention_backward_kv_wgmma_kernel<T, D, false, true>>;
        if (!compiled_for_sm90a(kv_kernel.address())) return;
        const auto map = [&](const void* base, int64_t heads, int64_t T_len, int64_t row, int64_t batch) {
            return wgmma_map<typename Smem<D>::Panel>(base, D, heads, T_len, s.B, row, batch, kStream);
        };
        const CUtensorMap q = map(a.q, s.H, s.Tq, s.q_row, s.q_batch), k = map(a.k, s.K, s.Tk, s.kv_row, s.kv_batch),
                          v = map(a.v, s.K, s.Tk, s.kv_row, s.kv_batch),
                          d_o = map(a.d_o, s.H, s.Tq, s.o_row, s.o_batch);
        // Streamed tiles; the start and end of an item take about as long as three.
        const int64_t group = s.H / s.K, bytes = 4 * s.Tq * D;
        const double step = kRows / kStream, kv_step = step * double(group), before = double(s.offset()) / kStream;
        const BackwardStats stats(a);
        const auto launch_kv = [&](const auto& of, const KeptScores& kept, int64_t heads) {
            const WorkOrder order =
                work_order({heads, 1, blocks_for(s.Tk, kRows), bytes * group, kv_step, 3 + kv_step}, a.beside);
            launch(of, LaunchConfig(dim3(unsigned(order.blocks)), dim3(kThreads), Smem<D>::kBytes, stream), a, stats,
                   kept, order, q, k, v, d_o);
        };
        done = true;
        if constexpr (D == 128) {
            const KeptPlaces places(s);
            const int64_t all = s.B * s.K, fit = a.kept ? kept_key_heads(s, a.kept_bytes) : 0;
            const int64_t sections = fit > 0 ? ceil_div(all, fit) : 0;
            for (int64_t i = 0; i < sections; ++i) {
                const int64_t first = all * i / sections, heads = all * (i + 1) / sections - first;
                const KeptScores kept{static_cast<uint4*>(a.kept), places, int(places.count()), int(first),
                                      int(first * group)};
                if (s.first_key == nullptr)
                    launch_kv(kernel<attention_backward_kv_wgmma_kernel<T, D, true, false>>, kept, heads);
                else
                    launch_kv(kernel<attention_backward_kv_wgmma_kernel<T, D, true, true>>, kept, heads);
                attention_backward_dq_wgmma(a, kept, heads * group, stream);
            }
            if (sections > 0) return;
        }
        launch_kv(kv_kernel, KeptScores{nullptr, KeptPlaces(s), 0, 0, 0}, s.B * s.K);
        const WorkOrder order =
            work_order({s.B * s.H, group, blocks_for(s.Tq, kRows), 4 * s.Tk * D, step, 3 + step + before}, a.beside);
        launch(kernel<attention_backward_q_wgmma_kernel<T, D>>,
               LaunchConfig(dim3(unsigned(order.blocks)), dim3(kThreads), Smem<D>::kBytes, stream), a, stats, order, q,
               k, v, d_o);
    });
    return done;
}

}  // namespace rz
