#include "kernels/fp8/fold_scales.h"

#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) fold_scales_kernel(FoldScales a) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < a.n) a.scales[i] = folded_scale(a, i);
}

}  // namespace

void fold_scales_cuda(const FoldScales& a, CudaStream stream) {
    launch(kernel<fold_scales_kernel>, LaunchConfig(dim3(blocks_for(a.n, kThreads)), dim3(kThreads), 0, stream), a);
}

}  // namespace rz
