#include "kernels/chance.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/muon.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

// kVec elements a thread: 4 where all arrays and the logical offset are aligned for it, else 1.
template <class U, class A, class G, int kVec>
__global__ void __launch_bounds__(kThreads)
    muon_momentum_kernel(MuonMomentum a, int64_t begin, int64_t end, float fresh) {
    const int64_t i = begin + (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kVec;
    if (i >= end) return;
    const float scale = *a.grad_scale;
    float u[kVec] = {};
    if (is_finite(scale)) {
        float g[kVec], m[kVec];
        load(g, static_cast<const G*>(a.grad) + i);
        load(m, static_cast<const A*>(a.m) + i);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
            const float part = fresh * (g[e] * scale);
            m[e] = a.momentum * m[e] + part;
            u[e] = part + a.momentum * m[e];
        }
        if constexpr (std::is_same_v<A, float>) {
            store(static_cast<A*>(a.m) + i, m);
        } else {
            uint32_t words[kVec];
            random_words(words, a.seed, a.first + i, moment_stream(a.step));
            store_by_chance(static_cast<A*>(a.m) + i, m, words, 0);
        }
    }
    store(static_cast<U*>(a.out) + i, u);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) muon_normalise_kernel(MuonNormalise a, int64_t begin, int64_t end) {
    const int64_t i = begin + (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kVec;
    if (i >= end) return;
    const float by = fmaxf(*a.norm, 1e-7f) * a.margin;
    float x[kVec];
    load(x, static_cast<const T*>(a.x) + i);
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[e] = __fdiv_rn(x[e], by);
    store(static_cast<T*>(a.x) + i, x);
}

constexpr int kTile = 32;

// A thread block per tile, of which those above the diagonal have nothing to do. Through shared memory, so that both
// tiles are met along their rows.
template <class Word>
__global__ void __launch_bounds__(kThreads) muon_mirror_kernel(MuonMirror a, int64_t tiles) {
    __shared__ Word tile[kTile][kTile + 1];
    const int64_t i0 = blockIdx.x / tiles * kTile, j0 = blockIdx.x % tiles * kTile;
    if (j0 > i0) return;
    Word* s = static_cast<Word*>(a.s);
    const int x = threadIdx.x % kTile;
    for (int y = threadIdx.x / kTile; y < kTile; y += kThreads / kTile)
        if (j0 + y < a.n && i0 + x < a.n) tile[y][x] = s[(j0 + y) * a.n + i0 + x];
    __syncthreads();
    for (int y = threadIdx.x / kTile; y < kTile; y += kThreads / kTile)
        if (i0 + y < a.n && j0 + x < i0 + y) s[(i0 + y) * a.n + j0 + x] = tile[x][y];
}

// One thread block per row.
template <class T>
__global__ void __launch_bounds__(kThreads) muon_row_moments_kernel(MuonRowMoments a, float fresh) {
    __shared__ float slots[32];
    const int64_t r = blockIdx.x;
    const T* x = static_cast<const T*>(a.x) + r * a.cols;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < a.cols; c += kThreads) sum += to_float(x[c]) * to_float(x[c]);
    sum = block_sum(sum, slots, kThreads);
    if (threadIdx.x != 0) return;
    float v = a.v[r];
    if (is_finite(*a.grad_scale)) v = a.beta2 * v + fresh * __fdiv_rn(sum, float(a.cols));
    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(v) + 1e-10f);
    a.v[r] = v, a.factor[r] = factor;
    a.before[r] = double(sum), a.after[r] = double(sum) * double(factor) * double(factor);
}

template <class T>
__global__ void __launch_bounds__(kThreads) muon_scale_rows_kernel(MuonScaleRows a) {
    const int64_t r = blockIdx.x;
    T* x = static_cast<T*>(a.x) + r * a.cols;
    const float by = a.factor[r] * __fdiv_rn(*a.before, *a.after + 1e-10f);
    for (int64_t c = threadIdx.x; c < a.cols; c += kThreads) x[c] = from_float<T>(to_float(x[c]) * by);
}

// param may be master itself.
template <class P, class M, class X, int kVec>
__global__ void __launch_bounds__(kThreads) muon_step_kernel(MuonStep a, int64_t begin, int64_t end) {
    const int64_t i = begin + (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kVec;
    if (i >= end || !is_finite(*a.grad_scale)) return;
    float w[kVec], x[kVec];
    load(w, static_cast<const M*>(a.master) + i);
    load(x, static_cast<const X*>(a.x) + i);
#pragma unroll
    for (int e = 0; e < kVec; ++e) w[e] = a.keep * w[e] - a.rate * x[e];
    if constexpr (std::is_same_v<M, float>) {
        store(static_cast<M*>(a.master) + i, w);
        if (a.param != a.master) store(static_cast<P*>(a.param) + i, w);
    } else {
        uint32_t words[kVec];
        random_words(words, a.seed, a.first + i, master_stream(a.step));
        store_by_chance(static_cast<M*>(a.master) + i, w, words, 0);
    }
}

// Calls go<4>(0, end) for the part in vectors and go<1>(begin, n) for what is left.
template <class Go>
void in_vectors(int64_t n, bool wide, const Go& go) {
    const int64_t vectors = wide ? n / 4 * 4 : 0;
    if (vectors > 0) go.template operator()<4>(0, vectors);
    if (vectors < n) go.template operator()<1>(vectors, n);
}

template <int kVec>
LaunchConfig config(int64_t n, CudaStream stream) {
    return LaunchConfig(dim3(blocks_for(n, kThreads * kVec)), dim3(kThreads), 0, stream);
}

template <class F>
void with_wide_type(DType t, F&& f) {
    if (t == DType::f32)
        f.template operator()<float>();
    else
        f.template operator()<__nv_bfloat16>();
}

template <class P, class M>
void launch_step(const MuonStep& a, bool wide, CudaStream stream) {
    with_wide_type(a.x_dtype, [&]<class X>() {
        in_vectors(a.n, wide, [&]<int kVec>(int64_t begin, int64_t end) {
            launch(kernel<muon_step_kernel<P, M, X, kVec>>, config<kVec>(end - begin, stream), a, begin, end);
        });
    });
}

}  // namespace

void muon_momentum_cuda(const MuonMomentum& a, CudaStream stream) {
    const float fresh = float(1.0 - double(a.momentum));
    const bool wide = aligned_to(size_t(4 * size_of(a.grad_dtype)), static_cast<const char*>(a.grad)) &&
                      aligned_to(size_t(4 * size_of(a.m_dtype)), static_cast<const char*>(a.m)) &&
                      aligned_to(size_t(4 * size_of(a.out_dtype)), static_cast<const char*>(a.out)) && a.first % 4 == 0;
    with_device_type(a.grad_dtype, [&]<class G>() {
        with_wide_type(a.m_dtype, [&]<class A>() {
            with_wide_type(a.out_dtype, [&]<class U>() {
                in_vectors(a.n, wide, [&]<int kVec>(int64_t begin, int64_t end) {
                    launch(kernel<muon_momentum_kernel<U, A, G, kVec>>, config<kVec>(end - begin, stream), a, begin,
                           end, fresh);
                });
            });
        });
    });
}

void muon_normalise_cuda(const MuonNormalise& a, CudaStream stream) {
    const bool wide = aligned_to(size_t(4 * size_of(a.dtype)), static_cast<const char*>(a.x));
    with_wide_type(a.dtype, [&]<class T>() {
        in_vectors(a.n, wide, [&]<int kVec>(int64_t begin, int64_t end) {
            launch(kernel<muon_normalise_kernel<T, kVec>>, config<kVec>(end - begin, stream), a, begin, end);
        });
    });
}

static LaunchConfig block_each(int64_t rows, CudaStream stream) {
    return LaunchConfig(dim3(blocks_for(rows, 1)), dim3(kThreads), 0, stream);
}

void muon_mirror_cuda(const MuonMirror& a, CudaStream stream) {
    const int64_t tiles = ceil_div(a.n, int64_t(kTile));
    const LaunchConfig config = block_each(tiles * tiles, stream);
    if (size_of(a.dtype) == 4)
        launch(kernel<muon_mirror_kernel<uint32_t>>, config, a, tiles);
    else
        launch(kernel<muon_mirror_kernel<uint16_t>>, config, a, tiles);
}

void muon_row_moments_cuda(const MuonRowMoments& a, CudaStream stream) {
    const float fresh = float(1.0 - double(a.beta2));
    with_wide_type(
        a.dtype, [&]<class T>() { launch(kernel<muon_row_moments_kernel<T>>, block_each(a.rows, stream), a, fresh); });
}

void muon_scale_rows_cuda(const MuonScaleRows& a, CudaStream stream) {
    with_wide_type(a.dtype,
                   [&]<class T>() { launch(kernel<muon_scale_rows_kernel<T>>, block_each(a.rows, stream), a); });
}

void muon_step_cuda(const MuonStep& a, CudaStream stream) {
    const bool wide = aligned_to(size_t(4 * size_of(a.master_dtype)), static_cast<const char*>(a.master)) &&
                      aligned_to(size_t(4 * size_of(a.param_dtype)), static_cast<const char*>(a.param)) &&
                      aligned_to(size_t(4 * size_of(a.x_dtype)), static_cast<const char*>(a.x)) && a.first % 4 == 0;
    if (a.master_dtype == DType::bf16)
        launch_step<__nv_bfloat16, __nv_bfloat16>(a, wide, stream);
    else
        with_device_type(a.param_dtype, [&]<class P>() { launch_step<P, float>(a, wide, stream); });
}

}  // namespace rz
