#pragma once
// RMSNorm of each query and key head (Henry et al. 2020, as Qwen3 has it) and then RoPE (rope.h), in one pass over a
// packed qkv row: heads first, then kv_heads, then what is left alone.
//
//   xhat = x * rstd,  rstd = 1 / sqrt(mean over the head of x^2 + eps),  y = rotate(xhat * w)
//
// with one w for all query heads and one for all key heads. fp32 arithmetic, one rounding: x is read and y written in
// place, and x is kept for the backward pass, which computes rstd again.
//
// Or RMSNorm of all query heads together, and of all key heads (OLMo 2): the mean is then over them, and each head has
// a w of its own. QkSums comes before either pass, so that ranks that share the heads can add what each has.

#include "kernels/runtime/device.h"

namespace rz {

struct QkNorm {
    int64_t N, T;                        // rows; row n is at position first_position + n % T
    int64_t heads, kv_heads, D;          // D even, at most kMaxQkNormDim
    int64_t row_stride;                  // of x, in elements, >= (heads + kv_heads) * D
    const void *wq, *wk;                 // (D) dtype; of all heads together: (heads * D), (kv_heads * D)
    const float* cos_table = nullptr;    // (positions, D/2) f32; both nullptr: nothing is rotated
    const float* sin_table = nullptr;    // (positions, D/2) f32
    int64_t first_position = 0;          //
    const int32_t* positions = nullptr;  // (N) int32, on the device: row n's own position instead
    float eps;
    DType dtype;
    // All heads together: (ranks, N, 2) f32, the sums of squares over q's and k's that each of the ranks has, added
    // in that order; nullptr: each head by itself. Of `sharers` ranks that have the same key heads each counts a share.
    const float* squares = nullptr;
    int64_t ranks = 1, sharers = 1;
    int64_t gains() const { return squares ? heads + kv_heads : 2; }  // vectors of D
};

// sums = over q's heads and over k's, of x^2; or, with dy, of dy*w*xhat: what the backward pass takes the mean of. Of
// keys with sharers, dy is a part of the whole, and so are the latter.
struct QkSums {
    float* sums;               // (N, 2) f32   =
    const void* x;             // (N, row_stride) dtype; with dy, what is kept
    const void* dy = nullptr;  // (N, row_stride) dtype   gradient of what is rotated
    QkNorm norm;               // without dy its squares are not there yet
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
    void* dw = nullptr;       // (gains() * D) grad_dtype  +=   of wq, then of wk; this or
    float* dw_sum = nullptr;  // (gains() * D) f32         =    this
    float* scratch;           // qk_norm_backward_scratch(D, gains()) floats
    DType grad_dtype;
    QkNorm norm;
    const float* dots = nullptr;  // (ranks, N, 2) f32     of QkSums; with squares
    // (1) max= magnitudes of whole rows of dx (magnitude.h), of v heads too, which are read for that: row_stride is
    // then a multiple of D. Optional.
    uint32_t* amax = nullptr;
};

constexpr int64_t kMaxQkNormDim = 256;
int64_t qk_norm_backward_parts(int64_t gains);  // runs of consecutive rows, at most, each summed by itself
int64_t qk_norm_backward_scratch(int64_t D, int64_t gains = 2);  // in floats

void qk_sums(Stream&, const QkSums&);
void qk_norm_forward(Stream&, const QkNormForward&);
void qk_norm_backward(Stream&, const QkNormBackward&);

void qk_sums_cpu(const QkSums&);
void qk_norm_forward_cpu(const QkNormForward&);
void qk_norm_backward_cpu(const QkNormBackward&);
void qk_sums_cuda(const QkSums&, CudaStream);
void qk_norm_forward_cuda(const QkNormForward&, CudaStream);
void qk_norm_backward_cuda(const QkNormBackward&, CudaStream);

}  // namespace rz
