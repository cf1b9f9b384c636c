#include "kernels/loss_scale.h"

#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

__global__ void __launch_bounds__(1) loss_scale_update_kernel(LossScaleUpdate a) {
    *a.state = next_loss_scale(*a.state, !is_finite(*a.grad_scale), a);
}

}  // namespace

void loss_scale_update_cuda(const LossScaleUpdate& a, CudaStream stream) {
    launch(kernel<loss_scale_update_kernel>, LaunchConfig(dim3(1), dim3(1), 0, stream), a);
}

}  // namespace rz
