#include "llama/model/block.h"

#include <utility>

#include "kernels/elementwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace rz {

void Block::forward(Stream& s, const BlockShape& shape, const BlockWeights& w, const BlockActivations& a,
                    const BlockScratch& scratch, const void* previous_mid, const BlockStats* watch) const {
    BlockPass p = pass(s, shape, scratch, a.scales);
    if (previous_mid)
        enter(p, qkv_, a.h1, a.rstd1, a.resid, scratch.branch, previous_mid, w.norm1);
    else
        enter(p, qkv_, a.h1, a.rstd1, nullptr, a.resid, nullptr, w.norm1);
    qkv_.forward(p, a.qkv, a.h1, w.qkv, w.qkv_bias);
    rotate(p, a.qkv, a, w);
    if (watch && config_.post_norm)  // which reads the residual stream's rstd
        norm(p, scratch.branch, a.rstd1, nullptr, a.resid, nullptr, w.norm1, nullptr);
    if (watch)
        attention_.forward(p, a.o, a.lse, a.qkv, out_.magnitude_of_x(p), a.rstd1, *watch);
    else
        attention_.forward(p, a.o, a.lse, a.qkv, out_.magnitude_of_x(p));
    out_.forward(p, place_of_last(p, a.last1), a.o, w.out);
    leave(p, a.last1, a.rstd1, w.norm1);
    enter(p, gate_up_, a.h2, a.rstd2, a.mid, scratch.branch, a.resid, w.norm2);
    gate_up_.forward(p, a.gate_up, a.h2, w.gate_up);
    swiglu_forward(s, {.h = scratch.act,
                       .gate_up = a.gate_up,
                       .N = p.N,
                       .F = config_.ffn,
                       .dtype = dtype_,
                       .amax = down_.magnitude_of_x(p)});
    down_.forward(p, place_of_last(p, a.last2), scratch.act, w.down);
    leave(p, a.last2, a.rstd2, w.norm2);
}

void Block::backward(BlockPass& p, const BlockWeights& w, char* dw, const BlockActivations& a,
                     const WeightGradInputs& d, void* dresid, Fp8Scale* of_dresid) const {
    const bool both = dw != nullptr, post = config_.post_norm;
    char *dw_norm1 = both ? at(dw, norm1_, grad_dtype_) : nullptr,
         *dw_norm2 = both ? at(dw, norm2_, grad_dtype_) : nullptr;
    void* const dstream = post ? dresid : d.dmid;  // of the residual stream in the middle
    leave_backward(p, d.dout, dw_norm2, d.dw_norm2, dresid, a.last2, w.norm2, a.rstd2, down_);
    // Without tp nothing travels beside compute, and a layer's weight comes as soon as it can: its dy is at hand.
    const bool at_once = both && !tp_, later = both && tp_;
    const void* dout = down_.input_grad(p, d.act, d.dout, w.down, both);
    swiglu_backward(p.stream, {.dgate_up = d.gate_up,
                               .dh = d.act,
                               .gate_up = d.gate_up,
                               .h = d.act,  // the activation again, over its gradient
                               .N = p.N,
                               .F = config_.ffn,
                               .dtype = dtype_,
                               .amax = gate_up_.magnitude_of_dy(p),
                               .h_amax = down_.magnitude_of_x(p)});
    if (at_once) down_.weight_grad(p, dw, dout, d.act);
    if (both) gate_up_.x_sets_off(p, d.h2);
    gate_up_.input_grad(p, p.scratch.dnorm, d.gate_up, w.gate_up, both);
    if (later) down_.weight_grad(p, dw, dout, d.act);
    if (both) gate_up_.weight_grad(p, dw, d.gate_up, d.h2);
    gate_up_.wait_for_dx(p);
    enter_backward(p, dstream, dw_norm2, d.dw_norm2, a.mid, w.norm2, a.rstd2, post ? dresid : d.dout,
                   out_.magnitude_of_dy(p));
    leave_backward(p, d.dmid, dw_norm1, d.dw_norm1, dresid, a.last1, w.norm1, a.rstd1, out_);

    const void* dmid = out_.input_grad(p, p.scratch.dh, d.dmid, w.out, both);
    if (at_once) out_.weight_grad(p, dw, dmid, d.o);
    rotated_backward(p, d.dqkv, dw, d.dw_qk_norm, d.o, a, w);
    if (both) qkv_.x_sets_off(p, d.h1);
    qkv_.input_grad(p, p.scratch.dnorm, d.dqkv, w.qkv, both);
    if (later) out_.weight_grad(p, dw, dmid, d.o);
    if (both) qkv_.weight_grad(p, dw, d.dqkv, d.h1);
    qkv_.wait_for_dx(p);
    enter_backward(p, dresid, dw_norm1, d.dw_norm1, a.resid, w.norm1, a.rstd1, dstream, magnitude_of(of_dresid));
}

// What is pending lies where the pass works anyway, and the gradient of the residual stream is one buffer throughout.
// Those of last products have scratch.branch.
void Block::backward(Stream& s, const BlockShape& shape, const BlockWeights& w, char* dw, const BlockActivations& a,
                     const BlockScratch& scratch, void* dresid, Recompute what, Fp8Scale* of_dresid) const {
    BlockPass p = pass(s, shape, scratch, a.scales);
    recompute(p, w, a, what);
    void* const dlast = config_.post_norm ? scratch.branch : dresid;
    const WeightGradInputs d{.h1 = a.h1,
                             .h2 = a.h2,
                             .o = a.o,
                             .gate_up = a.gate_up,
                             .act = scratch.act,
                             .dqkv = scratch.dqkv,
                             .dout = dlast,
                             .dmid = dlast};
    backward(p, w, dw, a, d, dresid, of_dresid);
}

void Block::input_grad(Stream& s, const BlockShape& shape, const BlockWeights& w, const BlockActivations& a,
                       const WeightGradInputs& d, const BlockScratch& scratch, void* dresid, Recompute what,
                       Fp8Scale* of_dresid) const {
    BlockPass p = pass(s, shape, scratch, d.scales);
    recompute(p, w, a, what);
    if (config_.post_norm) s.copy(dresid, d.dout, p.R * config_.dim * size_of(dtype_));
    backward(p, w, nullptr, a, d, dresid, of_dresid);
}

// Of the rows that the four products read, those of one come into scratch.whole or scratch.ahead while the product
// before reads the other.
void Block::weight_grad(Stream& s, const BlockShape& shape, char* dw, const WeightGradInputs& d,
                        const BlockScratch& scratch, Event& dout_there, const WeightGradInputs* next) const {
    BlockPass p = pass(s, shape, scratch, d.scales);
    p.whole = std::exchange(dout_there, {});
    const void* dout = down_.all_rows(p, d.dout);
    gate_up_.x_sets_off(p, d.h2);
    down_.weight_grad(p, dw, dout, d.act);
    out_.dy_sets_off(p, d.dmid);
    gate_up_.weight_grad(p, dw, d.gate_up, d.h2);
    qkv_.x_sets_off(p, d.h1);
    const void* dmid = out_.all_rows(p, d.dmid);
    out_.weight_grad(p, dw, dmid, d.o);
    BlockPass below = pass(s, shape, scratch, next ? next->scales : nullptr);
    if (next) down_.dy_sets_off(below, next->dout);
    qkv_.weight_grad(p, dw, d.dqkv, d.h1);
    dout_there = below.whole;
    add_norm_gradient(s, at(dw, norm2_, grad_dtype_), d.dw_norm2, config_.dim, grad_dtype_);
    add_norm_gradient(s, at(dw, norm1_, grad_dtype_), d.dw_norm1, config_.dim, grad_dtype_);
    if (qk_norm_ >= 0)
        add_norm_gradient(s, at(dw, qk_norm_, grad_dtype_), d.dw_qk_norm, config_.q_gains() + config_.k_gains(),
                          grad_dtype_);
}

void Block::recompute(BlockPass& p, const BlockWeights& w, const BlockActivations& a, Recompute what) const {
    if (what == Recompute::block) return forward(p.stream, p.shape, w, a, p.scratch, nullptr);
    if (has(what, Recompute::norms)) {
        enter(p, qkv_, a.h1, a.rstd1, nullptr, a.resid, nullptr, w.norm1);
        enter(p, gate_up_, a.h2, a.rstd2, nullptr, a.mid, nullptr, w.norm2);
    }
    if (has(what, Recompute::attention)) {
        qkv_.forward(p, a.qkv, a.h1, w.qkv, w.qkv_bias);
        rotate(p, a.qkv, a, w);
        attention_.forward(p, a.o, a.lse, a.qkv, out_.magnitude_of_x(p));
    }
    if (has(what, Recompute::mlp)) gate_up_.forward(p, a.gate_up, a.h2, w.gate_up);
}

BlockActivations exchange(BlockActivations& a, WeightGradInputs& p, Recompute recompute) {
    const bool stream = a.h1 == a.resid;  // not in codes
    const auto keeps = [&](Recompute one) { return !has(recompute, one | Recompute::block); };
    if (keeps(Recompute::norms) || (stream && keeps(Recompute::block))) {
        std::swap(a.h1, p.h1);
        std::swap(a.h2, p.h2);
    }
    if (keeps(Recompute::attention)) std::swap(a.o, p.o);
    if (keeps(Recompute::mlp)) std::swap(a.gate_up, p.gate_up);
    if (keeps(Recompute::block)) std::swap(a.scales, p.scales);
    BlockActivations now = a;
    now.h1 = p.h1, now.h2 = p.h2, now.o = p.o, now.scales = p.scales, now.gate_up = p.gate_up;
    if (!stream) return now;
    now.mid = p.h2;
    if (keeps(Recompute::block)) now.resid = p.h1, a.resid = a.h1, a.mid = a.h2;
    return now;
}

// ---- ops between the layers -----------------------------------------------------------------------------------------

// sum = x + residual, h = rmsnorm(sum), or sum itself, which `reader` reads
void Block::enter(BlockPass& p, const ParallelLinear& reader, void* h, float* rstd, void* sum, const void* x,
                  const void* residual, const void* w) const {
    if (config_.post_norm) {
        if (residual) add(p, sum, x, residual);
        const void* stream = residual ? sum : x;
        if (!p.scales && h != stream)  // its place is apart
            p.stream.copy(h, stream, p.R * config_.dim * size_of(dtype_));
        return reader.keep_x(p, h, stream);
    }
    norm(p, reader.place_of_x(p, h), rstd, sum, x, residual, w, reader.magnitude_of_x(p));
    reader.keep_x(p, h, p.scratch.dnorm);
}

// dx = dresidual + the gradient of what the branch reads, which is in scratch.dnorm
void Block::enter_backward(BlockPass& p, void* dx, char* dw, float* dw_sum, const void* x, const void* w,
                           const float* rstd, const void* dresidual, uint32_t* amax) const {
    if (config_.post_norm) return add(p, dx, dresidual, p.scratch.dnorm);
    norm_backward(p, dx, dw, dw_sum, p.scratch.dnorm, x, w, rstd, dresidual, amax);
}

// With norms after the branches scratch.branch = rmsnorm(last); else it is there.
void Block::leave(BlockPass& p, const void* last, float* rstd, const void* w) const {
    if (config_.post_norm) norm(p, p.scratch.branch, rstd, nullptr, last, nullptr, w, nullptr);
}

// Likewise dlast, which is dy of `reader`, of the gradient of the stream; else it is there.
void Block::leave_backward(BlockPass& p, void* dlast, char* dw, float* dw_sum, const void* dstream, const void* last,
                           const void* w, const float* rstd, const ParallelLinear& reader) const {
    if (config_.post_norm)
        norm_backward(p, dlast, dw, dw_sum, dstream, last, w, rstd, nullptr, reader.magnitude_of_dy(p));
}

void Block::add(BlockPass& p, void* sum, const void* a, const void* b) const {
    reduce_add(p.stream, {.out = sum,
                          .a = a,
                          .b = b,
                          .n = p.R * config_.dim,
                          .out_dtype = dtype_,
                          .a_dtype = dtype_,
                          .b_dtype = dtype_});
}

void Block::norm(BlockPass& p, void* y, float* rstd, void* sum, const void* x, const void* residual, const void* w,
                 uint32_t* amax) const {
    rmsnorm_forward(p.stream, {.y = y,
                               .rstd = rstd,
                               .sum = sum,
                               .x = x,
                               .residual = residual,
                               .w = w,
                               .N = p.R,
                               .C = config_.dim,
                               .eps = float(config_.norm_eps),
                               .dtype = dtype_,
                               .amax = amax});
}

void Block::norm_backward(BlockPass& p, void* dx, char* dw, float* dw_sum, const void* dy, const void* x, const void* w,
                          const float* rstd, const void* dresidual, uint32_t* amax) const {
    rmsnorm_backward(p.stream, {.dx = dx,
                                .dw = dw,
                                .dw_sum = dw_sum,
                                .dy = dy,
                                .x = x,
                                .w = w,
                                .rstd = rstd,
                                .dresidual = dresidual,
                                .scratch = p.scratch.norm,
                                .N = p.R,
                                .C = config_.dim,
                                .dtype = dtype_,
                                .grad_dtype = grad_dtype_,
                                .amax = amax});
}

void add_norm_gradient(Stream& s, void* dw, const float* sum, int64_t C, DType grad_dtype) {
    reduce_add(
        s,
        {.out = dw, .a = dw, .b = sum, .n = C, .out_dtype = grad_dtype, .a_dtype = grad_dtype, .b_dtype = DType::f32});
}

QkNorm Block::qk_norm(const BlockPass& p, const BlockWeights& w) const {
    return {.N = p.N,
            .T = p.shape.T,
            .heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .D = config_.head_dim,
            .row_stride = config_.qkv_rows(),
            .wq = w.qk_norm,
            .wk = at(w.qk_norm, config_.q_gains(), dtype_),
            .cos_table = p.shape.rotates ? cos_ : nullptr,
            .sin_table = p.shape.rotates ? sin_ : nullptr,
            .first_position = p.shape.first_position,
            .positions = p.shape.positions,
            .eps = float(config_.norm_eps),
            .dtype = dtype_,
            .ranks = tp_ ? tp_->size() : 1,
            .sharers = sharers_};
}

// What QkSums gives, of each rank that has some of the heads, in `all`
const float* Block::sums_of_ranks(BlockPass& p, float* all, const void* x, const void* dy, const QkNorm& norm) const {
    float* const own = tp_ ? p.scratch.qk_sums : all;
    qk_sums(p.stream, {.sums = own, .x = x, .dy = dy, .norm = norm});
    if (tp_) tp_->share(p.stream, all, own, 2 * p.N);
    return all;
}

void Block::rotate(BlockPass& p, void* qkv, const BlockActivations& a, const BlockWeights& w) const {
    if (!w.qk_norm) {
        if (p.shape.rotates) rz::rope(p.stream, rope(p, qkv, false, nullptr));
        return;
    }
    QkNorm norm = qk_norm(p, w);
    if (a.qk_sums) norm.squares = sums_of_ranks(p, a.qk_sums, qkv, nullptr, norm);
    qk_norm_forward(p.stream, {.x = qkv, .kept = a.qk, .norm = norm});
}

// dqkv = gradient of attention and of what rotates its q and k. RoPE alone is a part of attention's; norms of heads are
// not, which sum over them.
void Block::rotated_backward(BlockPass& p, void* dqkv, char* dw, float* dw_sum, const void* o,
                             const BlockActivations& a, const BlockWeights& w) const {
    const bool rope_alone = !w.qk_norm && p.shape.rotates;
    attention_.backward(p, dqkv, p.scratch.dh, a.qkv, o, a.lse,
                        rope_alone ? rope(p, dqkv, true, qkv_.magnitude_of_dy(p)) : Rope{});
    if (rope_alone) return;
    if (!w.qk_norm) return qkv_.measure_dy(p, dqkv, p.N * config_.qkv_rows());
    QkNorm norm = qk_norm(p, w);
    norm.squares = a.qk_sums;
    float* const dots = p.scratch.qk_sums + (tp_ ? 2 * p.N : 0);
    qk_norm_backward(p.stream, {.dx = dqkv,
                                .kept = a.qk,
                                .dw = dw ? at(dw, qk_norm_, grad_dtype_) : nullptr,
                                .dw_sum = dw_sum,
                                .scratch = p.scratch.norm,
                                .grad_dtype = grad_dtype_,
                                .norm = norm,
                                .dots = a.qk_sums ? sums_of_ranks(p, dots, a.qk, dqkv, norm) : nullptr,
                                .amax = qkv_.magnitude_of_dy(p)});
}

Rope Block::rope(const BlockPass& p, void* qkv, bool inverse, uint32_t* amax) const {
    return {.x = qkv,
            .cos_table = cos_,
            .sin_table = sin_,
            .N = p.N,
            .T = p.shape.T,
            .first_position = p.shape.first_position,
            .positions = p.shape.positions,
            .heads = config_.heads + config_.kv_heads,
            .D = config_.head_dim,
            .row_stride = config_.qkv_rows(),
            .inverse = inverse,
            .dtype = dtype_,
            .amax = amax};
}

// ---- what a block is made of ----------------------------------------------------------------------------------------

ModelConfig part_config(const ModelConfig& config, const ParamTable& table) {
    ModelConfig part = config;
    part.heads = table.part_of(table.block(0, kQ)).rows / config.head_dim;
    part.kv_heads = table.part_of(table.block(0, kK)).rows / config.head_dim;
    part.ffn = table.part_of(table.block(0, kGate)).rows;
    return part;
}

std::vector<ElementRange> block_matrices(const ModelConfig& c, const ParamTable& table) {
    const ModelConfig part = part_config(c, table);
    const auto range = [&](BlockTensor first, int64_t size) {
        const int64_t begin = table.within(table.block(0, first));
        return ElementRange{begin, begin + size};
    };
    return {range(kQ, part.qkv_rows() * c.dim), range(kO, c.dim * part.q_rows()), range(kGate, 2 * part.ffn * c.dim),
            range(kDown, c.dim * part.ffn)};
}

Block::Block(const ModelConfig& config, const ParamTable& table, DType dtype, DType grad_dtype, const float* cos_table,
             const float* sin_table, const int32_t* window, TensorParallel* tp, const Fp8Linear* fp8,
             ContextParallel* context)
    : config_(part_config(config, table)),
      dtype_(dtype),
      grad_dtype_(grad_dtype),
      cos_(cos_table),
      sin_(sin_table),
      tp_(tp),
      codes_(fp8 && keeps_codes(fp8->recipe())),
      norm1_(table.within(table.block(0, kNorm1))),
      norm2_(table.within(table.block(0, kNorm2))),
      qkv_bias_(table.has(kQBias) ? table.within(table.block(0, kQBias)) : -1),
      qk_norm_(table.has(kQNorm) ? table.within(table.block(0, kQNorm)) : -1),
      sharers_(table.part_of(table.block(0, kK)).parts),
      matrices_(block_matrices(config, table)),
      qkv_({.parallel = Parallel::column,
            .in = config.dim,
            .out = config_.qkv_rows(),
            .begin = matrices_[0].begin,
            .number = 0,
            .x_is_measured = !config.post_norm,
            .bias = qkv_bias_},
           dtype, grad_dtype, tp, fp8),
      out_({.parallel = Parallel::row,
            .in = config_.q_rows(),
            .out = config.dim,
            .begin = matrices_[1].begin,
            .number = 1,
            .x_is_measured = context == nullptr},
           dtype, grad_dtype, tp, fp8),
      gate_up_({.parallel = Parallel::column,
                .in = config.dim,
                .out = 2 * config_.ffn,
                .begin = matrices_[2].begin,
                .number = 2,
                .x_is_measured = !config.post_norm},
               dtype, grad_dtype, tp, fp8),
      down_({.parallel = Parallel::row, .in = config_.ffn, .out = config.dim, .begin = matrices_[3].begin, .number = 3},
            dtype, grad_dtype, tp, fp8),
      attention_(config_, dtype, window, context) {}

BlockWeights Block::weights(const void* whole) const {
    const auto matrix = [&](size_t m) { return Operand(at(whole, matrices_[m].begin, dtype_)); };
    return {.norm1 = at(whole, norm1_, dtype_),
            .norm2 = at(whole, norm2_, dtype_),
            .qkv = matrix(0),
            .out = matrix(1),
            .gate_up = matrix(2),
            .down = matrix(3),
            .qkv_bias = qkv_bias_ < 0 ? nullptr : at(whole, qkv_bias_, dtype_),
            .qk_norm = qk_norm_ < 0 ? nullptr : at(whole, qk_norm_, dtype_),
            .address = whole};
}

BlockWeights Block::weights(const Fp8Parameters& fp8) const {
    const auto matrices_before = [&](int64_t element) {
        int64_t sum = 0;
        for (const ElementRange& m : matrices_) sum += m.begin < element ? m.size() : 0;
        return sum;
    };
    const auto matrix = [&](size_t m) {
        return Operand::coded(fp8.codes + matrices_before(matrices_[m].begin), fp8.scales + m);
    };
    const auto vector = [&](int64_t element) { return at(fp8.rest, element - matrices_before(element), dtype_); };
    return {.norm1 = vector(norm1_),
            .norm2 = vector(norm2_),
            .qkv = matrix(0),
            .out = matrix(1),
            .gate_up = matrix(2),
            .down = matrix(3),
            .qkv_bias = qkv_bias_ < 0 ? nullptr : vector(qkv_bias_),
            .qk_norm = qk_norm_ < 0 ? nullptr : vector(qk_norm_),
            .address = fp8.codes};
}

Fp8Scale* Block::scale_of_dout(Fp8Scale* scales) const {
    return codes_ && !config_.post_norm ? down_.scale_of_dy(scales) : nullptr;
}

BlockPass Block::pass(Stream& s, const BlockShape& shape, const BlockScratch& scratch, Fp8Scale* scales) const {
    const int64_t N = shape.rows();
    return {.stream = s,
            .shape = shape,
            .scratch = scratch,
            .scales = codes_ ? scales : nullptr,
            .N = N,
            .R = tp_ ? tp_->rows(N) : N};
}

}  // namespace rz
