#include "llama/model/attention.h"

#include <cmath>

#include "kernels/attention/attention_largest.h"
#include "kernels/runtime/is_cpu.h"
#include "kernels/statistics.h"
#include "llama/parallel/context.h"

namespace rz {

// First keys of the new rows. A batch's own know the window; where it reaches back over all there is nothing to hide.
const int32_t* Attention::first_key(const BlockShape& s) const {
    const bool hides = context_ || s.first_position + s.T > config_.window;
    return s.first_key ? s.first_key : window_ && hides ? window_ + s.first_position : nullptr;
}

AttentionShape Attention::shape(const BlockShape& s) const {
    const int64_t row = config_.qkv_rows(), o_row = config_.q_rows(), Tk = s.first_position + s.T;
    return {.B = s.B,
            .Tq = s.T,
            .Tk = Tk,
            .H = config_.heads,
            .K = config_.kv_heads,
            .D = config_.head_dim,
            .q_row = row,
            .q_batch = s.T * row,
            .kv_row = row,
            .kv_batch = Tk * row,
            .o_row = o_row,
            .o_batch = s.T * o_row,
            .scale = 1.0f / std::sqrt(float(config_.head_dim)),
            .dtype = dtype_,
            .first_key = first_key(s),
            .first_key_batch = s.first_key ? s.T : 0};
}

// Logits are multiplied by `sharpness`; the largest of each row go into `largest`, where that is not nullptr.
void Attention::run(BlockPass& p, void* o, float* lse, const void* qkv, uint32_t* amax, float sharpness,
                    float* largest) const {
    if (context_) return context_->forward(p.stream, o, lse, qkv, first_key(p.shape), sharpness);
    const int64_t cached = p.shape.first_position * config_.qkv_rows();
    AttentionForward attention{.o = o,
                               .lse = lse,
                               .q = qkv,
                               .k = at(qkv, config_.q_rows() - cached, dtype_),
                               .v = at(qkv, config_.q_rows() + config_.kv_rows() - cached, dtype_),
                               .shape = shape(p.shape),
                               .amax = amax};
    attention.shape.scale *= sharpness;
    largest ? attention_largest(p.stream, {attention, largest}) : attention_forward(p.stream, attention);
}

void Attention::forward(BlockPass& p, void* o, float* lse, const void* qkv, uint32_t* amax) const {
    run(p, o, lse, qkv, amax, 1, nullptr);
}

// The CPU's attention tells the largest logit of each row as it goes; they lie where the MLP works later. Elsewhere
// there is a run before: the softmax of logits times 2^16 is the largest logit alone, and its log-sum-exp tells how
// large that is.
void Attention::forward(BlockPass& p, void* o, float* lse, const void* qkv, uint32_t* amax, const float* rstd,
                        const BlockStats& watch) const {
    if (is_cpu(p.stream.device()) && !context_ && config_.ffn * size_of(dtype_) >= config_.heads * 4) {
        float* largest = static_cast<float*>(p.scratch.act);
        run(p, o, lse, qkv, amax, 1, largest);
        return add_statistics(p, rstd, watch, largest, 1);
    }
    constexpr float kSharpness = 65536;
    run(p, o, lse, qkv, nullptr, kSharpness, nullptr);
    add_statistics(p, rstd, watch, lse, kSharpness);
    forward(p, o, lse, qkv, amax);
}

// `lse`: of attention whose logits were multiplied by a large sharpness, or the largest logits of rows with 1.
void Attention::add_statistics(BlockPass& p, const float* rstd, const BlockStats& watch, const float* lse,
                               float sharpness) const {
    block_statistics(p.stream, {.squares = watch.squares,
                                .largest = watch.largest,
                                .rstd = rstd,
                                .lse = lse,
                                .rows = p.R,
                                .count = p.N * config_.heads,
                                .eps = float(config_.norm_eps),
                                .sharpness = sharpness});
}

void Attention::backward(BlockPass& p, void* dqkv, const void* d_o, const void* qkv, const void* o, const float* lse,
                         const Rope& back) const {
    if (context_) {  // dk is a sum over ranks
        context_->backward(p.stream, dqkv, d_o, qkv, o, lse, p.scratch.attention, first_key(p.shape));
        if (back.x) rope(p.stream, back);
        return;
    }
    const int64_t k = config_.q_rows(), v = k + config_.kv_rows();
    attention_backward(p.stream, {.dq = dqkv,
                                  .dk = at(dqkv, k, dtype_),
                                  .dv = at(dqkv, v, dtype_),
                                  .d_o = d_o,
                                  .q = qkv,
                                  .k = at(qkv, k, dtype_),
                                  .v = at(qkv, v, dtype_),
                                  .o = o,
                                  .lse = lse,
                                  .workspace = p.scratch.attention,
                                  .shape = shape(p.shape),
                                  .kept = p.scratch.kept,
                                  .kept_bytes = p.scratch.kept_bytes,
                                  .back = back});
}

}  // namespace rz
