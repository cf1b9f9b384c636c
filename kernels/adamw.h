#pragma once
// AdamW (Loshchilov & Hutter 2019, algorithm 2) over a range of the flat parameter buffer, in one launch.
//
//   g = grad * *grad_scale
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   w -= lr * ( m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + decay * w )
//
// w is the fp32 master weight; param receives it rounded. With fp32 parameters master == param. decay applies only inside
// segments that are marked. If *grad_scale is not finite nothing is written: a bad step leaves the state bit for bit.

#include "kernels/runtime/device.h"

namespace rz {

struct AdamW {
    void* param;             // (n) param_dtype   =
    float* master;           // (n) f32           in place; may be param itself when param_dtype is fp32
    float* m;                // (n) f32           in place
    float* v;                // (n) f32           in place
    const void* grad;        // (n) grad_dtype
    const float* grad_scale;  // (1) f32, on the device: clipping and averaging factor
    int64_t n;
    // Which elements decay: segment s covers logical offsets [segment_end[s-1], segment_end[s]); element i of this range is at
    // logical offset first + i.
    const int64_t* segment_end;  // (segments), on the device, ascending; the last is >= first + n
    const uint8_t* decays;       // (segments), on the device
    int64_t segments;
    int64_t first = 0;
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step;  // 1 for the first update
    DType param_dtype, grad_dtype;
};

void adamw(Stream&, const AdamW&);
void adamw_cpu(const AdamW&);
void adamw_cuda(const AdamW&, CudaStream);

}  // namespace rz
