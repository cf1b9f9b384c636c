// Attention forward for Hopper (sm_90a), after FlashAttention-3 (Shah et al. 2024): a producer warp brings tiles by TMA
// through a pipeline of mbarriers; two warpgroups own 64 queries each and multiply by wgmma, P in registers. While the
// tensor cores multiply P of one tile by its values, the softmax of the next is computed.
#include "kernels/attention_mma.cuh"

namespace rz {
namespace {

// Unused where there is no code for sm_90a.
[[maybe_unused]] constexpr int kRows = 128, kKeys = 128, kGroupRows = 64, kStages = 2, kThreads = 384;
[[maybe_unused]] constexpr int kPanelBytes = 128 * 128;  // 128 rows of 64 elements under TMA's 128-byte swizzle
[[maybe_unused]] constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // 128 * 24 + 256 * 240 <= 65536

template <int D>
struct Smem {
    static constexpr int kTile = kPanelBytes * (D / 64);
    static constexpr int kQ = 0, kK = kQ + kTile, kV = kK + kStages * kTile, kO = kV + kStages * kTile;
    static constexpr int kBytes = kO + kTile;
};

struct Barriers {
    uint64_t q, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
};

template <class T, int N, bool kTransB, class... A>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const A&... operands) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        ptx::wgmma_bf16<N, kTransB>(d, operands..., true);
    else
        ptx::wgmma_fp16<N, kTransB>(d, operands..., true);
}

// One thread: queries once, then keys and values of every tile, each when both warpgroups have left its stage.
template <int D>
__device__ __forceinline__ void produce(unsigned char* smem, Barriers& bars, const CUtensorMap* q, const CUtensorMap* k,
                                        const CUtensorMap* v, int head, int kv_head, int batch, int t0, int tiles) {
    using M = Smem<D>;
    ptx::mbar_arrive_expect_tx(&bars.q, M::kTile);
    for (int p = 0; p < D / 64; ++p)
        ptx::tma_load_4d(smem + M::kQ + p * kPanelBytes, q, &bars.q, 64 * p, head, t0, batch);
    for (int tile = 0; tile < tiles; ++tile) {
        const int stage = tile % kStages;
        const uint32_t free_parity = uint32_t(tile / kStages & 1) ^ 1;
        ptx::mbar_wait(&bars.k_empty[stage], free_parity);
        ptx::mbar_arrive_expect_tx(&bars.k_full[stage], M::kTile);
        for (int p = 0; p < D / 64; ++p)
            ptx::tma_load_4d(smem + M::kK + stage * M::kTile + p * kPanelBytes, k, &bars.k_full[stage], 64 * p, kv_head,
                             tile * kKeys, batch);
        ptx::mbar_wait(&bars.v_empty[stage], free_parity);
        ptx::mbar_arrive_expect_tx(&bars.v_full[stage], M::kTile);
        for (int p = 0; p < D / 64; ++p)
            ptx::tma_load_4d(smem + M::kV + stage * M::kTile + p * kPanelBytes, v, &bars.v_full[stage], 64 * p, kv_head,
                             tile * kKeys, batch);
    }
}

// What a warpgroup keeps: its rows' scores of one tile, their exponentials as A operands, and the output.
template <class T, int D>
struct Consumer {
    using M = Smem<D>;
    unsigned char* smem;
    int row;         // the warpgroup's first in the tile
    int warp_first;  // position of the warp's first row
    float scale;     // of scores, for exp2
    float s[kKeys / 2];
    uint32_t p[kKeys / 16][4];
    float o[D / 2];
    float top[2], sum[2];  // of rows g and g + 8; sum: this lane's share

    // Enqueues s = q k^T.
    __device__ __forceinline__ void start_scores(int stage) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) s[i] = 0;
        ptx::wgmma_pin(s);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            const int at = step / 4 * kPanelBytes + step % 4 * 32;
            wgmma<T, kKeys, false>(s, ptx::wgmma_descriptor_128(smem + M::kQ + row * 128 + at),
                                   ptx::wgmma_descriptor_128(smem + M::kK + stage * M::kTile + at));
        }
        ptx::wgmma_commit();
    }

    // Enqueues o += p v; v's rows are keys, so as an operand it is transposed.
    __device__ __forceinline__ void start_output(int stage) {
        ptx::wgmma_pin(o);
        ptx::wgmma_pin(p);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
            wgmma<T, D, true>(
                o, p[step],
                ptx::wgmma_descriptor(smem + M::kV + stage * M::kTile + step * 16 * 128, kPanelBytes, 1024, 1));
        ptx::wgmma_commit();
    }

    // s becomes exp2(scale * (s - new maximum)); shrink is what o is to be multiplied by.
    __device__ __forceinline__ void softmax(int j0, float (&shrink)[2]) {
        const int lane = int(threadIdx.x) % 32, g = lane / 4, pair = lane % 4;
        if (j0 + kKeys - 1 > warp_first) {
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i)
                if (j0 + i / 4 * 8 + 2 * pair + i % 2 > warp_first + g + i % 4 / 2 * 8) s[i] = -INFINITY;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = top[h];
#pragma unroll
            for (int i = 2 * h; i < kKeys / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
            most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
            most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
            shrink[h] = ptx::ex2((top[h] - most) * scale);
            const float base = most * scale;
            float part = 0;
#pragma unroll
            for (int i = 2 * h; i < kKeys / 2; i += 4)
#pragma unroll
                for (int e = i; e < i + 2; ++e) {
                    s[e] = ptx::ex2(fmaf(s[e], scale, -base));
                    part += s[e];
                }
            sum[h] = sum[h] * shrink[h] + part;
            top[h] = most;
        }
    }

    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
            for (int r = 0; r < 4; ++r) p[step][r] = pack_pair<T>(s[8 * step + 2 * r], s[8 * step + 2 * r + 1]);
    }

    __device__ __forceinline__ static void release(uint64_t* empty) {
        if (threadIdx.x % 32 == 0) ptx::mbar_arrive(empty);
    }

    __device__ __forceinline__ void run(Barriers& bars, int tiles) {
        float shrink[2];
        ptx::mbar_wait(&bars.q, 0);
        ptx::mbar_wait(&bars.k_full[0], 0);
        start_scores(0);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(s);
        release(&bars.k_empty[0]);
        softmax(0, shrink);
        pack();
        for (int tile = 1; tile < tiles; ++tile) {
            const int stage = tile % kStages, last = (tile - 1) % kStages;
            ptx::mbar_wait(&bars.k_full[stage], uint32_t(tile / kStages & 1));
            start_scores(stage);
            ptx::mbar_wait(&bars.v_full[last], uint32_t((tile - 1) / kStages & 1));
            start_output(last);
            ptx::wgmma_wait<1>();  // the scores
            ptx::wgmma_pin(s);
            release(&bars.k_empty[stage]);
            softmax(tile * kKeys, shrink);
            ptx::wgmma_wait<0>();
            ptx::wgmma_pin(o);
            release(&bars.v_empty[last]);
#pragma unroll
            for (int i = 0; i < D / 2; ++i) o[i] *= shrink[i % 4 / 2];
            pack();
        }
        ptx::mbar_wait(&bars.v_full[(tiles - 1) % kStages], uint32_t((tiles - 1) / kStages & 1));
        start_output((tiles - 1) % kStages);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(o);
    }

    // Normalises, stores the log-sum-exp, and stores o through the warp's own rows of a tile of shared memory.
    __device__ __forceinline__ void finish(const AttentionForward& a, int t0) {
        const AttentionShape& shape = a.shape;
        const int lane = int(threadIdx.x) % 32, warp_row = row + int(threadIdx.x) / 32 % 4 * 16;
        const int64_t head = blockIdx.x, batch = blockIdx.y;
        float inverse[2], acc[D / 8][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float total = sum[h];
            total += __shfl_xor_sync(kFullWarp, total, 1);
            total += __shfl_xor_sync(kFullWarp, total, 2);
            inverse[h] = 1.0f / total;
            const int t = t0 + warp_row + lane / 4 + 8 * h;
            if (lane % 4 == 0 && t < shape.Tq)
                a.lse[(batch * shape.H + head) * shape.Tq + t] = top[h] * shape.scale + logf(total);
        }
#pragma unroll
        for (int i = 0; i < D / 2; ++i) acc[i / 4][i % 4] = o[i];
        accumulators_to_tile<T, D>(smem + M::kO, warp_row, acc, inverse[0], inverse[1]);
        __syncwarp();
        T* out = static_cast<T*>(a.o) + batch * shape.o_batch + int64_t(t0 + warp_row) * shape.o_row + head * D;
        store_tile_rows<T, D, 16>(out, shape.o_row, int(shape.Tq) - t0 - warp_row, smem + M::kO, warp_row);
    }
};

// Grid (H, B, query tiles), the longest tiles first. The body exists for sm_90a alone, and with it the static shared
// memory by which the host knows that this build has it.
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_wgmma_kernel(AttentionForward a, const __grid_constant__ CUtensorMap q,
                                   const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    GPU_DYN_SMEM(smem);
    __shared__ Barriers bars;
    const AttentionShape& shape = a.shape;
    const int head = int(blockIdx.x), batch = int(blockIdx.y), offset = int(shape.Tk - shape.Tq);
    const int t0 = int(gridDim.z - 1 - blockIdx.z) * kRows;
    const int tiles = (offset + min(t0 + kRows, int(shape.Tq)) + kKeys - 1) / kKeys;
    if (threadIdx.x == 0) {
        ptx::mbar_init(&bars.q, 1);
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::mbar_init(&bars.k_full[stage], 1);
            ptx::mbar_init(&bars.v_full[stage], 1);
            ptx::mbar_init(&bars.k_empty[stage], 8);  // one lane of each consumer warp
            ptx::mbar_init(&bars.v_empty[stage], 8);
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (threadIdx.x == 0) produce<D>(smem, bars, &q, &k, &v, head, head / int(shape.H / shape.K), batch, t0, tiles);
        return;
    }
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T, D> c;
    c.smem = smem;
    c.row = (int(threadIdx.x) / 128 - 1) * kGroupRows;
    const int first = offset + t0 + c.row;  // position of the warpgroup's first row
    c.warp_first = first + int(threadIdx.x) / 32 % 4 * 16;
    c.scale = shape.scale * kLog2e;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) c.o[i] = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) c.top[h] = -INFINITY, c.sum[h] = 0;
    c.run(bars, min(tiles, (first + kGroupRows + kKeys - 1) / kKeys));  // the first group may see a tile less
    c.finish(a, t0);
#endif
}

}  // namespace

bool attention_forward_wgmma(const AttentionForward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (!wgmma_covers(s, a.o, a.q, a.k, a.v)) return false;
    const unsigned tiles = blocks_for(s.Tq, kRows);
    if (tiles > 65535) return false;
    return with_wgmma_shape(s, [&]<class T, int D>() {
        const auto kernel = attention_forward_wgmma_kernel<T, D>;
        if (!compiled_for_sm90a(reinterpret_cast<const void*>(kernel))) return false;
        launch(kernel, LaunchConfig(dim3(unsigned(s.H), unsigned(s.B), tiles), dim3(kThreads), Smem<D>::kBytes, stream),
               a, wgmma_map(a.q, D, s.H, s.Tq, s.B, s.q_row, s.q_batch, kRows),
               wgmma_map(a.k, D, s.K, s.Tk, s.B, s.kv_row, s.kv_batch, kKeys),
               wgmma_map(a.v, D, s.K, s.Tk, s.B, s.kv_row, s.kv_batch, kKeys));
        return true;
    });
}

}  // namespace rz
