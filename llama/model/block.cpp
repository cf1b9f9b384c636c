#include "llama/model/block.h"

#include <cmath>
#include <utility>

#include "kernels/attention/attention_largest.h"
#include "kernels/elementwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/runtime/is_cpu.h"
#include "kernels/statistics.h"
#include "kernels/swiglu.h"
#include "llama/model/linear.h"
#include "llama/parallel/context.h"

namespace rz {

void add_norm_gradient(Stream& s, void* dw, const float* sum, int64_t C, DType grad_dtype) {
    reduce_add(
        s,
        {.out = dw, .a = dw, .b = sum, .n = C, .out_dtype = grad_dtype, .a_dtype = grad_dtype, .b_dtype = DType::f32});
}

ModelConfig part_config(const ModelConfig& config, const ParamTable& table) {
    ModelConfig part = config;
    part.heads = table.part_of(table.block(0, kQ)).rows / config.head_dim;
    part.kv_heads = table.part_of(table.block(0, kK)).rows / config.head_dim;
    part.ffn = table.part_of(table.block(0, kGate)).rows;
    return part;
}

BlockOffsets::BlockOffsets(const ParamTable& table) {
    auto at = [&](BlockTensor t) { return table.within(table.block(0, t)); };
    norm1 = at(kInputNorm);
    qkv = at(kQ);
    out = at(kO);
    norm2 = at(kPostNorm);
    gate_up = at(kGate);
    down = at(kDown);
}

Block::Block(const ModelConfig& config, const ParamTable& table, DType dtype, DType grad_dtype, const float* cos_table,
             const float* sin_table, TensorParallel* tp, const Fp8Linear* fp8, ContextParallel* context)
    : config_(part_config(config, table)),
      at_(table),
      matrices_(block_matrices(config, table)),
      dtype_(dtype),
      grad_dtype_(grad_dtype),
      cos_(cos_table),
      sin_(sin_table),
      tp_(tp),
      fp8_(fp8),
      context_(context) {}

std::vector<ElementRange> block_matrices(const ModelConfig& c, const ParamTable& table) {
    const ModelConfig part = part_config(c, table);
    const BlockOffsets at(table);
    const auto range = [](int64_t begin, int64_t size) { return ElementRange{begin, begin + size}; };
    return {range(at.qkv, part.qkv_rows() * c.dim), range(at.out, c.dim * part.q_rows()),
            range(at.gate_up, 2 * part.ffn * c.dim), range(at.down, c.dim * part.ffn)};
}

Operand Block::matrix(const BlockWeights& w, Matrix which) const {
    const int64_t begin = matrices_[size_t(which)].begin;
    if (w.whole) return Operand(w.whole + begin * size_of(dtype_));
    int64_t codes = 0;
    for (int m = 0; m < int(which); ++m) codes += matrices_[size_t(m)].size();
    return Operand::coded(w.fp8.codes + codes, w.fp8.scales + int(which));
}

const void* Block::norm_weight(const BlockWeights& w, int which) const {
    const int64_t at = which == 0 ? at_.norm1 : at_.norm2;
    if (w.whole) return w.whole + at * size_of(dtype_);
    int64_t matrices = 0;  // elements before it
    for (const ElementRange& m : matrices_) matrices += m.begin < at ? m.size() : 0;
    return w.fp8.rest + (at - matrices) * size_of(dtype_);
}

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
            .dtype = dtype_,
            .first_key = shape.first_key,
            .first_key_batch = shape.first_key ? shape.T : 0};
}

static char* at(void* base, int64_t elements, DType t) { return static_cast<char*>(base) + elements * size_of(t); }

// ---- what products in fp8 read --------------------------------------------------------------------------------------

static Fp8Scale* slot_of(Fp8Scale* slots, ScaleOf which) { return slots ? slots + which : nullptr; }

// Where the op that writes the tensor leaves its magnitude.
uint32_t* Block::fresh(Stream& s, Fp8Scale* slots, ScaleOf which) const {
    if (!slots) return nullptr;
    s.zero(slots + which, sizeof *slots);
    return &slots[which].amax;
}

// For a tensor that comes from elsewhere, or in parts.
void Block::measure(Stream& s, Fp8Scale* slots, ScaleOf which, const void* x, int64_t n) const {
    if (!slots) return;
    fresh(s, slots, which);
    abs_max(s, {.scale = slots + which, .x = x, .n = n, .dtype = dtype_});
}

bool keeps_codes(Fp8Recipe recipe, const TensorParallel* tp) {
    return recipe == Fp8Recipe::tensor && !(tp && tp->overlaps());
}

// A norm is written here, and where it is kept as codes they are made of it.
void* Block::norm_place(void* kept, const Fp8Scale* slots, const BlockScratch& scratch) const {
    return slots ? scratch.dnorm : kept;
}
void Block::keep_norm(Stream& s, void* kept, Fp8Scale* slots, ScaleOf which, const BlockScratch& scratch,
                      int64_t rows) const {
    if (slots && tp_) tp_->share_magnitude(s, slots + which, scratch.parts);
    if (slots)
        quantise(s, {.y = static_cast<uint8_t*>(kept),
                     .scale = slots + which,
                     .x = scratch.dnorm,
                     .rows = rows,
                     .columns = config_.dim,
                     .type = Fp8::e4m3,
                     .dtype = dtype_});
}
static Operand kept_norm(const void* x, Fp8Scale* slots, ScaleOf which) {
    return slots ? Operand::coded(static_cast<const uint8_t*>(x), slots + which) : Operand(x);
}

// ---- rows of all ranks, and of this one -----------------------------------------------------------------------------

// All rows; in scratch.whole until the next use of it. `product` reads them: (x, first row, rows).
template <class Body>
const void* Block::gathered(Stream& s, int64_t N, const void* own, const BlockScratch& scratch,
                            const Body& product) const {
    if (!tp_) return product(own, 0, N), own;
    tp_->gather(s, scratch.whole, own, N, config_.dim, dtype_, [&](int64_t first, int64_t rows) {
        product(at(scratch.whole, first * config_.dim, dtype_), first, rows);
    });
    return scratch.whole;
}
const void* Block::gathered(Stream& s, int64_t N, const void* own, const BlockScratch& scratch) const {
    if (!tp_) return own;
    tp_->gather(s, scratch.whole, own, N, config_.dim, dtype_);
    return scratch.whole;
}

// Codes travel in pairs: no collective knows a type of one byte.
const void* Block::gathered_norm(Stream& s, int64_t N, const void* own, const Fp8Scale* slots,
                                 const BlockScratch& scratch, const Event& begun) const {
    if (!slots || !tp_) return gathered(s, N, own, scratch, begun);
    tp_->gather(s, scratch.whole, own, N, config_.dim / 2, DType::bf16);
    return scratch.whole;
}
template <class Body>
void Block::gathered_norm(Stream& s, int64_t N, const void* own, const Fp8Scale* slots, const BlockScratch& scratch,
                          const Body& product) const {
    if (slots && tp_)
        product(gathered_norm(s, N, own, slots, scratch, Event()), 0, N);
    else
        gathered(s, N, own, scratch, product);
}

// scratch.branch = this rank's rows of x W^T, of which each rank has some of the inputs.
void Block::row_parallel(Stream& s, int64_t N, const void* x, const Operand& w, int64_t in, const BlockScratch& scratch,
                         Fp8Scale* scale) const {
    if (!tp_) return linear(s, scratch.branch, {x, scale}, w, N, in, config_.dim, dtype_, fp8_);
    tp_->scatter(s, scratch.branch, scratch.whole, N, config_.dim, dtype_, [&](int64_t first, int64_t rows) {
        linear(s, at(scratch.whole, first * config_.dim, tp_->wire()), {at(x, first * in, dtype_), scale}, w, rows, in,
               config_.dim, dtype_, tp_->wire(), fp8_);
    });
}

// scratch.dnorm = this rank's rows of dy W, of which each rank has some of the outputs. With `done` it is there, and
// scratch.dh free, after the event, where there is one.
void Block::column_parallel_gradient(Stream& s, int64_t N, const void* dy, const Operand& w, int64_t out,
                                     const BlockScratch& scratch, Event* done, Fp8Scale* scale) const {
    if (!tp_) return linear_backward_input(s, scratch.dh, {dy, scale}, w, N, config_.dim, out, dtype_, fp8_);
    const auto product = [&](int64_t first, int64_t rows) {
        linear_backward_input(s, at(scratch.dh, first * config_.dim, tp_->wire()), {at(dy, first * out, dtype_), scale},
                              w, rows, config_.dim, out, dtype_, tp_->wire(), fp8_);
    };
    tp_->scatter(s, scratch.dnorm, scratch.dh, N, config_.dim, dtype_, product, tp_->overlaps() ? done : nullptr);
}

// All rows in `all`, scratch.ahead or scratch.whole, for who waits for the event; none without overlap.
Event Block::start_gather(Stream& s, int64_t N, const void* own, const BlockScratch& scratch, void* all) const {
    return scratch.ahead ? tp_->start_gather(s, all, own, N, config_.dim, dtype_) : Event();
}
const void* Block::gathered(Stream& s, int64_t N, const void* own, const BlockScratch& scratch,
                            const Event& begun) const {
    if (!begun.valid()) return gathered(s, N, own, scratch);
    tp_->wait(s, begun);
    return scratch.ahead;
}
// Likewise in scratch.whole.
const void* Block::arrived(Stream& s, int64_t N, const void* own, const BlockScratch& scratch,
                           const Event& begun) const {
    if (!begun.valid()) return gathered(s, N, own, scratch);
    tp_->wait(s, begun);
    return scratch.whole;
}
void Block::wait_for(Stream& s, const Event& event) const {
    if (event.valid()) tp_->wait(s, event);
}

// ---- passes ---------------------------------------------------------------------------------------------------------

void Block::gate_up(Stream& s, int64_t N, const BlockWeights& w, const BlockActivations& a,
                    const BlockScratch& scratch) const {
    const int64_t out = 2 * config_.ffn;
    Fp8Scale* slots = this->slots(a.scales);
    gathered_norm(s, N, a.h2, slots, scratch, [&](const void* x, int64_t first, int64_t rows) {
        linear(s, at(a.gate_up, first * out, dtype_), kept_norm(x, slots, kOfH2), matrix(w, kGateUp), rows, config_.dim,
               out, dtype_, fp8_);
    });
}

// With logits that are multiplied by `sharpness`; the output's magnitude goes into amax and the largest logits of rows
// into `largest`, where those are not nullptr.
void Block::attend(Stream& s, const BlockShape& shape, const BlockActivations& a, float sharpness, uint32_t* amax,
                   float* largest) const {
    if (context_) return context_->forward(s, a.o, a.lse, a.qkv, shape.first_key, sharpness);
    const ModelConfig& c = config_;
    const int64_t heads_dim = c.heads * c.head_dim, kv_dim = c.kv_heads * c.head_dim, row = heads_dim + 2 * kv_dim;
    const char* keys = at(a.qkv, heads_dim - shape.first_position * row, dtype_);
    AttentionForward attention{.o = a.o,
                               .lse = a.lse,
                               .q = a.qkv,
                               .k = keys,
                               .v = keys + kv_dim * size_of(dtype_),
                               .shape = attention_shape(shape),
                               .amax = amax};
    attention.shape.scale *= sharpness;
    largest ? attention_largest(s, {attention, largest}) : rz::attention_forward(s, attention);
}

// `lse`: of attention whose logits were multiplied by a large sharpness, or the largest logits of rows with 1.
void Block::watch_block(Stream& s, const BlockActivations& a, const BlockWatch& watch, int64_t N, const float* lse,
                        float sharpness) const {
    block_statistics(s, {.squares = watch.squares,
                         .largest = watch.largest,
                         .rstd = a.rstd1,
                         .lse = lse,
                         .rows = own_rows(N),
                         .count = N * config_.heads,
                         .eps = float(config_.norm_eps),
                         .sharpness = sharpness});
}

void Block::forward(Stream& s, const BlockShape& shape, const BlockWeights& w, const BlockActivations& a,
                    const BlockScratch& scratch, const void* previous_mid, const BlockWatch* watch) const {
    const ModelConfig& c = config_;
    const int64_t N = shape.rows(), R = own_rows(N), heads_dim = c.heads * c.head_dim;
    const int64_t qkv_dim = heads_dim + 2 * c.kv_heads * c.head_dim;
    Fp8Scale* slots = this->slots(a.scales);

    rmsnorm_forward(s, {.y = norm_place(a.h1, slots, scratch),
                        .rstd = a.rstd1,
                        .sum = previous_mid ? a.resid : nullptr,
                        .x = previous_mid ? scratch.branch : a.resid,
                        .residual = previous_mid,
                        .w = norm_weight(w, 0),
                        .N = R,
                        .C = c.dim,
                        .eps = float(c.norm_eps),
                        .dtype = dtype_,
                        .amax = fresh(s, slots, kOfH1)});
    keep_norm(s, a.h1, slots, kOfH1, scratch, R);
    gathered_norm(s, N, a.h1, slots, scratch, [&](const void* x, int64_t first, int64_t rows) {
        linear(s, at(a.qkv, first * qkv_dim, dtype_), kept_norm(x, slots, kOfH1), matrix(w, kQkv), rows, c.dim, qkv_dim,
               dtype_, fp8_);
    });
    rope(s, {.x = a.qkv,
             .cos_table = cos_,
             .sin_table = sin_,
             .N = N,
             .T = shape.T,
             .first_position = shape.first_position,
             .positions = shape.positions,
             .heads = c.heads + c.kv_heads,
             .D = c.head_dim,
             .row_stride = qkv_dim,
             .dtype = dtype_});
    // The CPU's attention tells the largest logit of each row as it goes; they lie where the MLP works later.
    const bool tells = is_cpu(s.device()) && !context_ && c.ffn * size_of(dtype_) >= c.heads * 4;
    float* const largest = watch && tells ? static_cast<float*>(scratch.act) : nullptr;
    if (watch && !tells) {
        // The softmax of logits times 2^16 is the largest logit alone, and its log-sum-exp tells how large that is.
        constexpr float kSharpness = 65536;
        attend(s, shape, a, kSharpness, nullptr);
        watch_block(s, a, *watch, N, a.lse, kSharpness);
    }
    attend(s, shape, a, 1, context_ ? nullptr : fresh(s, slots, kOfO), largest);
    if (largest) watch_block(s, a, *watch, N, largest, 1);
    if (context_) measure(s, slots, kOfO, a.o, N * heads_dim);
    row_parallel(s, N, a.o, matrix(w, kOut), heads_dim, scratch, slot_of(slots, kOfO));
    rmsnorm_forward(s, {.y = norm_place(a.h2, slots, scratch),
                        .rstd = a.rstd2,
                        .sum = a.mid,
                        .x = scratch.branch,
                        .residual = a.resid,
                        .w = norm_weight(w, 1),
                        .N = R,
                        .C = c.dim,
                        .eps = float(c.norm_eps),
                        .dtype = dtype_,
                        .amax = fresh(s, slots, kOfH2)});
    keep_norm(s, a.h2, slots, kOfH2, scratch, R);
    gate_up(s, N, w, a, scratch);
    swiglu_forward(
        s,
        {.h = scratch.act, .gate_up = a.gate_up, .N = N, .F = c.ffn, .dtype = dtype_, .amax = fresh(s, slots, kOfAct)});
    row_parallel(s, N, scratch.act, matrix(w, kDown), c.ffn, scratch, slot_of(slots, kOfAct));
}

// Both halves at once: what is pending lies where the pass works anyway, and the gradient of the residual stream is one
// buffer throughout.
void Block::backward(Stream& s, const BlockShape& shape, const BlockWeights& w, char* dw, const BlockActivations& a,
                     const BlockScratch& scratch, void* dresid, bool gate_up_again) const {
    const int64_t N = shape.rows(), ge = size_of(grad_dtype_);
    if (gate_up_again) gate_up(s, N, w, a, scratch);
    const PendingBlock p{.h1 = a.h1,
                         .h2 = a.h2,
                         .o = a.o,
                         .gate_up = a.gate_up,
                         .act = scratch.act,
                         .dqkv = scratch.dqkv,
                         .dout = dresid,
                         .dmid = dresid,
                         .scales = a.scales};
    RmsnormBackward norm{.dx = dresid,
                         .dw = dw + at_.norm2 * ge,
                         .dy = scratch.dnorm,
                         .x = a.mid,
                         .w = norm_weight(w, 1),
                         .rstd = a.rstd2,
                         .dresidual = dresid,
                         .scratch = scratch.norm,
                         .N = own_rows(N),
                         .C = config_.dim,
                         .dtype = dtype_,
                         .grad_dtype = grad_dtype_};
    Beside mlp, attention;
    const void* dout = mlp_inputs(s, N, w, p, scratch, &mlp);
    mlp_weights(s, N, dw, p, dout, scratch, mlp.rows);
    wait_for(s, mlp.dnorm);
    norm.amax = tp_ ? nullptr : fresh(s, slots(p.scales), kOfMidGradient);
    rmsnorm_backward(s, norm);
    norm.amax = nullptr;
    const void* dmid = attention_inputs(s, shape, w, a, p, scratch, &attention);
    attention_weights(s, N, dw, p, dmid, scratch, attention.rows);
    wait_for(s, attention.dnorm);
    norm.dw = dw + at_.norm1 * ge;
    norm.x = a.resid;
    norm.w = norm_weight(w, 0);
    norm.rstd = a.rstd1;
    rmsnorm_backward(s, norm);
}

void exchange(BlockActivations& a, PendingBlock& p) {
    std::swap(a.h1, p.h1);
    std::swap(a.h2, p.h2);
    std::swap(a.o, p.o);
    std::swap(a.gate_up, p.gate_up);
    std::swap(a.scales, p.scales);
}

void Block::input_grad(Stream& s, const BlockShape& shape, const BlockWeights& w, const BlockActivations& a,
                       const PendingBlock& p, const BlockScratch& scratch, void* dresid) const {
    const int64_t N = shape.rows();
    RmsnormBackward norm{.dx = p.dmid,
                         .dw_sum = p.dw_norm2,
                         .dy = scratch.dnorm,
                         .x = a.mid,
                         .w = norm_weight(w, 1),
                         .rstd = a.rstd2,
                         .dresidual = p.dout,
                         .scratch = scratch.norm,
                         .N = own_rows(N),
                         .C = config_.dim,
                         .dtype = dtype_,
                         .grad_dtype = grad_dtype_};
    mlp_inputs(s, N, w, p, scratch, nullptr);
    norm.amax = tp_ ? nullptr : fresh(s, slots(p.scales), kOfMidGradient);
    rmsnorm_backward(s, norm);
    norm.amax = nullptr;
    attention_inputs(s, shape, w, a, p, scratch, nullptr);
    norm.dx = dresid;
    norm.dw_sum = p.dw_norm1;
    norm.x = a.resid;
    norm.w = norm_weight(w, 0);
    norm.rstd = a.rstd1;
    norm.dresidual = p.dmid;
    rmsnorm_backward(s, norm);
}

// Of the rows that the four products read, those of one come into scratch.whole or scratch.ahead while the product
// before reads the other.
void Block::weight_grad(Stream& s, const BlockShape& shape, char* dw, const PendingBlock& p,
                        const BlockScratch& scratch, Chain* chain) const {
    const int64_t N = shape.rows();
    const void* dout = arrived(s, N, p.dout, scratch, chain ? chain->dout : Event());
    Event dmid_begun, next;
    mlp_weights(s, N, dw, p, dout, scratch, start_gather(s, N, p.h2, scratch, scratch.ahead),
                [&] { dmid_begun = start_gather(s, N, p.dmid, scratch, scratch.whole); });
    const Event h1_begun = start_gather(s, N, p.h1, scratch, scratch.ahead);
    const void* dmid = arrived(s, N, p.dmid, scratch, dmid_begun);
    attention_weights(s, N, dw, p, dmid, scratch, h1_begun, [&] {
        if (chain && chain->next_dout) next = start_gather(s, N, chain->next_dout, scratch, scratch.whole);
    });
    if (chain) chain->dout = next;
    add_norm_gradient(s, dw + at_.norm2 * size_of(grad_dtype_), p.dw_norm2, config_.dim, grad_dtype_);
    add_norm_gradient(s, dw + at_.norm1 * size_of(grad_dtype_), p.dw_norm1, config_.dim, grad_dtype_);
}

// Leaves the gradient of h2 in scratch.dnorm, that of gate and up in p.gate_up, and swiglu's output in p.act. Returns
// p.dout with all rows.
const void* Block::mlp_inputs(Stream& s, int64_t N, const BlockWeights& w, const PendingBlock& p,
                              const BlockScratch& scratch, Beside* beside) const {
    const ModelConfig& c = config_;
    Fp8Scale* slots = this->slots(p.scales);
    const void* dout = gathered(s, N, p.dout, scratch, [&](const void* dy, int64_t first, int64_t rows) {
        measure(s, slots, kOfOutputGradient, dy, rows * c.dim);
        linear_backward_input(s, at(p.act, first * c.ffn, dtype_), {dy, slot_of(slots, kOfOutputGradient)},
                              matrix(w, kDown), rows, c.ffn, c.dim, dtype_, fp8_);
    });
    swiglu_backward(s, {.dgate_up = p.gate_up,
                        .dh = p.act,
                        .gate_up = p.gate_up,
                        .h = p.act,  // the activation again, over its gradient
                        .N = N,
                        .F = c.ffn,
                        .dtype = dtype_,
                        .amax = fresh(s, slots, kOfGateUpGradient),
                        .h_amax = fresh(s, slots, kOfAct)});
    if (beside) beside->rows = start_gather(s, N, p.h2, scratch, scratch.ahead);
    column_parallel_gradient(s, N, p.gate_up, matrix(w, kGateUp), 2 * c.ffn, scratch, beside ? &beside->dnorm : nullptr,
                             slot_of(slots, kOfGateUpGradient));
    return dout;
}

void Block::mlp_weights(Stream& s, int64_t N, char* dw, const PendingBlock& p, const void* dout,
                        const BlockScratch& scratch, const Event& h2_begun,
                        const std::function<void()>& rows_free) const {
    const ModelConfig& c = config_;
    const int64_t ge = size_of(grad_dtype_);
    Fp8Scale* slots = this->slots(p.scales);
    linear_backward_weight(s, dw + at_.down * ge, {dout, slot_of(slots, kOfOutputGradient)},
                           {p.act, slot_of(slots, kOfAct)}, N, c.ffn, c.dim, dtype_, grad_dtype_, fp8_);
    if (rows_free) rows_free();
    const void* h2 = gathered_norm(s, N, p.h2, slots, scratch, h2_begun);
    linear_backward_weight(s, dw + at_.gate_up * ge, {p.gate_up, slot_of(slots, kOfGateUpGradient)},
                           kept_norm(h2, slots, kOfH2), N, c.dim, 2 * c.ffn, dtype_, grad_dtype_, fp8_);
}

// Leaves the gradient of h1 in scratch.dnorm and that of qkv in p.dqkv. Returns p.dmid with all rows.
const void* Block::attention_inputs(Stream& s, const BlockShape& shape, const BlockWeights& w,
                                    const BlockActivations& a, const PendingBlock& p, const BlockScratch& scratch,
                                    Beside* beside) const {
    const ModelConfig& c = config_;
    const int64_t N = shape.rows(), heads_dim = c.heads * c.head_dim, kv_dim = c.kv_heads * c.head_dim;
    const int64_t qkv_dim = heads_dim + 2 * kv_dim;
    Fp8Scale* slots = this->slots(p.scales);
    const void* dmid = gathered(s, N, p.dmid, scratch, [&](const void* dy, int64_t first, int64_t rows) {
        if (tp_) measure(s, slots, kOfMidGradient, dy, rows * c.dim);  // its own rows are the norm's
        linear_backward_input(s, at(scratch.dh, first * heads_dim, dtype_), {dy, slot_of(slots, kOfMidGradient)},
                              matrix(w, kOut), rows, heads_dim, c.dim, dtype_, fp8_);
    });
    if (context_)
        context_->backward(s, p.dqkv, scratch.dh, a.qkv, p.o, a.lse, scratch.attention, shape.first_key);
    else
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
             .positions = shape.positions,
             .heads = c.heads + c.kv_heads,
             .D = c.head_dim,
             .row_stride = qkv_dim,
             .inverse = true,
             .dtype = dtype_});
    measure(s, slots, kOfQkvGradient, p.dqkv, N * qkv_dim);  // RoPE's part and that of the values
    if (beside) beside->rows = start_gather(s, N, p.h1, scratch, scratch.ahead);
    column_parallel_gradient(s, N, p.dqkv, matrix(w, kQkv), qkv_dim, scratch, beside ? &beside->dnorm : nullptr,
                             slot_of(slots, kOfQkvGradient));
    return dmid;
}

void Block::attention_weights(Stream& s, int64_t N, char* dw, const PendingBlock& p, const void* dmid,
                              const BlockScratch& scratch, const Event& h1_begun,
                              const std::function<void()>& rows_free) const {
    const ModelConfig& c = config_;
    const int64_t ge = size_of(grad_dtype_), heads_dim = c.heads * c.head_dim;
    Fp8Scale* slots = this->slots(p.scales);
    linear_backward_weight(s, dw + at_.out * ge, {dmid, slot_of(slots, kOfMidGradient)}, {p.o, slot_of(slots, kOfO)}, N,
                           heads_dim, c.dim, dtype_, grad_dtype_, fp8_);
    if (rows_free) rows_free();
    const void* h1 = gathered_norm(s, N, p.h1, slots, scratch, h1_begun);
    linear_backward_weight(s, dw + at_.qkv * ge, {p.dqkv, slot_of(slots, kOfQkvGradient)}, kept_norm(h1, slots, kOfH1),
                           N, c.dim, c.qkv_rows(), dtype_, grad_dtype_, fp8_);
}

}  // namespace rz
