// Attention backward for Hopper (sm_90a): the two deterministic kernels of attention_backward_mma.cu with TMA and
// wgmma. A producer warp streams tiles of 64 rows; two warpgroups keep 64 rows each of k and v (for dk, dv) or of q and
// d_o (for dq). p and ds stay in registers as A operands; the streamed tiles serve once as they lie and once
// transposed.
#include "kernels/attention_mma.cuh"

namespace rz {
namespace {

// Unused where there is no code for sm_90a.
[[maybe_unused]] constexpr int kGroupRows = 64, kRows = 2 * kGroupRows, kStream = 64, kStages = 2, kThreads = 384;
[[maybe_unused]] constexpr int kPanelBytes = 64 * 128;  // 64 rows of 64 elements under TMA's 128-byte swizzle
[[maybe_unused]] constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // 128 * 24 + 256 * 240 <= 65536

// x1, x2: k, v or q, d_o of the first warpgroup, then of the second. y1, y2: q, d_o or k, v of every stage.
template <int D>
struct Smem {
    static constexpr int kTile = kPanelBytes * (D / 64);
    static constexpr int kX = 0, kY = kX + 4 * kTile, kStats = kY + 2 * kStages * kTile;
    static constexpr int kStatFloats = 2 * kStream;  // lse and delta of a tile's queries, for one warpgroup
    static constexpr int kBytes = kStats + 2 * 2 * kStatFloats * int(sizeof(float));
};

struct Barriers {
    uint64_t x, full[kStages], empty[kStages];
};

// The tensors of a kernel by role, and its share of the work
struct Roles {
    const CUtensorMap* x1;
    const CUtensorMap* x2;
    const CUtensorMap* y1;
    const CUtensorMap* y2;
    int batch, x_head, first_row;  // of the block's rows
    int y_head, first_tile;        // where the stream begins; it runs to the end of each of `heads` heads
    int heads, tiles;              // tiles of each head
};

template <int D>
__device__ __forceinline__ void load_panels(unsigned char* tile, const CUtensorMap* map, uint64_t* bar, int head,
                                            int row, int batch) {
    for (int p = 0; p < D / 64; ++p) ptx::tma_load_4d(tile + p * kPanelBytes, map, bar, 64 * p, head, row, batch);
}

// One thread
template <int D>
__device__ __forceinline__ void produce(unsigned char* smem, Barriers& bars, const Roles& r) {
    using M = Smem<D>;
    ptx::mbar_arrive_expect_tx(&bars.x, 4 * M::kTile);
    for (int group = 0; group < 2; ++group) {
        unsigned char* x = smem + M::kX + 2 * group * M::kTile;
        load_panels<D>(x, r.x1, &bars.x, r.x_head, r.first_row + group * kGroupRows, r.batch);
        load_panels<D>(x + M::kTile, r.x2, &bars.x, r.x_head, r.first_row + group * kGroupRows, r.batch);
    }
    for (int i = 0; i < r.heads * r.tiles; ++i) {
        const int stage = i % kStages, head = r.y_head + i / r.tiles, row = (r.first_tile + i % r.tiles) * kStream;
        unsigned char* y = smem + M::kY + 2 * stage * M::kTile;
        ptx::mbar_wait(&bars.empty[stage], uint32_t(i / kStages & 1) ^ 1);
        ptx::mbar_arrive_expect_tx(&bars.full[stage], 2 * M::kTile);
        load_panels<D>(y, r.y1, &bars.full[stage], head, row, r.batch);
        load_panels<D>(y + M::kTile, r.y2, &bars.full[stage], head, row, r.batch);
    }
}

template <class T, int N, bool kTransB, class A>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const A& a, uint64_t b, bool accumulate) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        ptx::wgmma_bf16<N, kTransB>(d, a, b, accumulate);
    else
        ptx::wgmma_fp16<N, kTransB>(d, a, b, accumulate);
}

// out = x y^T, 64 x 64
template <class T, int D>
__device__ __forceinline__ void start_product(float (&out)[kStream / 2], const unsigned char* x,
                                              const unsigned char* y) {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        const int at = step / 4 * kPanelBytes + step % 4 * 32;
        wgmma<T, kStream, false>(out, ptx::wgmma_descriptor_128(x + at), ptx::wgmma_descriptor_128(y + at), step > 0);
    }
    ptx::wgmma_commit();
}

// grad += weights y, 64 x D
template <class T, int D>
__device__ __forceinline__ void start_gradient(float (&grad)[D / 2], uint32_t (&weights)[kStream / 16][4],
                                               const unsigned char* y) {
    ptx::wgmma_pin(grad);
    ptx::wgmma_pin(weights);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStream / 16; ++step)
        wgmma<T, D, true>(grad, weights[step], ptx::wgmma_descriptor(y + step * 16 * 128, kPanelBytes, 1024, 1), true);
    ptx::wgmma_commit();
}

template <class T, int D, bool kForKeys>
struct Consumer {
    using M = Smem<D>;
    unsigned char* smem;
    int group;                          // 0 or 1
    int first;                          // position of the warpgroup's first row
    float scale;                        // of scores, for exp2
    float row_lse[2], row_delta[2];     // of rows g and g + 8, for dq
    float grad1[D / 2];                 // dk or dq
    float grad2[kForKeys ? D / 2 : 2];  // dv

    __device__ __forceinline__ int thread() const { return int(threadIdx.x) % 128; }
    __device__ __forceinline__ int warp_row() const { return thread() / 32 * 16; }
    __device__ __forceinline__ void group_barrier() const { ptx::bar_sync(1 + group, 128); }

    // s becomes p. ahead: position of the stream's row 0 against that of the warpgroup's.
    __device__ __forceinline__ void probabilities(float (&s)[kStream / 2], const float* lse, int ahead) const {
        const int lane = thread() % 32, pair = lane % 4, r = warp_row() + lane / 4;
        const bool masked = kForKeys ? ahead < kGroupRows - 1 : ahead + kStream - 1 > 0;
#pragma unroll
        for (int i = 0; i < kStream / 2; ++i) {
            const int column = i / 4 * 8 + 2 * pair + i % 2, h = i % 4 / 2;
            s[i] = ptx::ex2(fmaf(s[i], scale, -kLog2e * (kForKeys ? lse[column] : row_lse[h])));
            if (masked && (kForKeys ? ahead + column < r + 8 * h : ahead + column > r + 8 * h)) s[i] = 0;
        }
    }

    // dp becomes ds.
    __device__ __forceinline__ void score_gradients(float (&dp)[kStream / 2], const float (&p)[kStream / 2],
                                                    const float* delta) const {
        const int pair = thread() % 4;
#pragma unroll
        for (int i = 0; i < kStream / 2; ++i)
            dp[i] = p[i] * (dp[i] - (kForKeys ? delta[i / 4 * 8 + 2 * pair + i % 2] : row_delta[i % 4 / 2]));
    }

    __device__ __forceinline__ static void pack(uint32_t (&a)[kStream / 16][4], const float (&x)[kStream / 2]) {
#pragma unroll
        for (int step = 0; step < kStream / 16; ++step)
#pragma unroll
            for (int r = 0; r < 4; ++r) a[step][r] = pack_pair<T>(x[8 * step + 2 * r], x[8 * step + 2 * r + 1]);
    }

    // One streamed tile
    __device__ __forceinline__ void consume(int stage, const float* stats, int ahead) {
        const unsigned char* x = smem + M::kX + 2 * group * M::kTile;
        const unsigned char* y = smem + M::kY + 2 * stage * M::kTile;
        float s[kStream / 2], dp[kStream / 2];
        uint32_t weights[kStream / 16][4];
        start_product<T, D>(s, x, y);
        start_product<T, D>(dp, x + M::kTile, y + M::kTile);
        ptx::wgmma_wait<1>();  // s
        ptx::wgmma_pin(s);
        probabilities(s, stats, ahead);
        if constexpr (kForKeys) {
            uint32_t p[kStream / 16][4];
            pack(p, s);
            start_gradient<T, D>(grad2, p, y + M::kTile);
            ptx::wgmma_wait<1>();  // dp
            ptx::wgmma_pin(dp);
            score_gradients(dp, s, stats + kStream);
            pack(weights, dp);
            start_gradient<T, D>(grad1, weights, y);
            ptx::wgmma_wait<0>();
            ptx::wgmma_pin(grad2);
        } else {
            ptx::wgmma_wait<0>();  // dp
            ptx::wgmma_pin(dp);
            score_gradients(dp, s, stats);
            pack(weights, dp);
            start_gradient<T, D>(grad1, weights, y);
            ptx::wgmma_wait<0>();
        }
        ptx::wgmma_pin(grad1);
    }

    // lse (threads 0..63) or delta of row t of a head; zero beyond the end, where d_o is zero as well
    __device__ __forceinline__ float stat(const AttentionBackward& a, const Roles& r, int i) const {
        const int t = (r.first_tile + i % r.tiles) * kStream + thread() % kStream;
        if (i >= r.heads * r.tiles || t >= a.shape.Tq) return 0.0f;
        const float* source = thread() < kStream ? a.lse : static_cast<const float*>(a.workspace);
        return source[(r.batch * a.shape.H + r.y_head + i / r.tiles) * a.shape.Tq + t];
    }

    __device__ __forceinline__ void run(const AttentionBackward& a, Barriers& bars, const Roles& r) {
        float next = kForKeys ? stat(a, r, 0) : 0.0f;
        ptx::mbar_wait(&bars.x, 0);
        for (int i = 0; i < r.heads * r.tiles; ++i) {
            const int stage = i % kStages, ahead = (r.first_tile + i % r.tiles) * kStream - first;
            float* stats = reinterpret_cast<float*>(smem + M::kStats) + (2 * group + i % 2) * M::kStatFloats;
            if constexpr (kForKeys) {
                stats[thread()] = next;
                group_barrier();  // and so everyone has left the statistics of two tiles ago
                next = stat(a, r, i + 1);
            }
            ptx::mbar_wait(&bars.full[stage], uint32_t(i / kStages & 1));
            const bool seen = kForKeys ? ahead + kStream - 1 >= 0 : ahead < kGroupRows;
            if (seen) consume(stage, stats, ahead);
            __syncwarp();  // every lane has seen this phase of `full`, or it could miss it
            if (thread() % 32 == 0) ptx::mbar_arrive(&bars.empty[stage]);
        }
    }

    // Through the warpgroup's own part of x, once all of it has been multiplied
    __device__ __forceinline__ void store(T* out, int64_t row_stride, int count, int which, const float (&grad)[D / 2],
                                          float factor) {
        unsigned char* tile = smem + M::kX + (2 * group + which) * M::kTile;
        float acc[D / 8][4];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) acc[i / 4][i % 4] = grad[i];
        accumulators_to_tile<T, D>(tile, warp_row(), acc, factor, factor);
        __syncwarp();
        store_tile_rows<T, D, 16>(out + warp_row() * row_stride, row_stride, count - warp_row(), tile, warp_row());
    }
};

// Starts the producer, which returns false, or makes a consumer of the calling thread.
template <class T, int D, bool kForKeys>
__device__ __forceinline__ bool begin(Consumer<T, D, kForKeys>& c, unsigned char* smem, Barriers& bars, const Roles& r,
                                      float scale) {
    if (threadIdx.x == 0) {
        ptx::mbar_init(&bars.x, 1);
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::mbar_init(&bars.full[stage], 1);
            ptx::mbar_init(&bars.empty[stage], 8);  // one lane of each consumer warp
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (threadIdx.x == 0) produce<D>(smem, bars, r);
        return false;
    }
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    c.smem = smem;
    c.group = int(threadIdx.x) / 128 - 1;
    c.first = r.first_row + c.group * kGroupRows;
    c.scale = scale * kLog2e;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) c.grad1[i] = 0;
#pragma unroll
    for (int i = 0; i < (kForKeys ? D / 2 : 2); ++i) c.grad2[i] = 0;
    return true;
}

// Grid (K, B, key tiles); early keys have the most queries, so they start first. The body exists for sm_90a alone, and
// with it the static shared memory by which the host knows that this build has it.
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_kv_wgmma_kernel(AttentionBackward a, const __grid_constant__ CUtensorMap q,
                                       const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                                       const __grid_constant__ CUtensorMap d_o) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    GPU_DYN_SMEM(smem);
    __shared__ Barriers bars;
    const AttentionShape& s = a.shape;
    const int kv_head = int(blockIdx.x), heads = int(s.H / s.K), j0 = int(blockIdx.z) * kRows, length = int(s.Tq);
    const Roles r{&k,
                  &v,
                  &q,
                  &d_o,
                  int(blockIdx.y),
                  kv_head,
                  j0,
                  kv_head * heads,
                  j0 / kStream,
                  heads,
                  (length + kStream - 1) / kStream - j0 / kStream};
    Consumer<T, D, true> c;
    if (!begin(c, smem, bars, r, s.scale)) return;
    c.run(a, bars, r);
    c.group_barrier();
    const int64_t at = r.batch * s.kv_batch + int64_t(c.first) * s.kv_row + int64_t(kv_head) * D;
    c.store(static_cast<T*>(a.dk) + at, s.kv_row, length - c.first, 0, c.grad1, s.scale);
    c.store(static_cast<T*>(a.dv) + at, s.kv_row, length - c.first, 1, c.grad2, 1.0f);
#endif
}

// Grid (H, B, query tiles), the longest first.
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_q_wgmma_kernel(AttentionBackward a, const __grid_constant__ CUtensorMap q,
                                      const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                                      const __grid_constant__ CUtensorMap d_o) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    GPU_DYN_SMEM(smem);
    __shared__ Barriers bars;
    const AttentionShape& s = a.shape;
    const int head = int(blockIdx.x), length = int(s.Tq), t0 = int(gridDim.z - 1 - blockIdx.z) * kRows;
    const Roles r{&q,
                  &d_o,
                  &k,
                  &v,
                  int(blockIdx.y),
                  head,
                  t0,
                  head / int(s.H / s.K),
                  0,
                  1,
                  (min(t0 + kRows, length) + kStream - 1) / kStream};
    Consumer<T, D, false> c;
    if (!begin(c, smem, bars, r, s.scale)) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int t = c.first + c.warp_row() + c.thread() % 32 / 4 + 8 * h;
        const int64_t at = (r.batch * s.H + head) * s.Tq + t;
        c.row_lse[h] = t < length ? a.lse[at] : 0.0f;
        c.row_delta[h] = t < length ? static_cast<const float*>(a.workspace)[at] : 0.0f;
    }
    c.run(a, bars, r);
    c.group_barrier();
    c.store(static_cast<T*>(a.dq) + r.batch * s.q_batch + int64_t(c.first) * s.q_row + int64_t(head) * D, s.q_row,
            length - c.first, 0, c.grad1, s.scale);
#endif
}

}  // namespace

bool attention_backward_wgmma(const AttentionBackward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (!wgmma_covers(s, a.dq, a.dk, a.dv, a.d_o, a.q, a.k, a.v)) return false;
    const unsigned tiles = blocks_for(s.Tk, kRows);
    if (tiles > 65535) return false;
    return with_wgmma_shape(s, [&]<class T, int D>() {
        const auto kv_kernel = attention_backward_kv_wgmma_kernel<T, D>;
        const auto q_kernel = attention_backward_q_wgmma_kernel<T, D>;
        if (!compiled_for_sm90a(reinterpret_cast<const void*>(kv_kernel))) return false;
        const auto map = [&](const void* base, int64_t heads, int64_t row, int64_t batch) {
            return wgmma_map(base, D, heads, s.Tq, s.B, row, batch, kStream);
        };
        const CUtensorMap q = map(a.q, s.H, s.q_row, s.q_batch), k = map(a.k, s.K, s.kv_row, s.kv_batch),
                          v = map(a.v, s.K, s.kv_row, s.kv_batch), d_o = map(a.d_o, s.H, s.o_row, s.o_batch);
        launch(kv_kernel,
               LaunchConfig(dim3(unsigned(s.K), unsigned(s.B), tiles), dim3(kThreads), Smem<D>::kBytes, stream), a, q,
               k, v, d_o);
        launch(q_kernel,
               LaunchConfig(dim3(unsigned(s.H), unsigned(s.B), tiles), dim3(kThreads), Smem<D>::kBytes, stream), a, q,
               k, v, d_o);
        return true;
    });
}

}  // namespace rz
