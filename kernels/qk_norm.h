#pragma once
// RMSNorm of each query and key head (Henry et al. 2020, as Qwen3 has it) and then RoPE (rope.h), in one pass over a
// packed qkv row: heads first, then kv_heads, then what is left alone.
//
//   xhat = x * rstd,  rstd = 1 / sqrt(mean over the head of x^2 + eps),  y = rotate(xhat * w)
//
// with one w for all query heads and one for all key heads. fp32 arithmetic, one rounding: x is read and y written in
// place, and x is kept for the backward pass, which computes rstd again.

#include "kernels/runtime/device.h"

namespace rz {

struct QkNorm {
    int64_t N, T;                        // rows; row n is at position first_position + n % T
    int64_t heads, kv_heads, D;          // D even, at most kMaxQkNormDim
    int64_t row_stride;                  // of x, in elements, >= (heads + kv_heads) * D
    const void *wq, *wk;                 // (D) dtype
    const float* cos_table = nullptr;    // (positions, D/2) f32; both nullptr: nothing is rotated
    const float* sin_table = nullptr;    // (positions, D/2) f32
    int64_t first_position = 0;          //
    const int32_t* positions = nullptr;  // (N) int32, on the device: row n's own position instead
    float eps;
    DType dtype;
};

struct QkNormForward {
    void* x;               // (N, row_stride) dtype   =   in place
    void* kept = nullptr;  // (N, (heads + kv_heads) * D) dtype   =   x as it was; optional
    QkNorm norm;
};

// dx = rstd * (dy*w - xhat * mean(dy*w*xhat)),  dw += sum over rows and heads of dy * xhat,  dy = dx rotated back
//
// Two runs give the same bits, on any number of threads and multiprocessors: the sum is taken from zero over a fixed
// partition of the rows, in order, in fp32, and added to dw once, or, with dw_sum, left there for whoever adds it
// later: then the bits of dw are the same.
struct QkNormBackward {
    void* dx;                 // (N, row_stride) dtype     =    in place
    const void* kept;         // (N, (heads + kv_heads) * D) dtype
    void* dw = nullptr;       // (2 D) grad_dtype          +=   of wq, then of wk; this or
    float* dw_sum = nullptr;  // (2 D) f32                 =    this
    float* scratch;           // qk_norm_backward_scratch(D) floats
    DType grad_dtype;
    QkNorm norm;
};

constexpr int64_t kMaxQkNormDim = 256;
constexpr int64_t kQkNormBackwardParts = 2048;  // runs of consecutive rows, at most, each summed by itself
int64_t qk_norm_backward_scratch(int64_t D);    // in floats

void qk_norm_forward(Stream&, const QkNormForward&);
void qk_norm_backward(Stream&, const QkNormBackward&);

void qk_norm_forward_cpu(const QkNormForward&);
void qk_norm_backward_cpu(const QkNormBackward&);
void qk_norm_forward_cuda(const QkNormForward&, CudaStream);
void qk_norm_backward_cuda(const QkNormBackward&, CudaStream);

}  // namespace rz
