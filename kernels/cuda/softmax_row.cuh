// Shared by the kernels of cross-entropy: the softmax of a row of logits in
// one pass, and how a block cuts a row.
#pragma once

#include "kernels/cuda/device_math.cuh"

namespace rz {

// Running maximum and sum of exp(x - maximum). `top` is the maximum times log2
// e, rounded: for exp(x - maximum) stands 2^(x log2 e - top), one fmaf and one
// ex2. What the rounding adds is a factor common to all terms: it cancels in
// the gradient, and the loss adds the same `top` again.
struct Softmax {
    float max = -INFINITY, top = -INFINITY, sum = 0;

    template <int kN>
    __device__ __forceinline__ void add(const float (&x)[kN]) {
        float here = x[0];
#pragma unroll
        for (int k = 1; k < kN; ++k) here = fmaxf(here, x[k]);
        if (here > max) {
            max = here;
            const float before = top;
            top = here * kLog2e;
            sum *= ptx::ex2(before - top);  // 0 the first time
        }
        if (here == -INFINITY) {  // masked logits, which add nothing, unless fmaxf
                                  // has passed over a NaN
#pragma unroll
            for (int k = 0; k < kN; ++k) sum = x[k] == x[k] ? sum : x[k];
            return;
        }
#pragma unroll
        for (int k = 0; k < kN; ++k) sum += ptx::ex2(fmaf(x[k], kLog2e, -top));
    }
};

// A row of V elements at any address: scalars up to a 16-byte boundary,
// vectors, scalars. A thread takes at most one scalar at each end.
template <class T>
struct RowCut {
    static constexpr int kVec = kVecOf<T>;
    int head, vectors, tail;  // tail: first element after the vectors

    __device__ __forceinline__ RowCut(const T* row, int V) {
        const int misaligned = int(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
        head = min(V, (kVec - misaligned) % kVec);
        vectors = (V - head) / kVec;
        tail = head + vectors * kVec;
    }

    // The thread that takes element v, if vector i is thread i % threads'
    __device__ __forceinline__ int owner(int v, int threads) const {
        return v < head ? v : v < tail ? (v - head) / kVec % threads : v - tail;
    }
};

// The probability is 2^(x log2 e - top) / sum; `factor` has the gradient's
// scale in it too.
template <class T, int kN>
__device__ __forceinline__ void store_gradient(T* p, float (&x)[kN], float top, float factor) {
#pragma unroll
    for (int k = 0; k < kN; ++k) x[k] = ptx::ex2(fmaf(x[k], kLog2e, -top)) * factor;
    store(p, x);
}

// A block's softmax from its threads'; both arrays are shared, 32 floats each.
struct RowSoftmax {
    float max, top, sum;

    __device__ __forceinline__ RowSoftmax(const Softmax& own, float* maxima, float* sums, int threads) {
        max = block_max(own.max, maxima, threads);
        top = max * kLog2e;
        sum = block_sum(own.sum == 0 ? 0.0f : own.sum * ptx::ex2(own.top - top), sums, threads);
    }
};

}  // namespace rz
