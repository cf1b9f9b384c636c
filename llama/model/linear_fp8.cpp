#include "llama/model/linear_fp8.h"

namespace rz {

Fp8Linear::Fp8Linear(Device device, int64_t largest_operand)
    : codes_{Buffer(device, largest_operand, MemKind::workspace, "fp8 codes of the first operand"),
             Buffer(device, largest_operand, MemKind::workspace, "fp8 codes of the second operand")},
      scales_(device, 2 * sizeof(Fp8Scale), MemKind::workspace, "fp8 scales") {}

Fp8Linear::Operand Fp8Linear::quantised(Stream& s, Side side, const void* x, int64_t rows, int64_t columns, Fp8 type,
                                        bool transposed, DType dtype) const {
    const Buffer& memory = codes_[int(side)];
    require(rows * columns <= memory.bytes(), "fp8 linear layer: %lld x %lld codes, room for %lld", (long long)rows,
            (long long)columns, (long long)memory.bytes());
    const Operand o{memory.as<uint8_t>(), scales_.as<Fp8Scale>() + int(side)};
    s.zero(o.scale, sizeof *o.scale);
    abs_max(s, {.scale = o.scale, .x = x, .n = rows * columns, .dtype = dtype});
    quantise(s, {.y = transposed ? nullptr : o.codes,
                 .y_t = transposed ? o.codes : nullptr,
                 .scale = o.scale,
                 .x = x,
                 .rows = rows,
                 .columns = columns,
                 .type = type,
                 .dtype = dtype});
    return o;
}

void Fp8Linear::forward(Stream& s, void* y, const void* x, const void* w, int64_t N, int64_t in, int64_t out,
                        DType t) const {
    const Operand a = quantised(s, Side::first, x, N, in, Fp8::e4m3, false, t);
    const Operand b = quantised(s, Side::second, w, out, in, Fp8::e4m3, false, t);
    fp8_gemm(s, {.c = y,
                 .a = a.codes,
                 .b = b.codes,
                 .a_scale = a.scale,
                 .b_scale = b.scale,
                 .M = N,
                 .N = out,
                 .K = in,
                 .c_dtype = t,
                 .fast_accumulation = true,
                 .what = "Fp8Gemm y = x W^T"});
}

void Fp8Linear::backward_input(Stream& s, void* dx, const void* dy, const void* w, int64_t N, int64_t in, int64_t out,
                               DType t) const {
    const Operand a = quantised(s, Side::first, dy, N, out, Fp8::e5m2, false, t);
    const Operand b = quantised(s, Side::second, w, out, in, Fp8::e4m3, true, t);
    fp8_gemm(s, {.c = dx,
                 .a = a.codes,
                 .b = b.codes,
                 .a_scale = a.scale,
                 .b_scale = b.scale,
                 .M = N,
                 .N = in,
                 .K = out,
                 .a_type = Fp8::e5m2,
                 .c_dtype = t,
                 .what = "Fp8Gemm dx = dy W"});
}

void Fp8Linear::backward_weight(Stream& s, void* dw, const void* dy, const void* x, int64_t N, int64_t in, int64_t out,
                                DType t, DType grad_dtype) const {
    const Operand a = quantised(s, Side::first, dy, N, out, Fp8::e5m2, true, t);
    const Operand b = quantised(s, Side::second, x, N, in, Fp8::e4m3, true, t);
    fp8_gemm(s, {.c = dw,
                 .a = a.codes,
                 .b = b.codes,
                 .a_scale = a.scale,
                 .b_scale = b.scale,
                 .M = out,
                 .N = in,
                 .K = N,
                 .beta = 1,
                 .a_type = Fp8::e5m2,
                 .c_dtype = grad_dtype,
                 .what = "Fp8Gemm dW = dy^T x"});
}

}  // namespace rz
