#include "kernels/bias_correction.h"

#include <cmath>

#include "kernels/checks.h"

namespace rz {

void bias_correction_cpu(const BiasCorrection& a) {
    if (!std::isfinite(*a.grad_scale)) return;
    const int64_t n = ++*a.updates;
    a.correction[0] = m_correction(a.beta1, n);
    a.correction[1] = v_correction(a.beta2, n);
}

void bias_correction(Stream& stream, const BiasCorrection& a) {
    const char* op = "bias_correction";
    check_pointers(op, {{"updates", a.updates}, {"correction", a.correction}, {"grad_scale", a.grad_scale}});
    require(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1,
            "%s: beta1 %g and beta2 %g; both must be in [0, 1)", op, a.beta1, a.beta2);
    stream.run(a, bias_correction_cpu, RZ_CUDA_OP(bias_correction_cuda));
}

}  // namespace rz
