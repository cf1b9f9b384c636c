#include "kernels/cuda/magnitude.cuh"
#include "kernels/swiglu.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float x) { return ptx::rcp(1.0f + ptx::ex2(-kLog2e * x)); }

// Offset of the gate of vector `item` in gate_up; its up part follows F later.
template <int kVec>
__device__ __forceinline__ int64_t gate_offset(int64_t item, int64_t items, int F) {
    const int vectors = F / kVec;
    const int64_t row = items <= 0xffffffffLL ? int64_t(uint32_t(item) / uint32_t(vectors)) : item / vectors;
    return (item + row * vectors) * kVec;
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(T* h, const T* gate_up, int64_t items, int F, uint32_t* amax) {
    __shared__ uint32_t slots[kThreads / 32];
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    uint32_t most = 0;
    if (item < items) {
        const T* source = gate_up + gate_offset<kVec>(item, items, F);
        float gate[kVec], up[kVec];
        load(gate, source);
        load(up, source + F);
#pragma unroll
        for (int k = 0; k < kVec; ++k) up[k] *= gate[k] * sigmoid(gate[k]);
        store(h + item * kVec, up);
        most = magnitude_bits(up);
    }
    if (amax != nullptr) block_join<T>(amax, most, slots, kThreads);
}

// As store(), and whole: nvcc parts one of the three stores below, whichever it is.
template <int kN, class T>
__device__ __forceinline__ void store_whole(T* p, const float (&in)[kN]) {
    Pack<T, kN> pack;
    pack.from(in);
    if constexpr (Pack<T, kN>::kBytes == 16)
        ptx::store16(p, pack.words[0]);
    else
        pack.store(p);
}

template <class T>
struct BackwardArgs {
    T* dgate_up;
    const T *dh, *gate_up;
    T* h;
    int64_t items;
    int F;
    uint32_t *amax, *h_amax;
};

// A thread reads its elements of every input before it writes any, so outputs may lie over inputs.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(BackwardArgs<T> a) {
    __shared__ uint32_t slots[kThreads / 32], h_slots[kThreads / 32];
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    uint32_t most = 0, h_most = 0;
    if (item < a.items) {
        const int64_t offset = gate_offset<kVec>(item, a.items, a.F);
        float gate[kVec], up[kVec], grad[kVec], dgate[kVec], dup[kVec];
        load(gate, a.gate_up + offset);
        load(up, a.gate_up + offset + a.F);
        load(grad, a.dh + item * kVec);
#pragma unroll
        for (int k = 0; k < kVec; ++k) {
            const float sig = sigmoid(gate[k]), silu = gate[k] * sig;
            dgate[k] = grad[k] * up[k] * sig * (1.0f + gate[k] * (1.0f - sig));
            dup[k] = grad[k] * silu;
            up[k] *= silu;
        }
        store_whole(a.dgate_up + offset, dgate);
        store_whole(a.dgate_up + offset + a.F, dup);
        if (a.h != nullptr) store_whole(a.h + item * kVec, up);
        most = max(magnitude_bits(dgate), magnitude_bits(dup)), h_most = magnitude_bits(up);
    }
    if (a.amax != nullptr) block_join<T>(a.amax, most, slots, kThreads);
    if (a.h_amax != nullptr) block_join<T>(a.h_amax, h_most, h_slots, kThreads);
}

template <class T, int kVec>
void launch_forward(const SwigluForward& a, CudaStream stream) {
    const int64_t items = a.N * (a.F / kVec);
    launch(kernel<swiglu_forward_kernel<T, kVec>>,
           LaunchConfig(dim3(blocks_for(items, kThreads)), dim3(kThreads), 0, stream), static_cast<T*>(a.h),
           static_cast<const T*>(a.gate_up), items, int(a.F), a.amax);
}

template <class T, int kVec>
void launch_backward(const SwigluBackward& a, CudaStream stream) {
    const int64_t items = a.N * (a.F / kVec);
    launch(kernel<swiglu_backward_kernel<T, kVec>>,
           LaunchConfig(dim3(blocks_for(items, kThreads)), dim3(kThreads), 0, stream),
           BackwardArgs<T>{static_cast<T*>(a.dgate_up), static_cast<const T*>(a.dh), static_cast<const T*>(a.gate_up),
                           static_cast<T*>(a.h), items, int(a.F), a.amax, a.h_amax});
}

}  // namespace

void swiglu_forward_cuda(const SwigluForward& a, CudaStream stream) {
    if (a.N == 0 || a.F == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.F % kVecOf<T> == 0 && aligned_to(16, a.h, a.gate_up);
        wide ? launch_forward<T, kVecOf<T>>(a, stream) : launch_forward<T, 1>(a, stream);
    });
}

void swiglu_backward_cuda(const SwigluBackward& a, CudaStream stream) {
    if (a.N == 0 || a.F == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        const bool wide = a.F % kVecOf<T> == 0 && aligned_to(16, a.dgate_up, a.dh, a.gate_up, a.h);
        wide ? launch_backward<T, kVecOf<T>>(a, stream) : launch_backward<T, 1>(a, stream);
    });
}

}  // namespace rz
