#include "llama/model/linear.h"

#include "kernels/bias.h"
#include "kernels/gemm/gemm.h"

namespace rz {

static const void* in_own_type(const Operand& x) {
    require(x.data, "a tensor that there is as fp8 codes only, for a product that is not in fp8");
    return x.data;
}

void linear(Stream& s, void* y, const Operand& x, const Operand& w, int64_t N, int64_t in, int64_t out, DType t,
            DType y_dtype, const Fp8Linear* fp8, const void* bias) {
    if (fp8) {
        fp8->forward(s, y, x, w, N, in, out, t, y_dtype);
        if (bias) add_bias(s, {.x = y, .bias = bias, .N = N, .C = out, .dtype = y_dtype});
        return;
    }
    gemm(s, {.c = y,
             .a = in_own_type(x),
             .b = in_own_type(w),
             .M = N,
             .N = out,
             .K = in,
             .trans_b = true,
             .dtype = t,
             .c_dtype = y_dtype,
             .bias = bias});
}

void linear_backward_input(Stream& s, void* dx, const Operand& dy, const Operand& w, int64_t N, int64_t in, int64_t out,
                           DType t, DType dx_dtype, const Fp8Linear* fp8) {
    if (fp8) return fp8->backward_input(s, dx, dy, w, N, in, out, t, dx_dtype);
    gemm(s, {.c = dx,
             .a = in_own_type(dy),
             .b = in_own_type(w),
             .M = N,
             .N = in,
             .K = out,
             .dtype = t,
             .c_dtype = dx_dtype});
}

void linear_backward_weight(Stream& s, void* dw, const Operand& dy, const Operand& x, int64_t N, int64_t in,
                            int64_t out, DType t, DType grad_dtype, const Fp8Linear* fp8) {
    if (fp8) return fp8->backward_weight(s, dw, dy, x, N, in, out, t, grad_dtype);
    gemm(s, {.c = dw,
             .a = in_own_type(dy),
             .b = in_own_type(x),
             .M = out,
             .N = in,
             .K = N,
             .trans_a = true,
             .beta = 1,
             .dtype = t,
             .c_dtype = grad_dtype});
}

}  // namespace rz
