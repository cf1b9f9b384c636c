#pragma once
// Softmax cross-entropy over a chunk of logits, fused and in place: the gradient replaces the logits.
//
//   lse          = log(sum_v exp(logits[n, v]))
//   loss[n]      = lse - logits[n, target]
//   z_loss[n]    = z * lse^2                                                             if z > 0
//   logits[n, v] = (softmax(logits[n])[v] * (1 + 2 z lse) - [v == target]) * grad_scale * *loss_scale
//                                                                                        if write_gradient
//
// The gradient is that of loss + z_loss (PaLM, Chowdhery et al. 2022, section 5). With z = 0 it is that of the loss, to
// the bit. A target of kIgnoreTarget gives losses 0 and gradient 0. fp32 arithmetic; the gradient is rounded to dtype
// once.

#include "kernels/runtime/device.h"

namespace rz {

constexpr int32_t kIgnoreTarget = -100;  // as in PyTorch

struct CrossEntropy {
    float* loss;             // (N) f32         =
    void* logits;            // (N, V) dtype    in: logits, out: gradient (or untouched)
    const int32_t* targets;  // (N) in [0, V) or kIgnoreTarget
    int64_t N, V;
    float grad_scale;  // 1 / number of targets in the global batch, for the mean loss
    bool write_gradient;
    DType dtype;
    const float* loss_scale = nullptr;  // (1) f32 optional, on the device: a further factor of the gradient
    float z = 0;
    float* z_loss = nullptr;  // (N) f32  =  with z > 0
};

void cross_entropy(Stream&, const CrossEntropy&);
void cross_entropy_cpu(const CrossEntropy&);
void cross_entropy_cuda(const CrossEntropy&, CudaStream);

// out[0] += sum of x[0..n), in double, in a fixed order. For the mean loss of a step without a host synchronisation.
struct SumF32 {
    double* out;     // (1)   +=
    const float* x;  // (n)
    int64_t n;
};
void sum_f32(Stream&, const SumF32&);
void sum_f32_cpu(const SumF32&);
void sum_f32_cuda(const SumF32&, CudaStream);

}  // namespace rz
