#pragma once
// y = x W^T, dx = dy W, dW += dy^T x for a weight stored (out, in), as Hugging Face stores it.

#include "llama/model/linear_fp8.h"

namespace rz {

// x (N, in), y (N, out), w (out, in), bias (out), all dtype; dw (out, in) grad_dtype, += . With fp8 the products are
// its, x and w may be codes, and a bias is added to the rounded y. y and dx may be of another type than x: partial sums
// that are yet to be added. Enqueue on the stream and return.
void linear(Stream&, void* y, const Operand& x, const Operand& w, int64_t N, int64_t in, int64_t out, DType,
            DType y_dtype, const Fp8Linear* fp8 = nullptr, const void* bias = nullptr);
void linear_backward_input(Stream&, void* dx, const Operand& dy, const Operand& w, int64_t N, int64_t in, int64_t out,
                           DType, DType dx_dtype, const Fp8Linear* fp8 = nullptr);
void linear_backward_weight(Stream&, void* dw, const Operand& dy, const Operand& x, int64_t N, int64_t in, int64_t out,
                            DType, DType grad_dtype, const Fp8Linear* fp8 = nullptr);

}  // namespace rz
