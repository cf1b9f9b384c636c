#pragma once
// AdamW's bias correction (Kingma & Ba 2015, section 3), counted on the device: only there is it known whether an
// update is skipped. A skipped one does not count, as in PyTorch.
//
//   updates    += 1
//   correction  = { 1 / (1 - beta1^updates), 1 / sqrt(1 - beta2^updates) }   of m, and of the root of v
//
// Nothing is written if *grad_scale is not finite.

#include <cmath>

#include "kernels/philox.h"
#include "kernels/runtime/device.h"

namespace rz {

struct BiasCorrection {
    int64_t* updates;         // (1) int64, in place; >= 0
    double* correction;       // (2) f64   =
    const float* grad_scale;  // (1) f32, on the device
    double beta1, beta2;      // in [0, 1)
};

void bias_correction(Stream&, const BiasCorrection&);
void bias_correction_cpu(const BiasCorrection&);
void bias_correction_cuda(const BiasCorrection&, CudaStream);

// For n >= 1. Only multiplications, a division and a root, so the same bits on both backends.
RZ_HD double unbiased(double beta, int64_t n) {
    double power = 1;
    for (double square = beta; n > 0; n >>= 1, square *= square)
        if (n & 1) power *= square;
    return 1 - power;
}
RZ_HD double m_correction(double beta1, int64_t n) { return 1 / unbiased(beta1, n); }
RZ_HD double v_correction(double beta2, int64_t n) { return 1 / sqrt(unbiased(beta2, n)); }

}  // namespace rz
