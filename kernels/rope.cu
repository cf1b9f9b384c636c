#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/rotate.cuh"
#include "kernels/rope.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;  // heads that a thread rotates by the same angles

// One (row, group of heads, kVec of the D/2 pairs), the pairs fastest. With kMeasures the groups of heads that are
// rotated are followed by those of the others, which are only read. Returns the largest magnitude.
template <class T, int kVec, bool kMeasures>
__device__ __forceinline__ uint32_t rope_item(const Rope& a, int64_t item) {
    const int half = int(a.D / 2), vectors = half / kVec, rotated = int(a.heads + kHeads - 1) / kHeads;
    const int all = kMeasures ? int(a.row_stride / a.D) : int(a.heads), others = all - int(a.heads);
    const int groups = rotated + (others + kHeads - 1) / kHeads;
    const int64_t rest = item / vectors, row = rest / groups;
    const int j = int(item - rest * vectors) * kVec, group = int(rest - row * groups);
    const bool turns = !kMeasures || group < rotated;
    const int head = turns ? group * kHeads : int(a.heads) + (group - rotated) * kHeads;

    T* x = static_cast<T*>(a.x) + row * a.row_stride + head * a.D + j;
    const int here = min(kHeads, (turns ? int(a.heads) : all) - head);
    uint32_t most = 0;
    Pack<T, kVec> low[kHeads], high[kHeads];  // all of them before the first store, which a compiler would not pass
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        if (h >= here) break;
        low[h].load(x + h * a.D);
        high[h].load(x + h * a.D + half);
    }
    if (!turns) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            if (h >= here) break;
            float u[kVec], v[kVec];
            low[h].to(u);
            high[h].to(v);
            most = max(most, max(magnitude_bits(u), magnitude_bits(v)));
        }
        return most;
    }
    const int64_t position = a.positions ? a.positions[row] : a.first_position + row % a.T;
    const int64_t angle = position * half + j;
    float c[kVec], s[kVec];
    load(c, a.cos_table + angle);
    load(s, a.sin_table + angle);
    if (a.inverse) {
#pragma unroll
        for (int k = 0; k < kVec; ++k) s[k] = -s[k];
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        if (h >= here) break;
        float u[kVec], v[kVec];
        low[h].to(u);
        high[h].to(v);
        rotate(u, v, c, s);
        store(x + h * a.D, u);
        store(x + h * a.D + half, v);
        if constexpr (kMeasures) most = max(most, max(magnitude_bits(u), magnitude_bits(v)));
    }
    return most;
}

template <class T, int kVec, bool kMeasures>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rope a, int64_t items) {
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if constexpr (!kMeasures) {
        if (item < items) rope_item<T, kVec, false>(a, item);
    } else {
        __shared__ uint32_t slots[kThreads / 32];
        const uint32_t most = item < items ? rope_item<T, kVec, true>(a, item) : 0u;
        block_join<T>(a.amax, most, slots, kThreads);
    }
}

template <class T, int kVec, bool kMeasures>
void launch_rope(const Rope& a, CudaStream stream) {
    const int64_t others = kMeasures ? a.row_stride / a.D - a.heads : 0;
    const int64_t items = a.N * (ceil_div(a.heads, kHeads) + ceil_div(others, kHeads)) * (a.D / 2 / kVec);
    launch(kernel<rope_kernel<T, kVec, kMeasures>>,
           LaunchConfig(dim3(blocks_for(items, kThreads)), dim3(kThreads), 0, stream), a, items);
}

}  // namespace

void rope_cuda(const Rope& a, CudaStream stream) {
    if (a.N == 0 || a.heads == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        constexpr int kVec = kVecOf<T>;
        const bool wide =
            a.D / 2 % kVec == 0 && a.row_stride % kVec == 0 && aligned_to(16, a.x, a.cos_table, a.sin_table);
        if (a.amax)
            wide ? launch_rope<T, kVec, true>(a, stream) : launch_rope<T, 1, true>(a, stream);
        else
            wide ? launch_rope<T, kVec, false>(a, stream) : launch_rope<T, 1, false>(a, stream);
    });
}

}  // namespace rz
