#include "kernels/bias_correction.h"
#include "kernels/cuda/device_math.cuh"

namespace rz {
namespace {

__global__ void __launch_bounds__(1)
    bias_correction_kernel(int64_t* updates, double* correction, const float* grad_scale, double beta1, double beta2) {
    if (!is_finite(*grad_scale)) return;
    const int64_t n = *updates + 1;
    *updates = n;
    correction[0] = m_correction(beta1, n);
    correction[1] = v_correction(beta2, n);
}

}  // namespace

void bias_correction_cuda(const BiasCorrection& a, CudaStream stream) {
    launch(kernel<bias_correction_kernel>, LaunchConfig(dim3(1), dim3(1), 0, stream), a.updates, a.correction,
           a.grad_scale, a.beta1, a.beta2);
}

}  // namespace rz
