#include "kernels/cuda/magnitude.cuh"
#include "kernels/qk_norm.h"

namespace rz {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = 32 * kWarps;
constexpr int kMost = int(kMaxQkNormDim) / 2 / 32;  // pairs of a head that a lane has, at most
constexpr int kReduceColumns = 32, kReduceRows = 32;

// As load() and store(), with two 16-bit numbers as one word.
template <int kVec, class T>
__device__ __forceinline__ void load_run(float (&out)[kVec], const T* p) {
    if constexpr (kVec * sizeof(T) == 4 && kVec == 2) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(p);
        T raw[2];
        memcpy(static_cast<void*>(raw), &word, 4);
        out[0] = to_float(raw[0]), out[1] = to_float(raw[1]);
    } else {
        load(out, p);
    }
}
template <int kVec, class T>
__device__ __forceinline__ void store_run(T* p, const float (&in)[kVec]) {
    if constexpr (kVec * sizeof(T) == 4 && kVec == 2) {
        const T raw[2] = {from_float<T>(in[0]), from_float<T>(in[1])};
        uint32_t word;
        memcpy(&word, raw, 4);
        *reinterpret_cast<uint32_t*>(p) = word;
    } else {
        store(p, in);
    }
}

// A head as a warp has it: of each pair (j, j + D/2) that is this lane's, both. A lane has runs of kVec pairs.
template <class T, int kVec>
struct Head {
    static constexpr int kRuns = kMost / kVec;
    float low[kRuns][kVec], high[kRuns][kVec];

    __device__ __forceinline__ static int pair(int run) { return (run * 32 + int(threadIdx.x % 32)) * kVec; }

    __device__ __forceinline__ void load(const T* x, int half) {
#pragma unroll
        for (int i = 0; i < kRuns; ++i) {
            if (pair(i) >= half) continue;
            load_run(low[i], x + pair(i));
            load_run(high[i], x + half + pair(i));
        }
    }
    __device__ __forceinline__ void store(T* x, int half) const {
#pragma unroll
        for (int i = 0; i < kRuns; ++i) {
            if (pair(i) >= half) continue;
            store_run(x + pair(i), low[i]);
            store_run(x + half + pair(i), high[i]);
        }
    }
    // f(this lane's element, where it is in `low` or `high`: run and place) on all of them
    template <class F>
    __device__ __forceinline__ static void each(int half, const F& f) {
#pragma unroll
        for (int i = 0; i < kRuns; ++i) {
            if (pair(i) >= half) continue;
#pragma unroll
            for (int k = 0; k < kVec; ++k) f(i, k);
        }
    }
};

// The mean over all of q's heads, or of k's, of what the ranks have summed
__device__ __forceinline__ float mean_of(const QkNorm& a, const float* sums, int64_t row, int kind) {
    float sum = 0;
    for (int64_t r = 0; r < a.ranks; ++r) sum += sums[(r * a.N + row) * 2 + kind];
    return sum / float(kind == 0 ? a.heads * a.ranks * a.D : a.kv_heads * a.ranks / a.sharers * a.D);
}

__device__ __forceinline__ float rstd_of(const QkNorm& a, int64_t row, int kind) {
    return 1.0f / sqrtf(mean_of(a, a.squares, row, kind) + a.eps);
}

template <class T, int kVec>
__device__ __forceinline__ float square_sum(const Head<T, kVec>& x, int half) {
    float squares = 0;
    x.each(half, [&](int i, int k) { squares += x.low[i][k] * x.low[i][k] + x.high[i][k] * x.high[i][k]; });
    return squares;
}

template <class T, int kVec>
__device__ __forceinline__ float rstd_of(const Head<T, kVec>& x, const QkNorm& a) {
    return 1.0f / sqrtf(warp_sum(square_sum(x, int(a.D / 2))) / float(a.D) + a.eps);
}

// kTogether: of all heads of q, and of k
template <class T, bool kTogether>
__device__ __forceinline__ const T* gain_of(const QkNorm& a, int64_t head) {
    const int64_t own = head < a.heads ? head : head - a.heads;
    return static_cast<const T*>(head < a.heads ? a.wq : a.wk) + (kTogether ? own * a.D : 0);
}

// By the angles of a row, or by their negatives.
template <class T, int kVec>
__device__ __forceinline__ void rotate(Head<T, kVec>& x, const QkNorm& a, int64_t row, float direction) {
    if (a.cos_table == nullptr) return;
    const int64_t position = a.positions ? a.positions[row] : a.first_position + row % a.T;
    const float *cosine = a.cos_table + position * (a.D / 2), *sine = a.sin_table + position * (a.D / 2);
    x.each(int(a.D / 2), [&](int i, int k) {
        const float c = cosine[x.pair(i) + k], s = sine[x.pair(i) + k] * direction;
        const float u = x.low[i][k], v = x.high[i][k];
        x.low[i][k] = u * c - v * s;
        x.high[i][k] = v * c + u * s;
    });
}

// One warp per row of q, and per row of k
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) qk_sums_kernel(QkSums f) {
    const QkNorm& a = f.norm;
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= 2 * a.N) return;
    const int64_t row = item / 2, all = a.heads + a.kv_heads;
    const int kind = int(item % 2), half = int(a.D / 2);
    const int64_t first = kind == 0 ? 0 : a.heads, end = kind == 0 ? a.heads : all;
    float sum = 0;
    for (int64_t head = first; head < end; ++head) {
        Head<T, kVec> x, dy, w;
        if (f.dy == nullptr) {
            x.load(static_cast<const T*>(f.x) + row * a.row_stride + head * a.D, half);
            sum += square_sum(x, half);
            continue;
        }
        x.load(static_cast<const T*>(f.x) + (row * all + head) * a.D, half);
        dy.load(static_cast<const T*>(f.dy) + row * a.row_stride + head * a.D, half);
        w.load(gain_of<T, true>(a, head), half);
        rotate(dy, a, row, -1.0f);
        x.each(half, [&](int i, int k) {
            sum += dy.low[i][k] * w.low[i][k] * x.low[i][k] + dy.high[i][k] * w.high[i][k] * x.high[i][k];
        });
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 != 0) return;
    f.sums[item] = f.dy ? sum * rstd_of(a, row, kind) : kind == 0 ? sum : sum / float(a.sharers);
}

// One warp per (row, head)
template <class T, int kVec, bool kTogether>
__global__ void __launch_bounds__(kThreads) qk_norm_forward_kernel(QkNormForward f, int64_t items) {
    const QkNorm& a = f.norm;
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= items) return;
    const int all = int(a.heads + a.kv_heads), half = int(a.D / 2);
    const int64_t row = item / all;
    const int head = int(item - row * all);
    T* at = static_cast<T*>(f.x) + row * a.row_stride + head * a.D;
    Head<T, kVec> x, w;
    x.load(at, half);
    w.load(gain_of<T, kTogether>(a, head), half);
    if (f.kept) x.store(static_cast<T*>(f.kept) + item * a.D, half);
    float rstd;
    if constexpr (kTogether)
        rstd = rstd_of(a, row, head < a.heads ? 0 : 1);
    else
        rstd = rstd_of(x, a);
    x.each(half, [&](int i, int k) {
        x.low[i][k] *= rstd * w.low[i][k];
        x.high[i][k] *= rstd * w.high[i][k];
    });
    rotate(x, a, row, 1.0f);
    x.store(at, half);
}

template <class T, int kVec>
__device__ __forceinline__ void join_magnitude(uint32_t& most, const Head<T, kVec>& x, int half) {
    x.each(half,
           [&](int i, int k) { most = max(most, max(magnitude_bits(x.low[i][k]), magnitude_bits(x.high[i][k]))); });
}

// A warp takes the heads of a run of consecutive rows, those of one gain after those of the other, and keeps each's sum
// of dw: all of q's, then all of k's; kTogether: one head, the block's.
template <class T, int kVec, bool kTogether>
__global__ void __launch_bounds__(kThreads, 2) qk_norm_backward_kernel(QkNormBackward b, int parts) {
    const QkNorm& a = b.norm;
    const int part = int(blockIdx.x) * kWarps + int(threadIdx.x / 32);
    if (part >= parts) return;
    const int half = int(a.D / 2);
    const int64_t begin = part * a.N / parts, end = (part + 1) * a.N / parts, all = a.heads + a.kv_heads;
    const int gains = kTogether ? int(all) : 2;
    uint32_t most = 0;
    for (int gain = int(blockIdx.y); gain < gains; gain += int(gridDim.y)) {
        const int64_t first = kTogether ? gain : gain == 0 ? 0 : a.heads;
        const int64_t count = kTogether ? 1 : gain == 0 ? a.heads : a.kv_heads;
        Head<T, kVec> w, dw;
        w.load(gain_of<T, kTogether>(a, first), half);
        dw.each(half, [&](int i, int k) { dw.low[i][k] = dw.high[i][k] = 0; });
        for (int64_t row = begin; row < end; ++row)
#pragma unroll 2
            for (int64_t head = first; head < first + count; ++head) {
                T* at = static_cast<T*>(b.dx) + row * a.row_stride + head * a.D;
                Head<T, kVec> x, dy;
                dy.load(at, half);
                x.load(static_cast<const T*>(b.kept) + (row * all + head) * a.D, half);
                rotate(dy, a, row, -1.0f);
                const int kind = head < a.heads ? 0 : 1;
                float rstd;
                if constexpr (kTogether)
                    rstd = rstd_of(a, row, kind);
                else
                    rstd = rstd_of(x, a);
                float dot = 0;
                x.each(half, [&](int i, int k) {
                    x.low[i][k] *= rstd;
                    x.high[i][k] *= rstd;
                    dw.low[i][k] += dy.low[i][k] * x.low[i][k];
                    dw.high[i][k] += dy.high[i][k] * x.high[i][k];
                    dy.low[i][k] *= w.low[i][k];
                    dy.high[i][k] *= w.high[i][k];
                    dot += dy.low[i][k] * x.low[i][k] + dy.high[i][k] * x.high[i][k];
                });
                float mean;
                if constexpr (kTogether)
                    mean = mean_of(a, b.dots, row, kind) / float(kind == 0 ? 1 : a.sharers);
                else
                    mean = warp_sum(dot) / float(a.D);
                x.each(half, [&](int i, int k) {
                    dy.low[i][k] = rstd * (dy.low[i][k] - x.low[i][k] * mean);
                    dy.high[i][k] = rstd * (dy.high[i][k] - x.high[i][k] * mean);
                });
                dy.store(at, half);
                join_magnitude(most, dy, half);
            }
        float* sum = b.scratch + (int64_t(part) * gains + gain) * a.D;
        dw.each(half, [&](int i, int k) {
            sum[dw.pair(i) + k] = dw.low[i][k];
            sum[half + dw.pair(i) + k] = dw.high[i][k];
        });
    }
    if (b.amax == nullptr) return;
    const int64_t heads = blockIdx.y == 0 ? a.row_stride / a.D : all;  // one of the blocks beside each other reads v's
    for (int64_t row = begin; row < end; ++row)
        for (int64_t head = all; head < heads; ++head) {
            Head<T, kVec> v;
            v.load(static_cast<const T*>(b.dx) + row * a.row_stride + head * a.D, half);
            join_magnitude(most, v, half);
        }
    warp_join<T>(b.amax, most);
}

// dw += column sums of the parts, or dw_sum = them: thread row j adds parts j, j + 32, ... in order, then the 32 sums
// are added in order.
template <class G>
__global__ void __launch_bounds__(kReduceColumns* kReduceRows)
    qk_norm_dw_kernel(G* dw, float* dw_sum, const float* partial, int parts, int columns) {
    __shared__ float sums[kReduceRows][kReduceColumns];
    const int c = int(blockIdx.x) * kReduceColumns + int(threadIdx.x);
    float sum = 0;
    if (c < columns) {
#pragma unroll 8
        for (int p = int(threadIdx.y); p < parts; p += kReduceRows) sum += partial[int64_t(p) * columns + c];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= columns) return;
    for (int j = 1; j < kReduceRows; ++j) sum += sums[j][threadIdx.x];
    if (dw_sum)
        dw_sum[c] = sum;
    else
        dw[c] = from_float<G>(to_float(dw[c]) + sum);
}

// Calls f.template operator()<T, kVec>() with the widest runs of pairs that the shapes and addresses allow.
template <class F, class... P>
void with_runs(const QkNorm& a, const F& f, const P*... pointers) {
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.D % 4 == 0 && a.row_stride % 2 == 0 && aligned_to(2 * sizeof(T), a.wq, a.wk, pointers...);
        wide ? f.template operator()<T, 2>() : f.template operator()<T, 1>();
    });
}

}  // namespace

void qk_sums_cuda(const QkSums& f, CudaStream stream) {
    const QkNorm& a = f.norm;
    if (a.N == 0) return;
    const auto run = [&]<class T, int kVec>() {
        launch(kernel<qk_sums_kernel<T, kVec>>,
               LaunchConfig(dim3(blocks_for(2 * a.N, kWarps)), dim3(kThreads), 0, stream), f);
    };
    with_runs(a, run, f.x, f.dy);
}

void qk_norm_forward_cuda(const QkNormForward& f, CudaStream stream) {
    const QkNorm& a = f.norm;
    if (a.N == 0) return;
    const auto run = [&]<class T, int kVec>() {
        const int64_t items = a.N * (a.heads + a.kv_heads);
        const LaunchConfig config(dim3(blocks_for(items, kWarps)), dim3(kThreads), 0, stream);
        a.squares ? launch(kernel<qk_norm_forward_kernel<T, kVec, true>>, config, f, items)
                  : launch(kernel<qk_norm_forward_kernel<T, kVec, false>>, config, f, items);
    };
    with_runs(a, run, f.x, f.kept);
}

void qk_norm_backward_cuda(const QkNormBackward& b, CudaStream stream) {
    const QkNorm& a = b.norm;
    if (a.N == 0) return;
    const int64_t most = qk_norm_backward_parts(a.gains());
    const int parts = int(a.N < most ? a.N : most), columns = int(a.gains() * a.D);
    require(a.gains() <= 65535, "qk_norm_backward: %lld heads are more than a grid is high",
            static_cast<long long>(a.gains()));
    const auto run = [&]<class T, int kVec>() {
        const dim3 grid(blocks_for(parts, kWarps), a.squares ? unsigned(a.gains()) : 1);
        const LaunchConfig config(grid, dim3(kThreads), 0, stream);
        a.squares ? launch(kernel<qk_norm_backward_kernel<T, kVec, true>>, config, b, parts)
                  : launch(kernel<qk_norm_backward_kernel<T, kVec, false>>, config, b, parts);
    };
    with_runs(a, run, static_cast<const void*>(b.dx), b.kept);
    with_device_type(b.grad_dtype, [&]<class G>() {
        launch(kernel<qk_norm_dw_kernel<G>>,
               LaunchConfig(dim3(blocks_for(columns, kReduceColumns)), dim3(kReduceColumns, kReduceRows), 0, stream),
               static_cast<G*>(b.dw), b.dw_sum, static_cast<const float*>(b.scratch), parts, columns);
    });
}

}  // namespace rz
