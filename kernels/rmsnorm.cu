#include "kernels/cuda/magnitude.cuh"
#include "kernels/rmsnorm.h"
#include "kernels/runtime/cuda_check.h"

namespace rz {
namespace {

constexpr int kKeep = 4;          // vectors of a row that a thread keeps in registers; the rest is read twice
constexpr int kKeepBackward = 2;  // here each also has an accumulator of dw
constexpr int kReduceColumns = 32, kReduceRows = 16;

// Block (lanes, rows). With 32 lanes a warp owns a row and several rows share a block; with more, a block is one row.
__device__ __forceinline__ float row_sum(float v, float* slots) {
    return blockDim.x == 32 ? warp_sum(v) : block_sum(v, slots, int(blockDim.x));
}

// Leaves x + residual, as it is stored, in x. Without residual, x stays as it is.
template <class T, int kVec>
__device__ __forceinline__ void add_residual(Pack<T, kVec>& x, const Pack<T, kVec>& residual, T* sum, int64_t at) {
    float v[kVec], r[kVec];
    x.to(v);
    residual.to(r);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] += r[k];
    x.from(v);
    x.store(sum + at);
}

template <class T, int kVec>
__device__ __forceinline__ float square_sum(const Pack<T, kVec>& x) {
    float v[kVec], sum = 0;
    x.to(v);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum += v[k] * v[k];
    return sum;
}

template <class T, int kVec>
__device__ __forceinline__ void store_normalised(T* y, const Pack<T, kVec>& x, const Pack<T, kVec>& w, float rstd,
                                                 uint32_t& most) {
    float v[kVec], weight[kVec];
    x.to(v);
    w.to(weight);
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] *= rstd * weight[k];
    store(y, v);
    most = max(most, magnitude_bits(v));
}

// Everything that a thread keeps is fetched before anything is stored; a compiler can't see to that, as sum may be x or
// residual.
template <class T, int kVec>
__global__ void __launch_bounds__(1024)
    rmsnorm_forward_kernel(T* y, float* rstd, T* sum, const T* x, const T* residual, const T* w, int64_t N, int C,
                           float eps, uint32_t* amax) {
    __shared__ float slots[32];
    const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= N) return;  // a whole warp, and only where no barrier follows
    const int64_t base = row * C;
    const int step = int(blockDim.x) * kVec, first = int(threadIdx.x) * kVec;

    Pack<T, kVec> kept[kKeep], other[kKeep];
#pragma unroll
    for (int i = 0; i < kKeep; ++i)
        if (first + i * step < C) kept[i].load(x + base + first + i * step);
    if (residual != nullptr) {
#pragma unroll
        for (int i = 0; i < kKeep; ++i)
            if (first + i * step < C) other[i].load(residual + base + first + i * step);
#pragma unroll
        for (int i = 0; i < kKeep; ++i)
            if (first + i * step < C) add_residual(kept[i], other[i], sum, base + first + i * step);
    }
    float square = 0;
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
        if (first + i * step >= C) continue;
        other[i].load(w + first + i * step);  // on its way while the block adds up
        square += square_sum(kept[i]);
    }
    for (int c = first + kKeep * step; c < C; c += step) {
        Pack<T, kVec> v, r;
        v.load(x + base + c);
        if (residual != nullptr) {
            r.load(residual + base + c);
            add_residual(v, r, sum, base + c);
        }
        square += square_sum(v);
    }
    const float inverse = 1.0f / sqrtf(row_sum(square, slots) / float(C) + eps);
    if (threadIdx.x == 0) rstd[row] = inverse;

    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kKeep; ++i)
        if (first + i * step < C) store_normalised(y + base + first + i * step, kept[i], other[i], inverse, most);
    for (int c = first + kKeep * step; c < C; c += step) {
        Pack<T, kVec> v, weight;
        v.load((residual != nullptr ? sum : x) + base + c);  // what this thread itself wrote
        weight.load(w + c);
        store_normalised(y + base + c, v, weight, inverse, most);
    }
    if (amax != nullptr) warp_join<T>(amax, most);
}

template <class T>
struct BackwardArgs {
    T* dx;
    float* partial;  // (parts, C)
    const T* dy;
    const T* x;
    const T* w;
    const float* rstd;
    const T* dresidual;
    int64_t N;
    int C, parts;
    uint32_t* amax;
};

// Reads of the backward pass: kVec columns of a row
template <class T, int kVec>
struct Slice {
    Pack<T, kVec> dy, x, dresidual;

    __device__ __forceinline__ void load(const BackwardArgs<T>& a, int64_t at) {
        dy.load(a.dy + at);
        x.load(a.x + at);
        if (a.dresidual != nullptr) dresidual.load(a.dresidual + at);
    }

    // dy, and xhat = x * rstd
    __device__ __forceinline__ void terms(float rstd, float (&g)[kVec], float (&xhat)[kVec]) const {
        dy.to(g);
        x.to(xhat);
#pragma unroll
        for (int k = 0; k < kVec; ++k) xhat[k] *= rstd;
    }

    // Its share of sum(dy*w*xhat)
    __device__ __forceinline__ float dot(const Pack<T, kVec>& w, float rstd) const {
        float g[kVec], xhat[kVec], weight[kVec], sum = 0;
        terms(rstd, g, xhat);
        w.to(weight);
#pragma unroll
        for (int k = 0; k < kVec; ++k) sum += g[k] * weight[k] * xhat[k];
        return sum;
    }

    // Stores dx, given mean(dy*w*xhat) of the row, and adds this row's share to dw.
    __device__ __forceinline__ void finish(const BackwardArgs<T>& a, int64_t at, const Pack<T, kVec>& w, float rstd,
                                           float mean, float (&dw)[kVec], uint32_t& most) const {
        float g[kVec], xhat[kVec], weight[kVec], out[kVec] = {};
        terms(rstd, g, xhat);
        w.to(weight);
        if (a.dresidual != nullptr) dresidual.to(out);
#pragma unroll
        for (int k = 0; k < kVec; ++k) {
            out[k] += rstd * (g[k] * weight[k] - xhat[k] * mean);
            dw[k] += g[k] * xhat[k];
        }
        store(a.dx + at, out);
        most = max(most, magnitude_bits(out));
    }
};

// Part p takes a run of consecutive rows and sums its share of dw over them: of the first columns in registers (8192 in
// 16 bits, 4096 in fp32), of columns beyond in its own row of `partial`. Those are read twice, the second time from the
// second-level cache: at 16384 columns, llama3.1-405b's, the norms are then a thousandth of a step slower (computed).
// The next row is fetched while this one is worked on.
template <class T, int kVec>
__global__ void __launch_bounds__(512) rmsnorm_backward_kernel(BackwardArgs<T> a) {
    __shared__ float slots[2][32];
    const int part = int(blockIdx.x) * int(blockDim.y) + int(threadIdx.y);
    if (part >= a.parts) return;  // a whole warp, and only where no barrier follows
    const int step = int(blockDim.x) * kVec, first = int(threadIdx.x) * kVec;
    const int beyond = first + kKeepBackward * step;
    float* partial = a.partial + int64_t(part) * a.C;

    float dw[kKeepBackward][kVec] = {};
#pragma unroll 1
    for (int c = beyond; c < a.C; c += step)
        for (int k = 0; k < kVec; ++k) partial[c + k] = 0;

    Pack<T, kVec> w[kKeepBackward];
#pragma unroll
    for (int i = 0; i < kKeepBackward; ++i)
        if (first + i * step < a.C) w[i].load(a.w + first + i * step);

    Slice<T, kVec> next[kKeepBackward];
    const auto fetch = [&](int64_t row) {
#pragma unroll
        for (int i = 0; i < kKeepBackward; ++i)
            if (first + i * step < a.C) next[i].load(a, row * a.C + first + i * step);
    };
    const int64_t begin = part * a.N / a.parts, end = (part + 1) * a.N / a.parts;
    int turn = 0;
    uint32_t most = 0;
    fetch(begin);
    for (int64_t row = begin; row < end; ++row, turn ^= 1) {
        const int64_t base = row * a.C;
        const float rstd = a.rstd[row];
        Slice<T, kVec> now[kKeepBackward];
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kKeepBackward; ++i) now[i] = next[i];
        if (row + 1 < end) fetch(row + 1);
#pragma unroll
        for (int i = 0; i < kKeepBackward; ++i)
            if (first + i * step < a.C) dot += now[i].dot(w[i], rstd);
#pragma unroll 2
        for (int c = beyond; c < a.C; c += step) {
            Slice<T, kVec> rest;
            Pack<T, kVec> weight;
            rest.load(a, base + c);
            weight.load(a.w + c);
            dot += rest.dot(weight, rstd);
        }
        const float mean = row_sum(dot, slots[turn]) / float(a.C);
#pragma unroll
        for (int i = 0; i < kKeepBackward; ++i) {
            const int c = first + i * step;
            if (c < a.C) now[i].finish(a, base + c, w[i], rstd, mean, dw[i], most);
        }
        for (int c = beyond; c < a.C; c += step) {
            Slice<T, kVec> rest;
            Pack<T, kVec> weight;
            rest.load(a, base + c);
            weight.load(a.w + c);
            float sum[kVec];
            load(sum, partial + c);
            rest.finish(a, base + c, weight, rstd, mean, sum, most);
            store(partial + c, sum);
        }
    }
    if (a.amax != nullptr) warp_join<T>(a.amax, most);
#pragma unroll
    for (int i = 0; i < kKeepBackward; ++i)
        if (first + i * step < a.C) store(partial + first + i * step, dw[i]);
}

// dw += column sums of partial, or dw_sum = them: thread row j adds parts j, j + 16, ... in order, then the 16 sums are
// added in order.
template <class G>
__global__ void rmsnorm_dw_kernel(G* dw, float* dw_sum, const float* partial, int parts, int C) {
    __shared__ float sums[kReduceRows][kReduceColumns];
    const int c = int(blockIdx.x) * kReduceColumns + int(threadIdx.x);
    float sum = 0;
    if (c < C) {
#pragma unroll 8
        for (int p = int(threadIdx.y); p < parts; p += kReduceRows) sum += partial[int64_t(p) * C + c];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= C) return;
    for (int j = 1; j < kReduceRows; ++j) sum += sums[j][threadIdx.x];
    if (dw_sum)
        dw_sum[c] = sum;
    else
        dw[c] = from_float<G>(to_float(dw[c]) + sum);
}

template <class T, int kVec>
void launch_forward(const RmsnormForward& a, CudaStream stream) {
    const int lanes = row_threads(ceil_div(a.C, kVec), kKeep, 1024);
    const int rows = lanes == 32 ? 4 : 1;
    launch(kernel<rmsnorm_forward_kernel<T, kVec>>,
           LaunchConfig(dim3(blocks_for(a.N, rows)), dim3(lanes, rows), 0, stream), static_cast<T*>(a.y), a.rstd,
           static_cast<T*>(a.sum), static_cast<const T*>(a.x), static_cast<const T*>(a.residual),
           static_cast<const T*>(a.w), a.N, int(a.C), a.eps, a.amax);
}

int device_attribute(cudaDeviceAttr what) {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, what, device));
    return value;
}

// Returns the number of parts: as many as are worked on at a time, so that none waits for a second wave of blocks. 512
// threads fit into a multiprocessor at 128 registers.
template <class T, int kVec>
int launch_backward(const RmsnormBackward& a, CudaStream stream) {
    const int lanes = int(rmsnorm_backward_threads(a.C, kVec));
    const int rows = lanes == 32 ? 4 : 1;
    const int64_t there = device_attribute(cudaDevAttrMultiProcessorCount) - a.beside.reserved_sms;
    const int64_t multiprocessors = there > 1 ? there : 1;
    const int64_t most = (multiprocessors < 256 ? multiprocessors : 256) * (kRmsnormBackwardThreads / lanes);
    const int parts = int(a.N < most ? a.N : most);
    BackwardArgs<T> args{static_cast<T*>(a.dx),
                         a.scratch,
                         static_cast<const T*>(a.dy),
                         static_cast<const T*>(a.x),
                         static_cast<const T*>(a.w),
                         a.rstd,
                         static_cast<const T*>(a.dresidual),
                         a.N,
                         int(a.C),
                         parts,
                         a.amax};
    const dim3 grid(blocks_for(parts, rows)), block(lanes, rows);
    launch(kernel<rmsnorm_backward_kernel<T, kVec>>, LaunchConfig(grid, block, 0, stream), args);
    return parts;
}

}  // namespace

void rmsnorm_forward_cuda(const RmsnormForward& a, CudaStream stream) {
    if (a.N == 0 || a.C == 0) return;
    require(a.C <= 0x7fffffff, "rmsnorm: C=%lld is beyond 2^31", static_cast<long long>(a.C));
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.C % kVecOf<T> == 0 && aligned_to(16, a.y, a.sum, a.x, a.residual, a.w);
        wide ? launch_forward<T, kVecOf<T>>(a, stream) : launch_forward<T, 1>(a, stream);
    });
}

void rmsnorm_backward_cuda(const RmsnormBackward& a, CudaStream stream) {
    if (a.N == 0 || a.C == 0) return;
    require(a.C <= 0x7fffffff, "rmsnorm: C=%lld is beyond 2^31", static_cast<long long>(a.C));
    int parts = 0;
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.C % kVecOf<T> == 0 && aligned_to(16, a.dx, a.dy, a.x, a.w, a.dresidual, a.scratch);
        parts = wide ? launch_backward<T, kVecOf<T>>(a, stream) : launch_backward<T, 1>(a, stream);
    });
    with_device_type(a.grad_dtype, [&]<class G>() {
        launch(kernel<rmsnorm_dw_kernel<G>>,
               LaunchConfig(dim3(blocks_for(a.C, kReduceColumns)), dim3(kReduceColumns, kReduceRows), 0, stream),
               static_cast<G*>(a.dw), a.dw_sum, static_cast<const float*>(a.scratch), parts, int(a.C));
    });
}

}  // namespace rz
