#pragma once
// Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), decided on the device: only there is it known whether a
// gradient overflowed. cross_entropy multiplies its gradient by `scale`, clip_scale divides by it (`inverse`); both are
// powers of two, so neither rounds, and what does not overflow or underflow has the bits of an unscaled run.
//
//   if *grad_scale is not finite    overflow: the update is skipped. good = 0. The scale halves, not below `least`,
//                                   unless patience > 1, which then falls by one
//   else                            ++good; after `window` in a row the scale doubles, not above `most`, good = 0 and
//                                   patience = hysteresis
//
// With hysteresis 1 that is torch.amp.GradScaler with growth_factor 2, backoff_factor 0.5 and growth_interval `window`;
// with more, DeepSpeed's DynamicLossScaler. The same input gives the same state on every rank and both backends.

#include <cstdint>

#include "kernels/philox.h"
#include "kernels/runtime/device.h"

namespace rz {

struct LossScaleState {
    float scale, inverse;    // powers of two, scale * inverse == 1
    int32_t good, patience;  // updates since the last change or overflow; overflows until the scale halves
};

struct LossScaleUpdate {
    LossScaleState* state;    // (1) in place, on the device
    const float* grad_scale;  // (1) f32, on the device: what clip_scale made, not finite where the norm is not
    int32_t window, hysteresis;
    float least, most;  // powers of two
};

void loss_scale_update(Stream&, const LossScaleUpdate&);
void loss_scale_update_cpu(const LossScaleUpdate&);
void loss_scale_update_cuda(const LossScaleUpdate&, CudaStream);

RZ_HD LossScaleState next_loss_scale(LossScaleState s, bool overflow, const LossScaleUpdate& a) {
    float scale = s.scale;
    if (overflow) {
        s.good = 0;
        if (s.patience > 1)
            --s.patience;
        else
            scale *= 0.5f;
    } else if (++s.good >= a.window) {
        s.good = 0;
        s.patience = a.hysteresis;
        scale *= 2;
    }
    s.scale = scale < a.least ? a.least : scale > a.most ? a.most : scale;
    s.inverse = 1 / s.scale;
    return s;
}

}  // namespace rz
