#include "llama/model/block.h"

#include <cmath>

#include "kernels/gemm/gemm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace rz {

void linear(Stream& s, void* y, const void* x, const void* w, int64_t N, int64_t in, int64_t out, DType t) {
    gemm(s, {.c = y, .a = x, .b = w, .M = N, .N = out, .K = in, .trans_b = true, .dtype = t, .c_dtype = t});
}

void linear_backward_input(Stream& s, void* dx, const void* dy, const void* w, int64_t N, int64_t in, int64_t out,
                           DType t) {
    gemm(s, {.c = dx, .a = dy, .b = w, .M = N, .N = in, .K = out, .dtype = t, .c_dtype = t});
}

void linear_backward_weight(Stream& s, void* dw, const void* dy, const void* x, int64_t N, int64_t in, int64_t out,
                            DType t, DType grad_dtype) {
    gemm(s, {.c = dw,
             .a = dy,
             .b = x,
             .M = out,
             .N = in,
             .K = N,
             .trans_a = true,
             .beta = 1,
             .dtype = t,
             .c_dtype = grad_dtype});
}

BlockOffsets::BlockOffsets(const ParamTable& table) {
    auto at = [&](BlockTensor t) { return table.block(0, t).offset - table.units()[1].offset; };
    norm1 = at(kInputNorm);
    qkv = at(kQ);
    out = at(kO);
    norm2 = at(kPostNorm);
    gate_up = at(kGate);
    down = at(kDown);
}

Block::Block(const ModelConfig& config, const ParamTable& table, DType dtype, DType grad_dtype, const float* cos_table,
             const float* sin_table)
    : config_(config), at_(table), dtype_(dtype), grad_dtype_(grad_dtype), cos_(cos_table), sin_(sin_table) {}

AttentionShape Block::attention_shape(const BlockShape& shape) const {
    const ModelConfig& c = config_;
    const int64_t row = (c.heads + 2 * c.kv_heads) * c.head_dim, o_row = c.heads * c.head_dim;
    const int64_t Tk = shape.first_position + shape.T;
    return {.B = shape.B,
            .Tq = shape.T,
            .Tk = Tk,
            .H = c.heads,
            .K = c.kv_heads,
            .D = c.head_dim,
            .q_row = row,
            .q_batch = shape.T * row,
            .kv_row = row,
            .kv_batch = Tk * row,
            .o_row = o_row,
            .o_batch = shape.T * o_row,
            .scale = 1.0f / std::sqrt(float(c.head_dim)),
            .dtype = dtype_};
}

static char* at(void* base, int64_t elements, DType t) { return static_cast<char*>(base) + elements * size_of(t); }

void Block::gate_up(Stream& s, int64_t N, const char* w, const BlockActivations& a) const {
    linear(s, a.gate_up, a.h2, w + at_.gate_up * size_of(dtype_), N, config_.dim, 2 * config_.ffn, dtype_);
}

void Block::forward(Stream& s, const BlockShape& shape, const char* w, const BlockActivations& a,
                    const BlockScratch& scratch, const void* previous_mid) const {
    const ModelConfig& c = config_;
    const int64_t N = shape.rows(), heads_dim = c.heads * c.head_dim, kv_dim = c.kv_heads * c.head_dim;
    const int64_t qkv_dim = heads_dim + 2 * kv_dim, e = size_of(dtype_);

    rmsnorm_forward(s, {.y = a.h1,
                        .rstd = a.rstd1,
                        .sum = previous_mid ? a.resid : nullptr,
                        .x = previous_mid ? scratch.branch : a.resid,
                        .residual = previous_mid,
                        .w = w + at_.norm1 * e,
                        .N = N,
                        .C = c.dim,
                        .eps = float(c.norm_eps),
                        .dtype = dtype_});
    linear(s, a.qkv, a.h1, w + at_.qkv * e, N, c.dim, qkv_dim, dtype_);
    rope(s, {.x = a.qkv,
             .cos_table = cos_,
             .sin_table = sin_,
             .N = N,
             .T = shape.T,
             .first_position = shape.first_position,
             .heads = c.heads + c.kv_heads,
             .D = c.head_dim,
             .row_stride = qkv_dim,
             .dtype = dtype_});
    const char* keys = at(a.qkv, heads_dim - shape.first_position * qkv_dim, dtype_);
    rz::attention_forward(
        s, {.o = a.o, .lse = a.lse, .q = a.qkv, .k = keys, .v = keys + kv_dim * e, .shape = attention_shape(shape)});
    linear(s, scratch.branch, a.o, w + at_.out * e, N, heads_dim, c.dim, dtype_);
    rmsnorm_forward(s, {.y = a.h2,
                        .rstd = a.rstd2,
                        .sum = a.mid,
                        .x = scratch.branch,
                        .residual = a.resid,
                        .w = w + at_.norm2 * e,
                        .N = N,
                        .C = c.dim,
                        .eps = float(c.norm_eps),
                        .dtype = dtype_});
    gate_up(s, N, w, a);
    swiglu_forward(s, {.h = scratch.act, .gate_up = a.gate_up, .N = N, .F = c.ffn, .dtype = dtype_});
    linear(s, scratch.branch, scratch.act, w + at_.down * e, N, c.ffn, c.dim, dtype_);
}

void Block::backward(Stream& s, const BlockShape& shape, const char* w, char* dw, const BlockActivations& a,
                     const BlockScratch& scratch, void* dresid, bool gate_up_again) const {
    if (gate_up_again) gate_up(s, shape.rows(), w, a);
    mlp_backward(s, shape.rows(), w, dw, a, scratch, dresid);
    attention_backward(s, shape, w, dw, a, scratch, dresid);
}

void Block::mlp_backward(Stream& s, int64_t N, const char* w, char* dw, const BlockActivations& a,
                         const BlockScratch& scratch, void* dresid) const {
    const ModelConfig& c = config_;
    const int64_t e = size_of(dtype_), ge = size_of(grad_dtype_);
    linear_backward_input(s, scratch.act, dresid, w + at_.down * e, N, c.ffn, c.dim, dtype_);
    swiglu_backward(s, {.dgate_up = a.gate_up,
                        .dh = scratch.act,
                        .gate_up = a.gate_up,
                        .h = scratch.act,  // the activation again, over its gradient
                        .N = N,
                        .F = c.ffn,
                        .dtype = dtype_});
    linear_backward_weight(s, dw + at_.down * ge, dresid, scratch.act, N, c.ffn, c.dim, dtype_, grad_dtype_);
    linear_backward_weight(s, dw + at_.gate_up * ge, a.gate_up, a.h2, N, c.dim, 2 * c.ffn, dtype_, grad_dtype_);
    linear_backward_input(s, scratch.dh, a.gate_up, w + at_.gate_up * e, N, c.dim, 2 * c.ffn, dtype_);
    rmsnorm_backward(s, {.dx = dresid,
                         .dw = dw + at_.norm2 * ge,
                         .dy = scratch.dh,
                         .x = a.mid,
                         .w = w + at_.norm2 * e,
                         .rstd = a.rstd2,
                         .dresidual = dresid,
                         .scratch = scratch.norm,
                         .N = N,
                         .C = c.dim,
                         .dtype = dtype_,
                         .grad_dtype = grad_dtype_});
}

void Block::attention_backward(Stream& s, const BlockShape& shape, const char* w, char* dw, const BlockActivations& a,
                               const BlockScratch& scratch, void* dresid) const {
    const ModelConfig& c = config_;
    const int64_t N = shape.rows(), heads_dim = c.heads * c.head_dim, kv_dim = c.kv_heads * c.head_dim;
    const int64_t qkv_dim = heads_dim + 2 * kv_dim, e = size_of(dtype_), ge = size_of(grad_dtype_);

    linear_backward_weight(s, dw + at_.out * ge, dresid, a.o, N, heads_dim, c.dim, dtype_, grad_dtype_);
    linear_backward_input(s, scratch.dh, dresid, w + at_.out * e, N, heads_dim, c.dim, dtype_);
    rz::attention_backward(s, {.dq = scratch.dqkv,
                               .dk = at(scratch.dqkv, heads_dim, dtype_),
                               .dv = at(scratch.dqkv, heads_dim + kv_dim, dtype_),
                               .d_o = scratch.dh,
                               .q = a.qkv,
                               .k = at(a.qkv, heads_dim, dtype_),
                               .v = at(a.qkv, heads_dim + kv_dim, dtype_),
                               .o = a.o,
                               .lse = a.lse,
                               .workspace = scratch.attention,
                               .shape = attention_shape(shape)});
    rope(s, {.x = scratch.dqkv,
             .cos_table = cos_,
             .sin_table = sin_,
             .N = N,
             .T = shape.T,
             .heads = c.heads + c.kv_heads,
             .D = c.head_dim,
             .row_stride = qkv_dim,
             .inverse = true,
             .dtype = dtype_});
    linear_backward_weight(s, dw + at_.qkv * ge, scratch.dqkv, a.h1, N, c.dim, qkv_dim, dtype_, grad_dtype_);
    linear_backward_input(s, scratch.dh, scratch.dqkv, w + at_.qkv * e, N, c.dim, qkv_dim, dtype_);
    rmsnorm_backward(s, {.dx = dresid,
                         .dw = dw + at_.norm1 * ge,
                         .dy = scratch.dh,
                         .x = a.resid,
                         .w = w + at_.norm1 * e,
                         .rstd = a.rstd1,
                         .dresidual = dresid,
                         .scratch = scratch.norm,
                         .N = N,
                         .C = c.dim,
                         .dtype = dtype_,
                         .grad_dtype = grad_dtype_});
}

}  // namespace rz
