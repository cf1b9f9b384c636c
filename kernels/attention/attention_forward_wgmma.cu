// Attention forward for Hopper (sm_90a), after FlashAttention-3 (Shah et al. 2024): a producer warp brings tiles by TMA
// through a pipeline of mbarriers; warpgroups own 64 queries each and multiply by wgmma, P in registers. While the
// tensor cores multiply P of one tile by its values, the softmax of the next is computed; warpgroups take turns in
// enqueueing products, so that the softmax of one runs under the products of the others. Blocks stay and take one tile
// of queries after another: the next one's tiles come while this one's output is stored.
//
// Covers bf16 and fp16, D of 64, 80, 96 and 128, any lengths, any strides of whole 16 bytes.
#include "kernels/attention/attention_wgmma.cuh"

namespace rz {
namespace {

// Unused where there is no code for sm_90a.
[[maybe_unused]] constexpr int kKeys = 128, kGroupRows = 64;

// How much larger than its row's base an exponential may get, as a power of two, before the base moves and the output
// is rescaled: p stays below 2^8, and both sums far from the end of fp32.
[[maybe_unused]] constexpr float kSlack = 8;

// At D = 64 exponentials take as long as products, so that a third warpgroup pays; it has the registers.
template <int D>
struct Config {
    static constexpr int kGroups = D == 64 ? 3 : 2, kStages = D == 64 ? 4 : 2;
    static constexpr int kRows = kGroups * kGroupRows, kThreads = 128 * (kGroups + 1);
    // kThreads times what a thread starts with, which is a multiple of 8, is what they have later.
    static constexpr int kProducerRegisters = kGroups == 3 ? 32 : 24, kConsumerRegisters = kGroups == 3 ? 160 : 240;
    static_assert(128 * (kProducerRegisters + kGroups * kConsumerRegisters) == kThreads * (65536 / kThreads / 8 * 8));

    static constexpr int kQTile = WidePanels<D>::tile(kRows), kKTile = WidePanels<D>::tile(kKeys),
                         kVTile = SummedPanels<D>::tile(kKeys);
    static constexpr int kQ = 0, kK = kQ + kQTile, kV = kK + kStages * kKTile, kO = kV + kStages * kVTile;
    static constexpr int kBytes = kO + SmemRows<D>::bytes(kRows);
};

template <int kStages>
struct Barriers {
    uint64_t q_full, q_empty, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
    Items items;
};

// A tile of queries, and which tiles of keys some of them see, at least one
template <int D>
__device__ __forceinline__ Item queries_of(const AttentionShape& s, const WorkOrder& order, WorkItem w) {
    constexpr int kRows = Config<D>::kRows;
    const int H = int(s.H), Tq = int(s.Tq), t0 = (order.tiles - 1 - w.rank) * kRows, batch = w.head / H;
    const int head = w.head - batch * H;
    const int end = (min(int(s.offset()) + min(t0 + kRows, Tq), int(s.Tk)) + kKeys - 1) / kKeys;
    const int first_tile = min(first_key(s, batch, t0) / kKeys, end - 1);
    return {head, batch, t0, head / (H / int(s.K)), 1, first_tile, end - first_tile};
}

// One thread. For each item its queries, when all warpgroups have left the last ones; keys and values of every tile,
// each when all warpgroups have left its stage. The first keys need not wait for the queries' place. At the end an item
// that does not exist, without queries.
template <int D>
__device__ __forceinline__ void produce(unsigned char* smem, Barriers<Config<D>::kStages>& bars, const CUtensorMap* q,
                                        const CUtensorMap* k, const CUtensorMap* v) {
    using C = Config<D>;
    Cursor<C::kStages> at;
    int round = 0;
    for (;; ++round) {
        const Item& item = bars.items.next(round);
        if (item.tiles < 0) break;
        for (int tile = 0; tile < item.tiles; ++tile, at.advance()) {
            ptx::mbar_wait(&bars.k_empty[at.stage], at.parity ^ 1);
            ptx::mbar_arrive_expect_tx(&bars.k_full[at.stage], C::kKTile);
            load_panels<WidePanels<D>>(smem + C::kK + at.stage * C::kKTile, kKeys, k, &bars.k_full[at.stage],
                                       item.y_head, (item.first_tile + tile) * kKeys, item.batch);
            if (tile == 0) {
                ptx::mbar_wait(&bars.q_empty, uint32_t(round & 1) ^ 1);
                ptx::mbar_arrive_expect_tx(&bars.q_full, C::kQTile);
                load_panels<WidePanels<D>>(smem + C::kQ, C::kRows, q, &bars.q_full, item.head, item.row, item.batch);
            }
            ptx::mbar_wait(&bars.v_empty[at.stage], at.parity ^ 1);
            ptx::mbar_arrive_expect_tx(&bars.v_full[at.stage], C::kVTile);
            load_panels<SummedPanels<D>>(smem + C::kV + at.stage * C::kVTile, kKeys, v, &bars.v_full[at.stage],
                                         item.y_head, (item.first_tile + tile) * kKeys, item.batch);
        }
    }
    ptx::mbar_wait(&bars.q_empty, uint32_t(round & 1) ^ 1);
    ptx::mbar_arrive(&bars.q_full);
}

// Registers of a warpgroup: its rows' scores of one tile, their exponentials as A operands, and the output.
template <class T, int D>
struct Consumer {
    using C = Config<D>;
    unsigned char* smem;
    Barriers<C::kStages>& bars;
    const AttentionShape& shape;
    int group;    // which warpgroup
    float scale;  // of scores, for exp2
    Cursor<C::kStages> at = {};
    int batch = 0;
    int warp_first = 0;      // place of the warp's first row, counted from key 0
    int warp_documents = 0;  // from this key on documents hide none from the warp
    float s[kKeys / 2];
    uint32_t p[kKeys / 16][4];
    float o[D / 2];
    float top[2], sum[2];  // of rows g and g + 8: the exponentials' base; this lane's share
    float shrink[2];       // what sum and o are to be multiplied by, since the base moved

    __device__ __forceinline__ Consumer(unsigned char* smem, Barriers<C::kStages>& bars, const AttentionShape& shape,
                                        int group)
        : smem(smem), bars(bars), shape(shape), group(group), scale(shape.scale * kLog2e) {}

    __device__ __forceinline__ void start_scores(int stage) {
        using P = WidePanels<D>;
        start_product<T, D, kKeys, P, C::kRows>(s, operand_rows<P>(smem + C::kQ + P::bytes(group * kGroupRows)),
                                                operand_rows<P>(smem + C::kK + stage * C::kKTile));
    }
    __device__ __forceinline__ void start_output(int stage) {
        start_weighted<T, D>(o, p, smem + C::kV + stage * C::kVTile);
    }

    // Warpgroups enqueue their products in turn: 0, 1, .. and again 0.
    __device__ __forceinline__ void take_turn() const { ptx::bar_sync(1 + group, 256); }
    __device__ __forceinline__ void pass_turn() const {
        ptx::bar_arrive(1 + (group + 1 == C::kGroups ? 0 : group + 1), 256);
    }

    __device__ __forceinline__ void mask(int j0) {
        const int lane = int(threadIdx.x) % 32, sees = warp_first + lane / 4 - j0 - 2 * (lane % 4);
        const int last = int(shape.Tk) - 1 - j0 - 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i)
            if (i / 4 * 8 + i % 2 > min(sees + i % 4 / 2 * 8, last)) s[i] = -INFINITY;
    }
    // Hides what comes before the rows' documents.
    __device__ __forceinline__ void hide_documents(int j0) {
        const int lane = int(threadIdx.x) % 32, t = warp_first - int(shape.offset()) + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int hidden = first_key(shape, batch, t + 8 * h) - j0 - 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i)
                if (i % 4 / 2 == h && i / 4 * 8 + i % 2 < hidden) s[i] = -INFINITY;
        }
    }

    // s becomes exp2(scale * (s - base)). Two chains for each row's maximum and sum.
    __device__ __forceinline__ void softmax(int j0) {
        if (j0 + kKeys - 1 > min(warp_first, int(shape.Tk) - 1)) mask(j0);
        if (j0 < warp_documents) hide_documents(j0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = s[2 * h], odd = s[2 * h + 1];
#pragma unroll
            for (int i = 2 * h + 4; i < kKeys / 2; i += 4) most = fmaxf(most, s[i]), odd = fmaxf(odd, s[i + 1]);
            most = fmaxf(most, odd);
            most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
            most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
            if (!((most - top[h]) * scale > kSlack)) most = top[h];
            shrink[h] = ptx::ex2((top[h] - most) * scale);
            top[h] = most;
            const float base = most * scale;
            float part = 0;
            odd = 0;
#pragma unroll
            for (int i = 2 * h; i < kKeys / 2; i += 4) {
                s[i] = ptx::ex2(fmaf(s[i], scale, -base));
                s[i + 1] = ptx::ex2(fmaf(s[i + 1], scale, -base));
                part += s[i], odd += s[i + 1];
            }
            sum[h] = sum[h] * shrink[h] + (part + odd);
        }
        ptx::wgmma_pin(s);  // computed here, under the products in flight, and not after the wait for them
    }

    __device__ __forceinline__ void rescale() {
        if (!__any_sync(kFullWarp, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] *= shrink[i % 4 / 2];
    }

    // The queries' first `mine` tiles of keys, from first_tile on. One iteration for every tile but the first.
    __device__ __forceinline__ void attend(int first_tile, int mine) {
        ptx::mbar_wait(&bars.k_full[at.stage], at.parity);
        start_scores(at.stage);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(s);
        release(&bars.k_empty[at.stage]);
        if (mine == 1) release(&bars.q_empty);
        softmax(first_tile * kKeys);
        pack_operand<T, kKeys>(p, s);
        ptx::mbar_wait(&bars.v_full[at.stage], at.parity);
        for (int tile = 1; tile < mine; ++tile) {
            const int last = at.stage;
            at.advance();
            ptx::mbar_wait(&bars.k_full[at.stage], at.parity);
            take_turn();
            start_scores(at.stage);
            start_output(last);
            pass_turn();
            ptx::wgmma_wait<1>();  // the scores
            ptx::wgmma_pin(s);
            release(&bars.k_empty[at.stage]);
            if (tile == mine - 1) release(&bars.q_empty);
            softmax((first_tile + tile) * kKeys);
            // Here rather than at their use: the assembler would put the wait for the output, which follows, in front
            // of the softmax.
            ptx::mbar_wait(&bars.v_full[at.stage], once_known(sum[0] + sum[1], at.parity));
            ptx::wgmma_wait<0>();
            ptx::wgmma_pin(o);
            release(&bars.v_empty[last]);
            rescale();
            pack_operand<T, kKeys>(p, s);
        }
        start_output(at.stage);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(o);
        release(&bars.v_empty[at.stage]);
        at.advance();
    }

    // Tiles that other warpgroups see
    __device__ __forceinline__ void pass_over(int tile, int tiles) {
        for (; tile < tiles; ++tile, at.advance()) {
            ptx::mbar_wait(&bars.k_full[at.stage], at.parity);
            release(&bars.k_empty[at.stage]);
            if (tile > 0) take_turn(), pass_turn();
            ptx::mbar_wait(&bars.v_full[at.stage], at.parity);
            release(&bars.v_empty[at.stage]);
        }
    }

    // Normalises, stores the log-sum-exp, and stores o.
    __device__ __forceinline__ void finish(const AttentionForward& a, int round) {
        const AttentionShape& shape = a.shape;
        const Item item = bars.items.get(round);  // again, so that it needs no registers in between
        const int lane = int(threadIdx.x) % 32, warp_row = group * kGroupRows + int(threadIdx.x) / 32 % 4 * 16;
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float total = sum[h];
            total += __shfl_xor_sync(kFullWarp, total, 1);
            total += __shfl_xor_sync(kFullWarp, total, 2);
            inverse[h] = inverse_of(total);
            const int t = item.row + warp_row + lane / 4 + 8 * h;
            if (lane % 4 == 0 && t < shape.Tq)
                a.lse[(item.batch * shape.H + item.head) * shape.Tq + t] = top[h] * shape.scale + logf(total);
        }
        T* out = static_cast<T*>(a.o) + item.batch * shape.o_batch + int64_t(item.row + warp_row) * shape.o_row +
                 int64_t(item.head) * D;
        store_rows<T, D>(out, shape.o_row, int(shape.Tq) - item.row - warp_row, smem + C::kO, warp_row, o, inverse[0],
                         inverse[1], a.amax);
    }

    __device__ __forceinline__ void run(const AttentionForward& a) {
        const int Tq = int(a.shape.Tq), Tk = int(a.shape.Tk), offset = int(a.shape.offset());
        if (group == C::kGroups - 1) pass_turn();
        for (int round = 0;; ++round) {
            ptx::mbar_wait(&bars.q_full, uint32_t(round & 1));
            const Item item = bars.items.get(round);
            if (item.tiles < 0) break;
            const int row = item.row + group * kGroupRows, first = offset + row;
            // The first warpgroups may see fewer tiles than the last; rows beyond the end need none.
            const int end = (min(first + kGroupRows, Tk) + kKeys - 1) / kKeys;
            const int mine = row < Tq ? max(1, min(item.tiles, end - item.first_tile)) : 0;
            if (mine > 0) {
                const int warp_row = int(threadIdx.x) / 32 % 4 * 16;
                batch = item.batch;
                warp_first = first + warp_row;
                warp_documents = first_key(a.shape, batch, row + warp_row + 15);
#pragma unroll
                for (int i = 0; i < D / 2; ++i) o[i] = 0;
#pragma unroll
                for (int h = 0; h < 2; ++h) top[h] = kNoScore, sum[h] = 0;
                attend(item.first_tile, mine);
            } else {
                release(&bars.q_empty);
            }
            pass_over(mine, item.tiles);
            if (mine > 0) finish(a, round);
        }
        if (group == 0) take_turn();  // the one that is left
    }
};

// A grid of order.blocks blocks. The body exists for sm_90a alone: compiled_for_sm90a().
template <class T, int D>
__global__ void __launch_bounds__(Config<D>::kThreads, 1)
    attention_forward_wgmma_kernel(AttentionForward a, WorkOrder order, const __grid_constant__ CUtensorMap q,
                                   const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using C = Config<D>;
    GPU_DYN_SMEM(smem);
    __shared__ Barriers<C::kStages> bars;
    if (threadIdx.x == 0) {
        bars.items.init();
        ptx::mbar_init(&bars.q_full, 1);
        ptx::mbar_init(&bars.q_empty, 4 * C::kGroups);  // one lane of each consumer warp
        for (int stage = 0; stage < C::kStages; ++stage) {
            ptx::mbar_init(&bars.k_full[stage], 1);
            ptx::mbar_init(&bars.v_full[stage], 1);
            ptx::mbar_init(&bars.k_empty[stage], 4 * C::kGroups);
            ptx::mbar_init(&bars.v_empty[stage], 4 * C::kGroups);
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();
    const int group = warpgroup();
    if (group == 0) {
        ptx::setmaxnreg_dec<C::kProducerRegisters>();
        if (threadIdx.x == 0) produce<D>(smem, bars, &q, &k, &v);
        if (threadIdx.x == 32)
            bars.items.deal(order, a.beside.next_tile, [&](WorkItem w) { return queries_of<D>(a.shape, order, w); });
        return;
    }
    ptx::setmaxnreg_inc<C::kConsumerRegisters>();
    Consumer<T, D>(smem, bars, a.shape, group - 1).run(a);
#endif
}

}  // namespace

bool attention_forward_wgmma(const AttentionForward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (!wgmma_covers(s, a.o, a.q, a.k, a.v)) return false;
    bool done = false;
    with_mma_shape(s, [&]<class T, int D>() {
        using C = Config<D>;
        const auto& forward = kernel<attention_forward_wgmma_kernel<T, D>>;
        if (!compiled_for_sm90a(forward.address())) return;
        // Tiles of 128 keys; the start and end of an item take about as long as one of them.
        const WorkOrder order = work_order({s.B * s.H, s.H / s.K, blocks_for(s.Tq, C::kRows), 4 * s.Tk * D,
                                            double(C::kRows) / kKeys, 2 + double(s.offset()) / kKeys},
                                           a.beside);
        launch(forward, LaunchConfig(dim3(unsigned(order.blocks)), dim3(C::kThreads), C::kBytes, stream), a, order,
               wgmma_map<WidePanels<D>>(a.q, D, s.H, s.Tq, s.B, s.q_row, s.q_batch, C::kRows),
               wgmma_map<WidePanels<D>>(a.k, D, s.K, s.Tk, s.B, s.kv_row, s.kv_batch, kKeys),
               wgmma_map<SummedPanels<D>>(a.v, D, s.K, s.Tk, s.B, s.kv_row, s.kv_batch, kKeys));
        done = true;
    });
    return done;
}

}  // namespace rz
