#pragma once
// y = x W^T, dx = dy W, dW += dy^T x for a weight stored (out, in), as Hugging Face stores it.

#include "kernels/runtime/device.h"

namespace rz {

// x (N, in), y (N, out), w (out, in), all dtype; dw (out, in) grad_dtype, += . Enqueue on the stream and return.
void linear(Stream&, void* y, const void* x, const void* w, int64_t N, int64_t in, int64_t out, DType);
void linear_backward_input(Stream&, void* dx, const void* dy, const void* w, int64_t N, int64_t in, int64_t out, DType);
// The same, rounded to another type than x's: partial sums that are yet to be added.
void linear(Stream&, void* y, const void* x, const void* w, int64_t N, int64_t in, int64_t out, DType, DType y_dtype);
void linear_backward_input(Stream&, void* dx, const void* dy, const void* w, int64_t N, int64_t in, int64_t out, DType,
                           DType dx_dtype);
void linear_backward_weight(Stream&, void* dw, const void* dy, const void* x, int64_t N, int64_t in, int64_t out, DType,
                            DType grad_dtype);

}  // namespace rz
