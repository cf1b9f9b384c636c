#pragma once
// AdamW as the lessons ask the program for it: fp32, lr 0.01 or another, betas 0.9 and 0.95, eps 1e-8, decay 0.1.

#include "kernels/adamw.h"

namespace learn {

// One step of n weights, of which the first `decaying` decay.
inline void program_adamw(float* w, float* m, float* v, const float* gradient, int64_t n, int64_t decaying,
                          int64_t step, float lr) {
    const float scale = 1;
    const int64_t segment_end[2] = {decaying, n};
    const uint8_t decays[2] = {1, 0};
    rz::adamw_cpu({.param = w,
                   .master = w,
                   .m = m,
                   .v = v,
                   .grad = gradient,
                   .grad_scale = &scale,
                   .n = n,
                   .segment_end = segment_end,
                   .decays = decays,
                   .segments = decaying < n ? 2 : 1,
                   .lr = lr,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .step = step,
                   .param_dtype = rz::DType::f32,
                   .grad_dtype = rz::DType::f32});
}

}  // namespace learn
