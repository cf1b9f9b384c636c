// dq = scale * ds k: attention's backward pass for Hopper (sm_90a) with score gradients that were kept
// (attention_kept.h). A producer warp streams tiles of 64 keys by TMA; three warpgroups own 64 queries each and read
// their tiles of ds from memory as A operands, three tiles ahead. The sums have the order of the q kernel in
// attention_backward_wgmma.cu, which computes ds itself, so dq has the same bits. Covers bf16 and fp16, D = 128.
#include "kernels/attention/attention_wgmma.cuh"

namespace rz {
namespace {

// Unused where there is no code for sm_90a.
[[maybe_unused]] constexpr int kGroups = 3, kRows = kGroups * kKeptRows, kThreads = 128 * (1 + kGroups);
[[maybe_unused]] constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;  // 128 * (32 + 3 * 160) <= 65536
[[maybe_unused]] constexpr int kAhead = 3, kStages = 6;

template <int D>
struct Smem {
    using Panel = SummedPanels<D>;
    static constexpr int kTile = Panel::tile(kKeptRows);
    static constexpr int kOut = kStages * kTile, kBytes = kOut + SmemRows<D>::bytes(kRows);
};

struct Barriers {
    uint64_t item_full, item_empty, full[kStages], empty[kStages];
    Items items;
};

// The tiles of keys whose ds was written for tile q of queries. Empty beyond the last query, and where the queries'
// documents begin after the last key. The other kernel writes these tiles: it skips those that come before a
// warpgroup's keys, and ends at the first query whose document begins after the keys (item_of() and keys() there).
struct KeyTiles {
    int first, end;
};
__device__ __forceinline__ KeyTiles keys_of(const AttentionShape& s, const KeptPlaces& places, int batch, int q) {
    const int first = first_key(s, batch, q * kKeptRows);
    if (q >= places.queries || first >= int(s.Tk)) return {0, 0};
    return {first / kKeptRows, min(q + places.ahead + 1, places.keys)};
}

// Late queries have the most keys.
[[maybe_unused]] __device__ __forceinline__ Item item_of(const AttentionShape& s, const KeptScores& kept,
                                                         const WorkOrder& order, WorkItem w) {
    int H = int(s.H), K = int(s.K);
    ptx::forget(H), ptx::forget(K);  // as in Items::deal
    const int place = kept.first_head + w.head, batch = place / H, head = place - batch * H;
    const int row = (order.tiles - 1 - w.rank) * kRows, q = row / kKeptRows;
    const int last = min(q + kGroups, kept.places.queries) - 1;
    const KeyTiles longest = keys_of(s, kept.places, batch, q);
    const int end = min(last + kept.places.ahead + 1, kept.places.keys);
    return {head, batch, row, head / (H / K), 1, longest.first, longest.end == 0 ? 0 : end - longest.first};
}

// One thread
template <int D>
__device__ __forceinline__ void produce(unsigned char* smem, Barriers& bars, const CUtensorMap* k) {
    using M = Smem<D>;
    Cursor<kStages> at;
    int round = 0;
    for (;; ++round) {
        const Item& item = bars.items.next(round);
        ptx::mbar_wait(&bars.item_empty, uint32_t(round & 1) ^ 1);
        ptx::mbar_arrive(&bars.item_full);
        if (item.tiles < 0) return;
        for (int tile = 0; tile < item.tiles; ++tile, at.advance()) {
            uint64_t* full = &bars.full[at.stage];
            ptx::mbar_wait(&bars.empty[at.stage], at.parity ^ 1);
            ptx::mbar_arrive_expect_tx(full, M::kTile);
            load_panels<typename M::Panel>(smem + at.stage * M::kTile, kKeptRows, k, full, item.y_head,
                                           (item.first_tile + tile) * kKeptRows, item.batch);
        }
    }
}

template <class T, int D>
struct Consumer {
    using M = Smem<D>;
    unsigned char* smem;
    Barriers& bars;
    int group;  // 0 to 2
    Cursor<kStages> at = {};
    uint32_t ds[kAhead][kKeptRows / 16][4];  // of this tile and the next two
    float dq[D / 2];
    // The next tile to read
    const uint4* from;
    int next, end;

    __device__ __forceinline__ Consumer(unsigned char* smem, Barriers& bars, int group)
        : smem(smem), bars(bars), group(group) {}

    __device__ __forceinline__ static int warp_row() { return int(threadIdx.x) % 128 / 32 * 16; }

    __device__ __forceinline__ void read(uint32_t (&to)[kKeptRows / 16][4], const KeptPlaces& places) {
        if (next >= end) return;
#pragma unroll
        for (int step = 0; step < kKeptRows / 16; ++step) {
            const uint4 chunk = from[step * 32];
            to[step][0] = chunk.x, to[step][1] = chunk.y, to[step][2] = chunk.z, to[step][3] = chunk.w;
        }
        from += int64_t(places.to_next_keys(next++)) * kKeptTileChunks;
    }
    // A tile that other warpgroups see
    __device__ __forceinline__ void pass_over() {
        ptx::mbar_wait(&bars.full[at.stage], at.parity);
        release(&bars.empty[at.stage]);
        at.advance();
    }
    __device__ __forceinline__ void add(uint32_t (&tile)[kKeptRows / 16][4], const KeptPlaces& places) {
        ptx::mbar_wait(&bars.full[at.stage], at.parity);
        start_weighted<T, D>(dq, tile, smem + at.stage * M::kTile);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(dq);
        release(&bars.empty[at.stage]);
        at.advance();
        read(tile, places);
    }

    __device__ __forceinline__ void run(const AttentionBackward& a, const KeptScores& kept) {
        const AttentionShape& shape = a.shape;
        const auto uniform = [](int x) { return __shfl_sync(kFullWarp, x, 0); };
        for (int round = 0;; ++round) {
            ptx::mbar_wait(&bars.item_full, uint32_t(round & 1));
            const Item item = bars.items.get(round);
            if (item.tiles < 0) return;
            release(&bars.item_empty);
#pragma unroll
            for (int i = 0; i < D / 2; ++i) dq[i] = 0;
            const int q = item.row / kKeptRows + group;
            const KeyTiles mine = keys_of(shape, kept.places, item.batch, q);
            next = uniform(mine.first), end = uniform(mine.end);
            const int tile = kept.tile(item.batch * int(shape.H) + item.head, q, next), lane = int(threadIdx.x) % 32;
            from = kept.ds + int64_t(tile) * kKeptTileChunks + warp_row() / 16 * 128 + lane;
            int left = end - next;
            const int before = left > 0 ? next - item.first_tile : item.tiles, after = item.tiles - before - left;
#pragma unroll
            for (int i = 0; i < kAhead; ++i) read(ds[i], kept.places);
            for (int i = 0; i < before; ++i) pass_over();
            while (left > 0) {
                add(ds[0], kept.places);
                if (--left == 0) break;
                add(ds[1], kept.places);
                if (--left == 0) break;
                add(ds[2], kept.places);
                --left;
            }
            for (int i = 0; i < after; ++i) pass_over();
            const int row = group * kKeptRows + warp_row(), count = int(shape.Tq) - item.row - row;
            const int64_t to =
                item.batch * shape.q_batch + int64_t(item.row + row) * shape.q_row + int64_t(item.head) * D;
            store_rows<T, D>(static_cast<T*>(a.dq) + to, shape.q_row, count, smem + M::kOut, row, dq, shape.scale,
                             shape.scale, a.back.amax, &a.back, item.batch, item.row + row);
        }
    }
};

// Grids of order.blocks blocks. The body exists for sm_90a alone: compiled_for_sm90a().
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_dq_wgmma_kernel(AttentionBackward a, KeptScores kept, WorkOrder order,
                                       const __grid_constant__ CUtensorMap k) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    GPU_DYN_SMEM(smem);
    __shared__ Barriers bars;
    if (threadIdx.x == 0) {
        bars.items.init();
        ptx::mbar_init(&bars.item_full, 1);
        ptx::mbar_init(&bars.item_empty, 4 * kGroups);  // one lane of each consumer warp
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::mbar_init(&bars.full[stage], 1);
            ptx::mbar_init(&bars.empty[stage], 4 * kGroups);
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();
    const int group = warpgroup();
    if (group == 0) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (threadIdx.x == 0) produce<D>(smem, bars, &k);
        if (threadIdx.x == 32)
            bars.items.deal(order, a.beside.next_tile, [&](WorkItem w) { return item_of(a.shape, kept, order, w); });
        return;
    }
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T, D>(smem, bars, group - 1).run(a, kept);
#endif
}

}  // namespace

void attention_backward_dq_wgmma(const AttentionBackward& a, const KeptScores& kept, int64_t heads, CudaStream stream) {
    const AttentionShape& s = a.shape;
    with_mma_shape(s, [&]<class T, int D>() {
        if constexpr (D == 128) {
            const CUtensorMap k =
                wgmma_map<typename Smem<D>::Panel>(a.k, D, s.K, s.Tk, s.B, s.kv_row, s.kv_batch, kKeptRows);
            // In tiles of keys; the start and end of an item take about as long as three.
            const double step = kRows / kKeptRows, before = double(s.offset()) / kKeptRows;
            const WorkOrder order = work_order(
                {heads, s.H / s.K, blocks_for(s.Tq, kRows), 2 * s.Tk * D, step, 3 + step + before}, a.beside);
            launch(kernel<attention_backward_dq_wgmma_kernel<T, D>>,
                   LaunchConfig(dim3(unsigned(order.blocks)), dim3(kThreads), Smem<D>::kBytes, stream), a, kept, order,
                   k);
        }
    });
}

}  // namespace rz
