#include "kernels/argmax.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/runtime/cuda_check.h"

namespace rz {
namespace {

constexpr int kThreads = 256;

struct Best {
    float x;
    int v;
};

// The larger of two; of equals the lower v. No NaN comes here, so the order of comparisons does not matter.
__device__ __forceinline__ Best better(Best a, Best b) { return b.x > a.x || (b.x == a.x && b.v < a.v) ? b : a; }

__device__ __forceinline__ Best best_of_warp(Best b) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        b = better(b, {__shfl_xor_sync(0xffffffffu, b.x, d), __shfl_xor_sync(0xffffffffu, b.v, d)});
    return b;
}

// One block per row; a thread looks at every 256th element.
template <class T>
__global__ void __launch_bounds__(kThreads) argmax_kernel(int32_t* best, const T* logits, int V, int first) {
    __shared__ float xs[kThreads / 32];
    __shared__ int vs[kThreads / 32];
    const T* row = logits + int64_t(blockIdx.x) * V;
    Best here{-INFINITY, V};
    for (int v = int(threadIdx.x); v < V; v += kThreads)
        if (const float x = to_float(row[v]); x == x) here = better(here, {x, v});
    here = best_of_warp(here);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    if (lane == 0) xs[warp] = here.x, vs[warp] = here.v;
    __syncthreads();
    if (warp != 0) return;
    here = best_of_warp(lane < kThreads / 32 ? Best{xs[lane], vs[lane]} : Best{-INFINITY, V});
    if (lane == 0) best[blockIdx.x] = first + (here.v < V ? here.v : 0);
}

}  // namespace

void argmax_cuda(const Argmax& a, CudaStream stream) {
    if (a.N == 0) return;
    with_device_type(a.dtype, [&]<class T>() {
        launch(kernel<argmax_kernel<T>>, LaunchConfig(dim3(blocks_for(a.N, 1)), dim3(kThreads), 0, stream), a.best,
               static_cast<const T*>(a.logits), int(a.V), int(a.first));
    });
}

}  // namespace rz
