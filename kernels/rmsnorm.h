#pragma once
// RMSNorm (Zhang & Sennrich 2019), optionally fused with the residual add that precedes it.
//
//   sum = x + residual                (rounded to dtype, as the stored residual stream is; without residual, sum is x)
//   y   = sum * rstd * w              rstd = 1 / sqrt(mean(sum^2) + eps), one per row
//
// All sums are fp32; y is rounded to dtype once. Pointers are aligned to 16 bytes; any C works, C % 8 == 0 is fast.

#include "kernels/runtime/sm_budget.h"
#include "kernels/runtime/device.h"

namespace rz {

struct RmsnormForward {
    void* y;                         // (N, C) dtype     =
    float* rstd;                     // (N) f32          =   kept for the backward pass
    void* sum = nullptr;             // (N, C) dtype     =   with residual only; may alias x or residual
    const void* x;                   // (N, C) dtype
    const void* residual = nullptr;  // (N, C) dtype     optional
    const void* w;                   // (C) dtype
    int64_t N, C;
    float eps;
    DType dtype;
    uint32_t* amax = nullptr;  // (1) max= magnitudes of y (magnitude.h); optional
};

// dx = dresidual + rstd * (dy*w - xhat * mean(dy*w*xhat)),   xhat = x * rstd
// dw += sum over rows of dy * xhat
//
// Two runs on one kind of device give the same bits: the sum over rows is taken from zero over a fixed partition of the
// rows, in order, in fp32, and added to dw once, or, with dw_sum, left there for whoever adds it later: then the bits
// of dw are the same.
struct RmsnormBackward {
    void* dx;                         // (N, C) dtype        =   may alias dresidual or dy
    void* dw = nullptr;               // (C) grad_dtype      +=   this or
    float* dw_sum = nullptr;          // (C) f32             =    this
    const void* dy;                   // (N, C) dtype
    const void* x;                    // (N, C) dtype        what was normalised (the forward pass's sum)
    const void* w;                    // (C) dtype
    const float* rstd;                // (N) f32
    const void* dresidual = nullptr;  // (N, C) dtype        gradient that reaches x past the norm; optional
    float* scratch;                   // rmsnorm_backward_scratch(C) floats
    int64_t N, C;
    DType dtype, grad_dtype;
    uint32_t* amax = nullptr;  // (1) max= magnitudes of dx; optional
    // rmsnorm_backward() takes the context's. The last bits of dw depend on the multiprocessors that are left free, as
    // on those that a device has: there are as many parts as are worked on at a time.
    SmBudget beside = {};
};

// dw is first summed over runs of consecutive rows, one row of scratch each: on the CPU over this many, on a device
// over as many as it works on at a time (fewer if N is smaller).
constexpr int64_t kRmsnormBackwardParts = 256;
constexpr int64_t kRmsnormBackwardThreads = 512;           // that a multiprocessor works with at a time
int64_t rmsnorm_backward_threads(int64_t C, int64_t vec);  // of them per row: two vectors of `vec` elements each
int64_t rmsnorm_backward_scratch(int64_t C);               // in floats: enough for 256 multiprocessors

void rmsnorm_forward(Stream&, const RmsnormForward&);
void rmsnorm_backward(Stream&, const RmsnormBackward&);

void rmsnorm_forward_cpu(const RmsnormForward&);
void rmsnorm_backward_cpu(const RmsnormBackward&);
void rmsnorm_forward_cuda(const RmsnormForward&, CudaStream);
void rmsnorm_backward_cuda(const RmsnormBackward&, CudaStream);

}  // namespace rz
