#include "llama/model/block.h"

#include <cmath>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "llama/model/linear.h"

namespace rz {

void add_norm_gradient(Stream& s, void* dw, const float* sum, int64_t C, DType grad_dtype) {
    reduce_add(
        s,
        {.out = dw, .a = dw, .b = sum, .n = C, .out_dtype = grad_dtype, .a_dtype = grad_dtype, .b_dtype = DType::f32});
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

// Both halves at once: what is pending lies where the pass works anyway, and the gradient of the residual stream is one
// buffer throughout.
void Block::backward(Stream& s, const BlockShape& shape, const char* w, char* dw, const BlockActivations& a,
                     const BlockScratch& scratch, void* dresid, bool gate_up_again) const {
    const int64_t N = shape.rows(), e = size_of(dtype_), ge = size_of(grad_dtype_);
    if (gate_up_again) gate_up(s, N, w, a);
    const PendingBlock p{.h1 = a.h1,
                         .h2 = a.h2,
                         .o = a.o,
                         .gate_up = a.gate_up,
                         .act = scratch.act,
                         .dqkv = scratch.dqkv,
                         .dout = dresid,
                         .dmid = dresid};
    RmsnormBackward norm{.dx = dresid,
                         .dw = dw + at_.norm2 * ge,
                         .dy = scratch.dh,
                         .x = a.mid,
                         .w = w + at_.norm2 * e,
                         .rstd = a.rstd2,
                         .dresidual = dresid,
                         .scratch = scratch.norm,
                         .N = N,
                         .C = config_.dim,
                         .dtype = dtype_,
                         .grad_dtype = grad_dtype_};
    mlp_inputs(s, N, w, p, scratch);
    mlp_weights(s, N, dw, p);
    rmsnorm_backward(s, norm);
    attention_inputs(s, shape, w, a, p, scratch);
    attention_weights(s, N, dw, p);
    norm.dw = dw + at_.norm1 * ge;
    norm.x = a.resid;
    norm.w = w + at_.norm1 * e;
    norm.rstd = a.rstd1;
    rmsnorm_backward(s, norm);
}

void exchange(BlockActivations& a, PendingBlock& p) {
    std::swap(a.h1, p.h1);
    std::swap(a.h2, p.h2);
    std::swap(a.o, p.o);
    std::swap(a.gate_up, p.gate_up);
}

void Block::input_grad(Stream& s, const BlockShape& shape, const char* w, const BlockActivations& a,
                       const PendingBlock& p, const BlockScratch& scratch, void* dresid) const {
    const int64_t N = shape.rows(), e = size_of(dtype_);
    RmsnormBackward norm{.dx = p.dmid,
                         .dw_sum = p.dw_norm2,
                         .dy = scratch.dh,
                         .x = a.mid,
                         .w = w + at_.norm2 * e,
                         .rstd = a.rstd2,
                         .dresidual = p.dout,
                         .scratch = scratch.norm,
                         .N = N,
                         .C = config_.dim,
                         .dtype = dtype_,
                         .grad_dtype = grad_dtype_};
    mlp_inputs(s, N, w, p, scratch);
    rmsnorm_backward(s, norm);
    attention_inputs(s, shape, w, a, p, scratch);
    norm.dx = dresid;
    norm.dw_sum = p.dw_norm1;
    norm.x = a.resid;
    norm.w = w + at_.norm1 * e;
    norm.rstd = a.rstd1;
    norm.dresidual = p.dmid;
    rmsnorm_backward(s, norm);
}

void Block::weight_grad(Stream& s, const BlockShape& shape, char* dw, const PendingBlock& p) const {
    const int64_t N = shape.rows();
    mlp_weights(s, N, dw, p);
    attention_weights(s, N, dw, p);
    add_norm_gradient(s, dw + at_.norm2 * size_of(grad_dtype_), p.dw_norm2, config_.dim, grad_dtype_);
    add_norm_gradient(s, dw + at_.norm1 * size_of(grad_dtype_), p.dw_norm1, config_.dim, grad_dtype_);
}

// Leaves the gradient of h2 in scratch.dh, that of gate and up in p.gate_up, and swiglu's output in p.act.
void Block::mlp_inputs(Stream& s, int64_t N, const char* w, const PendingBlock& p, const BlockScratch& scratch) const {
    const ModelConfig& c = config_;
    const int64_t e = size_of(dtype_);
    linear_backward_input(s, p.act, p.dout, w + at_.down * e, N, c.ffn, c.dim, dtype_);
    swiglu_backward(s, {.dgate_up = p.gate_up,
                        .dh = p.act,
                        .gate_up = p.gate_up,
                        .h = p.act,  // the activation again, over its gradient
                        .N = N,
                        .F = c.ffn,
                        .dtype = dtype_});
    linear_backward_input(s, scratch.dh, p.gate_up, w + at_.gate_up * e, N, c.dim, 2 * c.ffn, dtype_);
}

void Block::mlp_weights(Stream& s, int64_t N, char* dw, const PendingBlock& p) const {
    const ModelConfig& c = config_;
    const int64_t ge = size_of(grad_dtype_);
    linear_backward_weight(s, dw + at_.down * ge, p.dout, p.act, N, c.ffn, c.dim, dtype_, grad_dtype_);
    linear_backward_weight(s, dw + at_.gate_up * ge, p.gate_up, p.h2, N, c.dim, 2 * c.ffn, dtype_, grad_dtype_);
}

// Leaves the gradient of h1 in scratch.dh and that of qkv in p.dqkv.
void Block::attention_inputs(Stream& s, const BlockShape& shape, const char* w, const BlockActivations& a,
                             const PendingBlock& p, const BlockScratch& scratch) const {
    const ModelConfig& c = config_;
    const int64_t N = shape.rows(), heads_dim = c.heads * c.head_dim, kv_dim = c.kv_heads * c.head_dim;
    const int64_t qkv_dim = heads_dim + 2 * kv_dim, e = size_of(dtype_);
    linear_backward_input(s, scratch.dh, p.dmid, w + at_.out * e, N, heads_dim, c.dim, dtype_);
    rz::attention_backward(s, {.dq = p.dqkv,
                               .dk = at(p.dqkv, heads_dim, dtype_),
                               .dv = at(p.dqkv, heads_dim + kv_dim, dtype_),
                               .d_o = scratch.dh,
                               .q = a.qkv,
                               .k = at(a.qkv, heads_dim, dtype_),
                               .v = at(a.qkv, heads_dim + kv_dim, dtype_),
                               .o = p.o,
                               .lse = a.lse,
                               .workspace = scratch.attention,
                               .shape = attention_shape(shape)});
    rope(s, {.x = p.dqkv,
             .cos_table = cos_,
             .sin_table = sin_,
             .N = N,
             .T = shape.T,
             .heads = c.heads + c.kv_heads,
             .D = c.head_dim,
             .row_stride = qkv_dim,
             .inverse = true,
             .dtype = dtype_});
    linear_backward_input(s, scratch.dh, p.dqkv, w + at_.qkv * e, N, c.dim, qkv_dim, dtype_);
}

void Block::attention_weights(Stream& s, int64_t N, char* dw, const PendingBlock& p) const {
    const ModelConfig& c = config_;
    const int64_t ge = size_of(grad_dtype_), heads_dim = c.heads * c.head_dim;
    linear_backward_weight(s, dw + at_.out * ge, p.dmid, p.o, N, heads_dim, c.dim, dtype_, grad_dtype_);
    linear_backward_weight(s, dw + at_.qkv * ge, p.dqkv, p.h1, N, c.dim, c.qkv_rows(), dtype_, grad_dtype_);
}

}  // namespace rz
