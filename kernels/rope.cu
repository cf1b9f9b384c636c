#include "kernels/cuda/device_math.cuh"
#include "kernels/rope.h"

namespace rz {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;  // heads that a thread rotates by the same angles

// One thread per (row, group of heads, kVec of the D/2 pairs), the pairs fastest.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rope a, int64_t items) {
    const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (item >= items) return;
    const int half = int(a.D / 2), vectors = half / kVec, groups = int(a.heads + kHeads - 1) / kHeads;
    const int64_t rest = item / vectors, row = rest / groups;
    const int j = int(item - rest * vectors) * kVec, head = int(rest - row * groups) * kHeads;

    T* x = static_cast<T*>(a.x) + row * a.row_stride + head * a.D + j;
    const int here = min(kHeads, int(a.heads) - head);
    Pack<T, kVec> low[kHeads], high[kHeads];  // all of them before the first store, which a compiler would not pass
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        if (h >= here) break;
        low[h].load(x + h * a.D);
        high[h].load(x + h * a.D + half);
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
        float u[kVec], v[kVec], out[kVec];
        low[h].to(u);
        high[h].to(v);
#pragma unroll
        for (int k = 0; k < kVec; ++k) out[k] = u[k] * c[k] - v[k] * s[k];
        store(x + h * a.D, out);
#pragma unroll
        for (int k = 0; k < kVec; ++k) out[k] = v[k] * c[k] + u[k] * s[k];
        store(x + h * a.D + half, out);
    }
}

template <class T, int kVec>
void launch_rope(const Rope& a, CudaStream stream) {
    const int64_t items = a.N * ceil_div(a.heads, kHeads) * (a.D / 2 / kVec);
    launch(kernel<rope_kernel<T, kVec>>, LaunchConfig(dim3(blocks_for(items, kThreads)), dim3(kThreads), 0, stream), a,
           items);
}

}  // namespace

void rope_cuda(const Rope& a, CudaStream stream) {
    if (a.N == 0 || a.heads == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        constexpr int kVec = kVecOf<T>;
        const bool wide =
            a.D / 2 % kVec == 0 && a.row_stride % kVec == 0 && aligned_to(16, a.x, a.cos_table, a.sin_table);
        wide ? launch_rope<T, kVec>(a, stream) : launch_rope<T, 1>(a, stream);
    });
}

}  // namespace rz
