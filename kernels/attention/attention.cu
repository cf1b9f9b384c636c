// Attention for every dtype and every even D <= 256: fp32 FMA on tiles in shared memory. What the tensor-core kernels
// (attention_*_mma.cu, attention_forward_wgmma.cu) do not cover comes here.
#include "kernels/attention/attention_mma.cuh"
#include "kernels/runtime/request.h"

namespace rz {
namespace {

constexpr int kThreads = 256;  // 16 x 16: thread (ty, tx) holds rows ty + 16 i and columns tx + 16 j of a tile
constexpr float kLn2 = 0.6931471805599453f;

// The backward pass's largest D whose tiles fit into 64 KiB, and where it is needed
constexpr int kSmallMaxD = 240;
template <int kMaxD>
constexpr bool kNeeded = kMaxD == kSmallMaxD ? kHas64KiB : kMaxD <= 64 || kHasMore;

template <int kMaxD>
struct Tile {
    static constexpr int kRows = kMaxD <= 128 ? 32 : 16;
    static constexpr int kPerThread = kRows / 16;
    static constexpr int kColumns = kMaxD / 16;
    static constexpr int kStride = kMaxD + 1;  // odd: a column of rows lies in different banks
    static constexpr int kScoreStride = kRows + 1;
    static constexpr int kFloats = kRows * kStride;
    static constexpr int kScoreFloats = kRows * kScoreStride;
};

// `count` rows of D elements, `row_stride` apart, to fp32; the tile's other rows become zero.
template <class T, int kMaxD>
__device__ __forceinline__ void load_tile(float* tile, const T* source, int64_t row_stride, int64_t count, int D) {
    const int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
    for (int r = ty; r < Tile<kMaxD>::kRows; r += 16)
        for (int d = tx; d < D; d += 16)
            tile[r * Tile<kMaxD>::kStride + d] = r < count ? to_float(source[r * row_stride + d]) : 0.0f;
}

// out[i][j] = sum over d of a[row i][d] * b[row j][d]
template <int kMaxD>
__device__ __forceinline__ void dot_tiles(float (&out)[Tile<kMaxD>::kPerThread][Tile<kMaxD>::kPerThread],
                                          const float* a, const float* b, int D) {
    using Shape = Tile<kMaxD>;
    const int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
#pragma unroll
    for (int i = 0; i < Shape::kPerThread; ++i)
#pragma unroll
        for (int j = 0; j < Shape::kPerThread; ++j) out[i][j] = 0;
#pragma unroll 4
    for (int d = 0; d < D; ++d)
#pragma unroll
        for (int i = 0; i < Shape::kPerThread; ++i)
#pragma unroll
            for (int j = 0; j < Shape::kPerThread; ++j)
                out[i][j] += a[(ty + 16 * i) * Shape::kStride + d] * b[(tx + 16 * j) * Shape::kStride + d];
}

// acc[i][j] += sum over c of weight(row i, c) * rows[c][column j]; weights[r][c], or weights[c][r] if kTransposed
template <int kMaxD, bool kTransposed>
__device__ __forceinline__ void add_weighted(float (&acc)[Tile<kMaxD>::kPerThread][Tile<kMaxD>::kColumns],
                                             const float* weights, const float* rows, int D) {
    using Shape = Tile<kMaxD>;
    const int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
    for (int c = 0; c < Shape::kRows; ++c) {
        float w[Shape::kPerThread];
#pragma unroll
        for (int i = 0; i < Shape::kPerThread; ++i)
            w[i] = kTransposed ? weights[c * Shape::kScoreStride + ty + 16 * i]
                               : weights[(ty + 16 * i) * Shape::kScoreStride + c];
#pragma unroll
        for (int j = 0; j < Shape::kColumns; ++j) {
            const int d = tx + 16 * j;
            if (d >= D) break;
            const float x = rows[c * Shape::kStride + d];
#pragma unroll
            for (int i = 0; i < Shape::kPerThread; ++i) acc[i][j] += w[i] * x;
        }
    }
}

template <class T, int kMaxD>
__device__ __forceinline__ void store_rows(T* out, int64_t row_stride, int64_t count, int D,
                                           const float (&acc)[Tile<kMaxD>::kPerThread][Tile<kMaxD>::kColumns],
                                           uint32_t* amax = nullptr) {
    const int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Tile<kMaxD>::kPerThread; ++i) {
        const int r = ty + 16 * i;
        if (r >= count) continue;
#pragma unroll
        for (int j = 0; j < Tile<kMaxD>::kColumns; ++j)
            if (tx + 16 * j < D) {
                out[r * row_stride + tx + 16 * j] = from_float<T>(acc[i][j]);
                most = max(most, magnitude_bits(acc[i][j]));
            }
    }
    if (amax != nullptr) warp_join<T>(amax, most);
}

template <int kMaxD>
__device__ __forceinline__ void add_rows(float* out, int64_t row_stride, int64_t count, int D,
                                         const float (&acc)[Tile<kMaxD>::kPerThread][Tile<kMaxD>::kColumns]) {
    const int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
#pragma unroll
    for (int i = 0; i < Tile<kMaxD>::kPerThread; ++i) {
        const int r = ty + 16 * i;
        if (r >= count) continue;
#pragma unroll
        for (int j = 0; j < Tile<kMaxD>::kColumns; ++j)
            if (tx + 16 * j < D) out[r * row_stride + tx + 16 * j] += acc[i][j];
    }
}

// Reductions over the 16 lanes that share a row
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, d));
    return v;
}
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) v += __shfl_xor_sync(kFullWarp, v, d);
    return v;
}

// Grid (query tiles, H, B).
template <class T, int kMaxD>
__global__ void __launch_bounds__(kThreads) attention_forward_kernel(AttentionForward a) {
    using Shape = Tile<kMaxD>;
    constexpr int kRows = Shape::kRows;
    GPU_DYN_SMEM(bytes);
    float* q = reinterpret_cast<float*>(bytes);
    float* kv = q + Shape::kFloats;
    float* p = kv + Shape::kFloats;
    const AttentionShape& s = a.shape;
    const int D = int(s.D), tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
    const int64_t t0 = int64_t(gridDim.x - 1 - blockIdx.x) * kRows;  // the longest rows start first
    const int64_t head = blockIdx.y, batch = blockIdx.z, kv_head = head / (s.H / s.K);
    const T* keys = static_cast<const T*>(a.k) + batch * s.kv_batch + kv_head * D;
    const T* values = static_cast<const T*>(a.v) + batch * s.kv_batch + kv_head * D;
    const int64_t rows = min(int64_t(kRows), s.Tq - t0), offset = s.offset();
    const int64_t keys_seen = min(offset + t0 + rows, s.Tk);  // by the tile's last row
    load_tile<T, kMaxD>(q, static_cast<const T*>(a.q) + batch * s.q_batch + t0 * s.q_row + head * D, s.q_row, rows, D);

    float acc[Shape::kPerThread][Shape::kColumns] = {};
    float top[Shape::kPerThread], sum[Shape::kPerThread];
#pragma unroll
    for (int i = 0; i < Shape::kPerThread; ++i) top[i] = kNoScore, sum[i] = 0;
    int first[Shape::kPerThread];
#pragma unroll
    for (int i = 0; i < Shape::kPerThread; ++i) first[i] = first_key(s, batch, int(t0) + ty + 16 * i);
    const float scale = s.scale * kLog2e;
    for (int64_t j0 = first_key(s, batch, int(t0)) / kRows * kRows; j0 < keys_seen; j0 += kRows) {
        load_tile<T, kMaxD>(kv, keys + j0 * s.kv_row, s.kv_row, s.Tk - j0, D);
        __syncthreads();
        float score[Shape::kPerThread][Shape::kPerThread];
        dot_tiles<kMaxD>(score, q, kv, D);
#pragma unroll
        for (int i = 0; i < Shape::kPerThread; ++i) {
            const int r = ty + 16 * i;
            float most = top[i];
#pragma unroll
            for (int j = 0; j < Shape::kPerThread; ++j) {
                const int64_t key = j0 + tx + 16 * j;
                const bool seen = key <= offset + t0 + r && key < s.Tk && key >= first[i];
                score[i][j] = seen ? score[i][j] * scale : -INFINITY;
                most = fmaxf(most, score[i][j]);
            }
            most = lanes_max(most);
            const float shrink = ptx::ex2(top[i] - most);
            float part = 0;
#pragma unroll
            for (int j = 0; j < Shape::kPerThread; ++j) {
                const float e = ptx::ex2(score[i][j] - most);
                part += e;
                p[r * Shape::kScoreStride + tx + 16 * j] = e;
            }
            sum[i] = sum[i] * shrink + lanes_sum(part);
            top[i] = most;
#pragma unroll
            for (int j = 0; j < Shape::kColumns; ++j) acc[i][j] *= shrink;
        }
        __syncthreads();  // p is written, and no thread reads the keys any more
        load_tile<T, kMaxD>(kv, values + j0 * s.kv_row, s.kv_row, s.Tk - j0, D);
        __syncthreads();
        add_weighted<kMaxD, false>(acc, p, kv, D);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < Shape::kPerThread; ++i) {
        const int r = ty + 16 * i;
        if (tx == 0 && r < rows) a.lse[(batch * s.H + head) * s.Tq + t0 + r] = top[i] * kLn2 + logf(sum[i]);
        const float inverse = inverse_of(sum[i]);
#pragma unroll
        for (int j = 0; j < Shape::kColumns; ++j) acc[i][j] *= inverse;
    }
    store_rows<T, kMaxD>(static_cast<T*>(a.o) + batch * s.o_batch + t0 * s.o_row + head * D, s.o_row, rows, D, acc,
                         a.amax);
}

// Scores and their gradients for one (query tile, key tile): p and ds, both [query][key] in shared memory.
template <int kMaxD>
__device__ __forceinline__ void score_gradients(float* p, float* ds, const float* q, const float* k, const float* v,
                                                const float* d_o, const float* lse2, const float* delta,
                                                const AttentionShape& s, int64_t batch, int64_t t0, int64_t j0, int D) {
    using Shape = Tile<kMaxD>;
    const int tx = int(threadIdx.x) % 16, ty = int(threadIdx.x) / 16;
    float score[Shape::kPerThread][Shape::kPerThread], dp[Shape::kPerThread][Shape::kPerThread];
    dot_tiles<kMaxD>(score, q, k, D);
    dot_tiles<kMaxD>(dp, d_o, v, D);
#pragma unroll
    for (int i = 0; i < Shape::kPerThread; ++i) {
        const int64_t t = t0 + ty + 16 * i;
        const float row_lse2 = t < s.Tq ? lse2[t] : 0.0f, row_delta = t < s.Tq ? delta[t] : 0.0f, scale = s.scale;
        const int first = first_key(s, batch, int(t));
#pragma unroll
        for (int j = 0; j < Shape::kPerThread; ++j) {
            const int64_t key = j0 + tx + 16 * j;
            const bool seen = key <= s.offset() + t && t < s.Tq && key < s.Tk && key >= first;
            const float e = seen ? ptx::ex2(score[i][j] * (scale * kLog2e) - row_lse2) : 0.0f;
            const int at = (ty + 16 * i) * Shape::kScoreStride + tx + 16 * j;
            if (p != nullptr) p[at] = e;
            ds[at] = e * (dp[i][j] - row_delta) * scale;
        }
    }
}

// Grid (key tiles, K, B). The group's query heads in order, each from the diagonal to the end: dk and dv stay in
// registers.
template <class T, int kMaxD>
__global__ void __launch_bounds__(kThreads) attention_backward_kv_kernel(AttentionBackward a) {
    if constexpr (!kNeeded<kMaxD>) return;
    using Shape = Tile<kMaxD>;
    constexpr int kRows = Shape::kRows;
    GPU_DYN_SMEM(bytes);
    float* k = reinterpret_cast<float*>(bytes);
    float* v = k + Shape::kFloats;
    float* q = v + Shape::kFloats;
    float* d_o = q + Shape::kFloats;
    float* p = d_o + Shape::kFloats;
    float* ds = p + Shape::kScoreFloats;
    const AttentionShape& s = a.shape;
    const int D = int(s.D);
    const int64_t j0 = int64_t(blockIdx.x) * kRows, kv_head = blockIdx.y, batch = blockIdx.z, group = s.H / s.K;
    const int64_t rows = min(int64_t(kRows), s.Tk - j0);
    // The queries that see some of these keys, as far as tiles tell
    const int64_t t_first = max(int64_t(0), j0 - s.offset()) / kRows * kRows;
    const int64_t t_end = queries_before(s, batch, int(j0 + rows - 1));
    const int64_t at = batch * s.kv_batch + j0 * s.kv_row + kv_head * D;
    load_tile<T, kMaxD>(k, static_cast<const T*>(a.k) + at, s.kv_row, rows, D);
    load_tile<T, kMaxD>(v, static_cast<const T*>(a.v) + at, s.kv_row, rows, D);

    const BackwardStats stats(a);
    float dk[Shape::kPerThread][Shape::kColumns] = {}, dv[Shape::kPerThread][Shape::kColumns] = {};
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const float* lse2 = stats.lse2 + stats.row(batch * s.H + head, 0);
        const float* delta = stats.delta + stats.row(batch * s.H + head, 0);
        const T* queries = static_cast<const T*>(a.q) + batch * s.q_batch + head * D;
        const T* gradients = static_cast<const T*>(a.d_o) + batch * s.o_batch + head * D;
        for (int64_t t0 = t_first; t0 < t_end; t0 += kRows) {
            load_tile<T, kMaxD>(q, queries + t0 * s.q_row, s.q_row, s.Tq - t0, D);
            load_tile<T, kMaxD>(d_o, gradients + t0 * s.o_row, s.o_row, s.Tq - t0, D);
            __syncthreads();
            score_gradients<kMaxD>(p, ds, q, k, v, d_o, lse2, delta, s, batch, t0, j0, D);
            __syncthreads();
            add_weighted<kMaxD, true>(dv, p, d_o, D);
            add_weighted<kMaxD, true>(dk, ds, q, D);
            __syncthreads();
        }
    }
    if (a.sum_dkv) {
        add_rows<kMaxD>(static_cast<float*>(a.dk) + at, s.kv_row, rows, D, dk);
        add_rows<kMaxD>(static_cast<float*>(a.dv) + at, s.kv_row, rows, D, dv);
        return;
    }
    store_rows<T, kMaxD>(static_cast<T*>(a.dk) + at, s.kv_row, rows, D, dk);
    store_rows<T, kMaxD>(static_cast<T*>(a.dv) + at, s.kv_row, rows, D, dv);
}

// Grid (query tiles, H, B).
template <class T, int kMaxD>
__global__ void __launch_bounds__(kThreads) attention_backward_q_kernel(AttentionBackward a) {
    if constexpr (!kNeeded<kMaxD>) return;
    using Shape = Tile<kMaxD>;
    constexpr int kRows = Shape::kRows;
    GPU_DYN_SMEM(bytes);
    float* q = reinterpret_cast<float*>(bytes);
    float* d_o = q + Shape::kFloats;
    float* k = d_o + Shape::kFloats;
    float* v = k + Shape::kFloats;
    float* ds = v + Shape::kFloats;
    const AttentionShape& s = a.shape;
    const int D = int(s.D);
    const int64_t t0 = int64_t(gridDim.x - 1 - blockIdx.x) * kRows, head = blockIdx.y, batch = blockIdx.z;
    const int64_t kv_head = head / (s.H / s.K), rows = min(int64_t(kRows), s.Tq - t0);
    const int64_t keys_seen = min(s.offset() + t0 + rows, s.Tk);
    const int64_t at = batch * s.q_batch + t0 * s.q_row + head * D, kv_at = batch * s.kv_batch + kv_head * D;
    const BackwardStats stats(a);
    const float* lse2 = stats.lse2 + stats.row(batch * s.H + head, 0);
    const float* delta = stats.delta + stats.row(batch * s.H + head, 0);
    load_tile<T, kMaxD>(q, static_cast<const T*>(a.q) + at, s.q_row, rows, D);
    load_tile<T, kMaxD>(d_o, static_cast<const T*>(a.d_o) + batch * s.o_batch + t0 * s.o_row + head * D, s.o_row, rows,
                        D);

    float dq[Shape::kPerThread][Shape::kColumns] = {};
    for (int64_t j0 = first_key(s, batch, int(t0)) / kRows * kRows; j0 < keys_seen; j0 += kRows) {
        load_tile<T, kMaxD>(k, static_cast<const T*>(a.k) + kv_at + j0 * s.kv_row, s.kv_row, s.Tk - j0, D);
        load_tile<T, kMaxD>(v, static_cast<const T*>(a.v) + kv_at + j0 * s.kv_row, s.kv_row, s.Tk - j0, D);
        __syncthreads();
        score_gradients<kMaxD>(nullptr, ds, q, k, v, d_o, lse2, delta, s, batch, t0, j0, D);
        __syncthreads();
        add_weighted<kMaxD, false>(dq, ds, k, D);
        __syncthreads();
    }
    store_rows<T, kMaxD>(static_cast<T*>(a.dq) + at, s.q_row, rows, D, dq);
}

constexpr int kDeltaRows = kThreads / 8;
static_assert(64 % kDeltaRows == 0);  // BackwardStats has a multiple of 64 rows

// Fills BackwardStats: eight lanes per row, kVec elements at a time. Grid (rows, H, B).
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) attention_delta_kernel(AttentionBackward a) {
    const AttentionShape& s = a.shape;
    const BackwardStats stats(a);
    const int64_t t = int64_t(blockIdx.x) * kDeltaRows + threadIdx.x / 8, head = blockIdx.y, batch = blockIdx.z;
    const int64_t at = batch * s.o_batch + t * s.o_row + head * s.D;
    float sum = 0;
    if (t < s.Tq)
        for (int d = int(threadIdx.x) % 8 * kVec; d < int(s.D); d += 8 * kVec) {
            float x[kVec], y[kVec];
            load(x, static_cast<const T*>(a.d_o) + at + d);
            load(y, static_cast<const T*>(a.o) + at + d);
#pragma unroll
            for (int e = 0; e < kVec; ++e) sum += x[e] * y[e];
        }
#pragma unroll
    for (int d = 4; d > 0; d >>= 1) sum += __shfl_xor_sync(kFullWarp, sum, d);
    if (threadIdx.x % 8) return;
    const int64_t row = stats.row(batch * s.H + head, t);
    stats.delta[row] = sum;
    stats.lse2[row] = t < s.Tq ? a.lse[(batch * s.H + head) * s.Tq + t] * kLog2e : 0.0f;
}

void launch_delta(const AttentionBackward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    with_device_type(s.dtype, [&]<class T>() {
        constexpr int kVec = kVecOf<T>;
        const LaunchConfig config(dim3(blocks_for(round_up(s.Tq, 64), kDeltaRows), unsigned(s.H), unsigned(s.B)),
                                  dim3(kThreads), 0, stream);
        if (aligned_to(16, a.o, a.d_o) && (s.D | s.o_row | s.o_batch) % kVec == 0)
            launch(kernel<attention_delta_kernel<T, kVec>>, config, a);
        else
            launch(kernel<attention_delta_kernel<T, 1>>, config, a);
    });
}

template <class F>
void with_max_d(int64_t D, F&& f) {
    if (D <= 64)
        f.template operator()<64>();
    else if (D <= 128)
        f.template operator()<128>();
    else
        f.template operator()<256>();
}

// Shared memory of a block of attention_backward_kv_kernel; that of the other takes less.
template <int kMaxD>
constexpr size_t smem_for_keys() {
    return sizeof(float) * (4 * Tile<kMaxD>::kFloats + 2 * Tile<kMaxD>::kScoreFloats);
}
static_assert(smem_for_keys<kSmallMaxD>() <= 64 << 10);

void check_grid(const AttentionShape& s) {
    require(s.D % 2 == 0 && s.D <= 256, "attention: head dimension %lld is not an even number up to 256",
            (long long)s.D);
    require(s.H <= 65535 && s.B <= 65535, "attention: %lld heads x batch %lld is beyond CUDA's grid (65535 each)",
            (long long)s.H, (long long)s.B);
}

}  // namespace

void attention_forward_cuda(const AttentionForward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (s.B == 0 || s.Tq == 0 || s.H == 0) return;
    check_grid(s);
    if (attention_forward_wgmma(a, stream) || attention_forward_mma(a, stream)) return;
    with_device_type(s.dtype, [&]<class T>() {
        with_max_d(s.D, [&]<int kMaxD>() {
            using Shape = Tile<kMaxD>;
            const size_t smem = sizeof(float) * (2 * Shape::kFloats + Shape::kScoreFloats);
            launch(kernel<attention_forward_kernel<T, kMaxD>>,
                   LaunchConfig(dim3(blocks_for(s.Tq, Shape::kRows), unsigned(s.H), unsigned(s.B)), dim3(kThreads),
                                smem, stream),
                   a);
        });
    });
}

void attention_backward_cuda(const AttentionBackward& a, CudaStream stream) {
    const AttentionShape& s = a.shape;
    if (s.B == 0 || s.Tq == 0 || s.H == 0) return;
    check_grid(s);
    const int64_t rows = s.B * s.H * round_up(s.Tq, 64);
    require(attention_backward_workspace(s) >= 2 * rows * int64_t(sizeof(float)),
            "attention_backward: a workspace of %lld bytes cannot hold two floats per query row",
            (long long)attention_backward_workspace(s));
    launch_delta(a, stream);
    if (attention_backward_wgmma(a, stream) || attention_backward_mma(a, stream)) return;
    with_device_type(s.dtype, [&]<class T>() {
        const auto run = [&]<int kMaxD>() {
            using Shape = Tile<kMaxD>;
            const unsigned tiles = blocks_for(s.Tk, Shape::kRows);
            const size_t kv_smem = smem_for_keys<kMaxD>();
            launch(kernel<attention_backward_kv_kernel<T, kMaxD>>,
                   LaunchConfig(dim3(tiles, unsigned(s.K), unsigned(s.B)), dim3(kThreads), kv_smem, stream), a);
            const size_t q_smem = sizeof(float) * (4 * Shape::kFloats + Shape::kScoreFloats);
            launch(kernel<attention_backward_q_kernel<T, kMaxD>>,
                   LaunchConfig(dim3(blocks_for(s.Tq, Shape::kRows), unsigned(s.H), unsigned(s.B)), dim3(kThreads),
                                q_smem, stream),
                   a);
        };
        with_max_d(s.D, [&]<int kMaxD>() {
            if (has_shared(smem_for_keys<kMaxD>())) return run.template operator()<kMaxD>();
            require_request(s.D <= kSmallMaxD,
                            "attention: head dimension %d needs %zu bytes of shared memory backward, and a block has %d"
                            "\n  nearest: head dimension %d",
                            int(s.D), smem_for_keys<kMaxD>(), device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                            kSmallMaxD);
            run.template operator()<kSmallMaxD>();
        });
    });
    if (a.back.x) rope_cuda(a.back, stream);
}

}  // namespace rz
