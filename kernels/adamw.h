#pragma once
// AdamW (Loshchilov & Hutter 2019, algorithm 2) over a range of the flat parameter buffer, in one launch.
//
//   g = grad * *grad_scale
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   w -= lr * ( m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay * w )
//
// t is `step`, or what `correction` was made of (bias_correction.h: updates that were skipped do not count).
// w is the master weight; param receives it rounded to nearest. With the same dtype master == param. decay applies only
// inside segments that are marked. If *grad_scale is not finite nothing is written: a bad step leaves the state bit for
// bit.
//
// m and v, and a master that is a bf16 parameter, may be bf16: the step is computed in fp32 from what they hold, w from
// the new m and v before these are rounded, and each is stored with stochastic rounding (stochastic_rounding.h) drawn
// from (seed, step, logical offset). Any cut of a range gives the same bits.

#include "kernels/runtime/device.h"

namespace rz {

struct AdamW {
    void* param;              // (n) param_dtype   =
    void* master;             // (n) master_dtype  in place; param itself if the dtypes are the same
    void* m;                  // (n) adam_dtype    in place
    void* v;                  // (n) adam_dtype    in place
    const void* grad;         // (n) grad_dtype
    const float* grad_scale;  // (1) f32, on the device: clipping and averaging factor
    int64_t n;
    // Which elements decay: segment s covers logical offsets [segment_end[s-1], segment_end[s]); element i of this
    // range is at logical offset first + i.
    const int64_t* segment_end;  // (segments), on the device, ascending; the last is >= first + n
    const uint8_t* decays;       // (segments), on the device
    int64_t segments;
    int64_t first = 0;
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step;                        // 1 for the first: draws the stochastic rounding; t, without `correction`
    const double* correction = nullptr;  // (2) f64, on the device: bias_correction.h's, or none
    DType param_dtype, grad_dtype;
    DType master_dtype = DType::f32;  // or bf16, with param == master
    DType adam_dtype = DType::f32;    // or bf16
    uint64_t seed = 0;                // of the stochastic rounding
    bool on_host = false;             // a GPU's master, m and v are in its host's memory: plans cost that
};

void adamw(Stream&, const AdamW&);
void adamw_cpu(const AdamW&);
void adamw_cuda(const AdamW&, CudaStream);

}  // namespace rz
