#include "kernels/loss_scale.h"

#include <cmath>

#include "kernels/checks.h"

namespace rz {

void loss_scale_update_cpu(const LossScaleUpdate& a) {
    *a.state = next_loss_scale(*a.state, !std::isfinite(*a.grad_scale), a);
}

void loss_scale_update(Stream& stream, const LossScaleUpdate& a) {
    const char* op = "loss_scale_update";
    check_pointers(op, {{"state", a.state, 16}, {"grad_scale", a.grad_scale}});
    check_sizes(op, {{"window", a.window, 1}, {"hysteresis", a.hysteresis, 1}});
    int exponent;
    require(std::frexp(a.least, &exponent) == 0.5f && std::frexp(a.most, &exponent) == 0.5f && a.least <= a.most,
            "%s: least %g and most %g; both must be powers of two, and least the smaller", op, double(a.least),
            double(a.most));
    stream.run(a, loss_scale_update_cpu, RZ_CUDA_OP(loss_scale_update_cuda));
}

}  // namespace rz
