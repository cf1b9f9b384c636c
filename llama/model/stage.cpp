#include "llama/model/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/argmax.h"
#include "kernels/attention/attention_kept.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/runtime/context.h"
#include "kernels/vocab_cross_entropy.h"
#include "llama/model/linear.h"
#include "llama/parallel/context.h"

namespace rz {

void make_rope_tables(const ModelConfig& c, int64_t positions, Device device, Stream& stream, Buffer& cos_table,
                      Buffer& sin_table) {
    const int64_t n = checked_mul(positions, c.head_dim / 2, "rope table");
    cos_table = Buffer(device, n * 4, MemKind::workspace, "rope cos");
    sin_table = Buffer(device, n * 4, MemKind::workspace, "rope sin");
    if (!stream.computes()) return;
    std::vector<float> cos_host(n), sin_host(n);
    rope_tables(cos_host.data(), sin_host.data(), positions, c.head_dim, c.rope_theta, c.rope_scaling);
    stream.copy(cos_table.data(), cos_host.data(), n * 4);
    stream.copy(sin_table.data(), sin_host.data(), n * 4);
    stream.synchronize();  // the host vectors end here
}

Buffer make_window(const ModelConfig& c, int64_t positions, Device device, Stream& stream,
                   const ContextParallel* context) {
    if (c.window == 0 || c.window >= positions) return {};
    const int64_t B = context ? context->B() : 1, T = context ? context->own_rows() : positions;
    Buffer window(device, checked_mul(checked_mul(B, T, "window"), 4, "window"), MemKind::workspace, "window");
    if (!stream.computes()) return window;
    std::vector<int32_t> host;
    for (int64_t row = 0; row < B * T; ++row) {
        const int64_t position = context ? context->position(row % T) : row;
        host.push_back(int32_t(std::max<int64_t>(0, position - c.window + 1)));
    }
    stream.copy(window.data(), host.data(), window.bytes());
    stream.synchronize();
    return window;
}

// ---- workspace ------------------------------------------------------------------------------------------------------

static Block make_block(const ModelConfig& c, const ParamTable& table, const StageOptions& o, Device device, Stream& s,
                        Buffer& cos_table, Buffer& sin_table, Buffer& window) {
    const int64_t positions = o.context ? o.context->T() : o.T;
    make_rope_tables(c, positions, device, s, cos_table, sin_table);
    window = make_window(c, positions, device, s, o.context);
    return Block(c, table, o.dtype, o.block_grad_dtype.value_or(o.grad_dtype), cos_table.as<float>(),
                 sin_table.as<float>(), window.as<int32_t>(), o.tp, nullptr, o.context);
}

static int64_t rows_of(const StageOptions& o, const ModelConfig& c) {
    require(o.B > 0 && o.T > 0, "micro-batch %ld x %ld: both must be positive", o.B, o.T);
    const bool dynamic = c.rope_scaling.kind == RopeKind::dynamic;  // RoPE then stretches
    require(dynamic || o.T <= c.max_seq_len, "T = %ld is longer than the model's max_seq_len %ld", o.T, c.max_seq_len);
    return checked_mul(o.B, o.T, "micro-batch");
}

// Rows of the residual stream on this rank.
static int64_t own_rows_of(const StageOptions& o, const ModelConfig& c) {
    return o.tp ? o.tp->most_rows(rows_of(o, c)) : rows_of(o, c);
}

Workspace::Workspace(const ModelConfig& c, const ParamTable& table, const StageOptions& o, bool with_head,
                     Device device, Stream& compute, bool whole_backward)
    : stream_(compute),
      block_(make_block(c, table, o, device, compute, cos_, sin_, window_)),
      blocks_(c.layers),
      fp8_options_(o.fp8) {
    const ModelConfig part = part_config(c, table);
    const int64_t parts = o.tp ? o.tp->size() : 1;
    check_fp8(o.fp8, part, o.dtype, rows_of(o, c), device, parts, o.tp && o.tp->overlaps() ? parts : 1);
    if (o.fp8.on()) {
        fp8_.emplace(device, o.fp8.recipe, fp8_room(o.fp8, part, rows_of(o, c), whole_backward));
        fp8_block_.emplace(c, table, o.dtype, o.block_grad_dtype.value_or(o.grad_dtype), cos_.as<float>(),
                           sin_.as<float>(), window_.as<int32_t>(), o.tp, &*fp8_, o.context);
        if (keeps_codes(o.fp8.recipe) || o.fp8.keep_weights) fp8_weights_.emplace(c, table, o.fp8, o.dtype, device);
    }
    const int64_t N = rows_of(o, c), R = own_rows_of(o, c), e = size_of(o.dtype), heads_dim = part.q_rows();
    const int64_t partial = o.tp ? size_of(o.tp->wire()) : e;
    auto take = [&](int64_t rows, int64_t columns, int64_t element, MemKind kind, const char* name) {
        const int64_t bytes = checked_mul(checked_mul(rows, columns, name), element, name);
        return buffers_.emplace_back(device, bytes, kind, name).data();
    };
    scratch_.branch = take(R, c.dim, e, MemKind::workspace, "branch output");
    scratch_.act = take(N, part.ffn, e, MemKind::workspace, "swiglu output");
    scratch_.dqkv = take(N, part.qkv_rows(), e, MemKind::workspace, "qkv gradient");
    scratch_.dh = take(N, std::max(c.dim * partial, heads_dim * e), 1, MemKind::workspace, "norm gradient");
    scratch_.dnorm = o.tp ? take(R, c.dim, e, MemKind::workspace, "own rows of the norm gradient") : scratch_.dh;
    if (o.tp) scratch_.whole = take(N, c.dim, std::max(e, partial), MemKind::workspace, "rows of all tp ranks");
    if (o.tp && keeps_codes(o.fp8.recipe))
        scratch_.parts = static_cast<Fp8Scale*>(
            take(o.tp->size(), 1, sizeof(Fp8Scale), MemKind::workspace, "magnitudes of the tp ranks"));
    if (o.tp && o.tp->overlaps()) scratch_.ahead = take(N, c.dim, e, MemKind::workspace, "rows of all tp ranks, ahead");
    const BlockShape largest{.B = o.B, .T = o.T};
    const AttentionShape attention = block_.attention().shape(largest);
    scratch_.attention = take(1, attention_backward_workspace(attention), 1, MemKind::workspace, "attention backward");
    scratch_.kept_bytes = o.context ? 0 : attention_kept_bytes(attention, device);
    if (scratch_.kept_bytes > 0)
        scratch_.kept = take(1, scratch_.kept_bytes, 1, MemKind::workspace, "attention's score gradients");
    const int64_t bias_sums = c.qkv_bias ? bias_backward_scratch(part.qkv_rows()) : 0;
    const int64_t gains = c.post_norm ? part.heads + part.kv_heads : 2, ranks = o.tp ? o.tp->size() : 1;
    const int64_t head_sums = c.q_gains() > 0 ? qk_norm_backward_scratch(c.head_dim, gains) : 0;
    if (c.post_norm)
        scratch_.qk_sums =
            static_cast<float*>(take(o.tp ? 1 + ranks : 1, 2 * N, 4, MemKind::workspace, "sums over q and k"));
    scratch_.norm = static_cast<float*>(take(1, std::max({rmsnorm_backward_scratch(c.dim), bias_sums, head_sums}), 4,
                                             MemKind::workspace, "norm partials"));
    if (with_head) {
        losses_ = static_cast<float*>(take(N, 1, 4, MemKind::activations, "token losses"));
        if (o.z_loss > 0) z_losses_ = static_cast<float*>(take(N, 1, 4, MemKind::activations, "token z-losses"));
        // The ranks of the tp axis work on the same chunks, so the largest part of the vocabulary sets their size.
        const int64_t columns = o.tp ? ceil_div(c.vocab, int64_t(o.tp->size())) : c.vocab;
        chunk_rows_ = std::clamp<int64_t>(o.logits_bytes / (columns * e), 1, N);
        chunk_rows_ = ceil_div(N, ceil_div(N, chunk_rows_));  // equal chunks
        logits_ = take(chunk_rows_, columns, e, MemKind::workspace, "logits chunk");
        if (o.tp) {
            vocab_stats_ = static_cast<float*>(
                take(o.tp->size() + 1, chunk_rows_ * kVocabStats, 4, MemKind::workspace, "softmax of the tp ranks"));
            vocab_best_ = static_cast<int32_t*>(
                take(o.tp->size() + 1, chunk_rows_, 4, MemKind::workspace, "likeliest tokens of the tp ranks"));
        }
    }
    loss_sum_ = Buffer(device, z_losses_ ? 16 : 8, MemKind::workspace, "loss sum");
    reset_loss();
}

BlockWeights Workspace::weights(int unit, const void* whole, int64_t version) {
    return fp8_weights_ ? fp8_weights_->weights(stream_, block(unit), unit, whole, version)
                        : block(unit).weights(whole);
}

// ---- slots ----------------------------------------------------------------------------------------------------------

Stage::Stage(const ModelConfig& config, const ParamTable& table, const StageOptions& options, int first_unit,
             int last_unit, int forward_slots, int weight_slots, Device device, Stream& compute, Workspace& workspace,
             ParameterSource& parameters, GradientSink* gradients)
    : config_(config),
      part_(part_config(config, table)),
      table_(table),
      options_(options),
      vocab_(table.part_of(table.head())),
      first_unit_(first_unit),
      last_unit_(last_unit),
      model_last_(int(table.units().size()) - 1),
      device_(device),
      stream_(compute),
      work_(workspace),
      parameters_(parameters),
      gradients_(gradients) {
    require(first_unit >= 0 && last_unit <= model_last_ && first_block() <= last_block(),
            "a stage of units %d to %d: it must hold a block, units 1 to %d", first_unit, last_unit, model_last_ - 1);
    require(forward_slots > 0 && weight_slots >= 0, "a stage with %d forward slots and %d weight slots", forward_slots,
            weight_slots);
    require(!options.offload || options.recompute == Recompute::block,
            "activations on the host: of each block only the residual stream is kept, which needs Recompute::block");
    if (options.offload && gradients) {
        const int64_t bytes =
            checked_mul(own_rows_of(options, config), config.dim, "residual") * size_of(options.dtype);
        offload_.emplace(device, compute, bytes, last_block() - first_block() + 1, forward_slots);
    }
    for (int s = 0; s < forward_slots; ++s) add_slot(s);
    for (int s = 0; s < weight_slots; ++s) add_weight_slot(s);
}

void* Stage::take(int64_t rows, int64_t columns, int64_t element, MemKind kind, const std::string& name) {
    const int64_t bytes = checked_mul(checked_mul(rows, columns, name.c_str()), element, name.c_str());
    return buffers_.emplace_back(device_, bytes, kind, name).data();
}

// Scales of a slot's blocks, one after the other; none where no layer keeps codes.
Fp8Scale* Stage::take_scales(const std::string& of_slot) {
    if (!keeps_codes(options_.fp8.recipe)) return nullptr;
    return static_cast<Fp8Scale*>(take(last_block() - first_block() + 1, kBlockScales, sizeof(Fp8Scale),
                                       MemKind::activations, "fp8 scales" + of_slot));
}

void Stage::zero_scales(Fp8Scale* of_slot) {
    if (of_slot) stream_.zero(of_slot, (last_block() - first_block() + 1) * kBlockScales * int64_t(sizeof(Fp8Scale)));
}

void Stage::add_slot(int number) {
    const ModelConfig& c = config_;
    const int64_t N = rows_of(options_, c), R = own_rows_of(options_, c), e = size_of(options_.dtype);
    const std::string of_slot = number > 0 ? format(", slot %d", number) : "";
    const Fp8Options& fp8 = options_.fp8;
    const bool slots = keeps_codes(fp8.recipe);
    const bool share = options_.recompute == Recompute::block, share_norms = has(options_.recompute, Recompute::norms);
    const bool share_attention = has(options_.recompute, Recompute::attention);
    const bool share_gate_up = has(options_.recompute, Recompute::mlp);
    Slot slot;
    Fp8Scale* const scales = take_scales(of_slot);
    for (int unit = first_block(); unit <= last_block(); ++unit) {
        BlockActivations a;
        auto act = [&](const char* name, int64_t rows, int64_t columns, int64_t element) {
            return take(rows, columns, element, MemKind::activations,
                        format("%s of block %d", name, unit - 1) + of_slot);
        };
        auto row = [&](const char* name, int64_t rows, int64_t columns) {
            return static_cast<float*>(
                take(rows, columns, 4, MemKind::activations, format("%s of block %d", name, unit - 1) + of_slot));
        };
        const bool coded = slots && fp8.covers(unit - 1, c.layers);
        // True: branches read what is apart from the stream: its norm, or codes. Shared, it serves any block.
        const bool apart = !c.post_norm || coded || (slots && (share || share_norms));
        // Recomputed tensors share one memory for all blocks and slots.
        const bool first = number == 0 && unit == first_block();
        const BlockActivations shared = first ? a : (slots_.empty() ? slot : slots_.front()).blocks.front();
        if (share && !first) a = shared;
        const bool away = offload_ && offload_->covers(unit - first_block());
        a.resid = away ? offload_->place(unit - first_block()) : act("residual", R, c.dim, e);
        if (!share || first) {
            const bool codes = coded && !share && !share_norms, norms = apart && (!share_norms || first);
            a.h1 = norms ? act("attention norm", R, c.dim, codes ? 1 : e) : shared.h1;
            if (c.post_norm) a.last1 = act("attention's last product", R, c.dim, e);
            a.rstd1 = row("attention rstd", R, 1);
            if (share_attention && !first) {
                a.qk = shared.qk, a.qk_sums = shared.qk_sums, a.qkv = shared.qkv, a.o = shared.o, a.lse = shared.lse;
            } else {
                if (c.q_gains() > 0) a.qk = act("q and k", N, part_.q_rows() + part_.kv_rows(), e);
                if (c.post_norm) a.qk_sums = row("sums over q and k", N, 2 * (options_.tp ? options_.tp->size() : 1));
                a.qkv = act("qkv", N, part_.qkv_rows(), e);
                a.o = act("attention output", N, part_.q_rows(), e);
                a.lse = row("attention lse", N, part_.heads);
            }
            a.mid = act("middle residual", R, c.dim, e);
            a.h2 = norms ? act("ffn norm", R, c.dim, codes ? 1 : e) : shared.h2;
            if (c.post_norm) a.last2 = act("ffn's last product", R, c.dim, e);
            a.rstd2 = row("ffn rstd", R, 1);
            a.gate_up = share_gate_up && !first ? shared.gate_up : act("gate and up", N, 2 * part_.ffn, e);
        }
        if (!apart) a.h1 = a.resid, a.h2 = a.mid;
        if (scales) a.scales = scales + index(unit) * kBlockScales;
        slot.blocks.push_back(a);
    }
    const auto stream = [&](const char* name) { return take(R, c.dim, e, MemKind::activations, name + of_slot); };
    if (has_head()) {
        slot.final_resid = stream("final residual");
        slot.final_norm = stream("final norm");
        slot.final_rstd = static_cast<float*>(take(R, 1, 4, MemKind::activations, "final rstd" + of_slot));
    } else {
        slot.output = stream("stage output");
    }
    if (gradients_) slot.gradient = stream("residual gradient");
    slots_.push_back(std::move(slot));
}

void Stage::add_weight_slot(int number) {
    const ModelConfig& c = config_;
    const int64_t N = rows_of(options_, c), R = own_rows_of(options_, c), e = size_of(options_.dtype);
    WeightSlot slot;
    Fp8Scale* const scales = take_scales(format(", weight slot %d", number));
    for (int unit = first_block(); unit <= last_block(); ++unit) {
        const bool codes = scales && options_.fp8.covers(unit - 1, c.layers);
        auto bytes = [&](const char* name, int64_t rows, int64_t columns, int64_t element) {
            return take(rows, columns, element, MemKind::activations,
                        format("%s of block %d, weight slot %d", name, unit - 1, number));
        };
        auto pending = [&](const char* name, int64_t rows, int64_t columns) { return bytes(name, rows, columns, e); };
        auto sum = [&](const char* name) {
            return static_cast<float*>(take(1, c.dim, 4, MemKind::activations,
                                            format("%s of block %d, weight slot %d", name, unit - 1, number)));
        };
        slot.blocks.push_back({.h1 = bytes("attention norm", R, c.dim, codes ? 1 : e),
                               .h2 = bytes("ffn norm", R, c.dim, codes ? 1 : e),
                               .o = pending("attention output", N, part_.q_rows()),
                               .gate_up = pending("gate and up gradient", N, 2 * part_.ffn),
                               .act = pending("swiglu output", N, part_.ffn),
                               .dqkv = pending("qkv gradient", N, part_.qkv_rows()),
                               .dout = pending("output gradient", R, c.dim),
                               .dmid = pending("middle gradient", R, c.dim),
                               .dw_norm1 = sum("attention norm's weight gradient"),
                               .dw_norm2 = sum("ffn norm's weight gradient")});
        if (const int64_t gains = part_.q_gains() + part_.k_gains(); gains > 0)
            slot.blocks.back().dw_qk_norm = static_cast<float*>(bytes("head norms' weight gradient", 1, gains, 4));
        if (scales) slot.blocks.back().scales = scales + index(unit) * kBlockScales;
    }
    if (has_embedding())
        slot.embedding_gradient =
            take(R, c.dim, e, MemKind::activations, format("embedding gradient, weight slot %d", number));
    if (has_head())
        slot.dw_final_norm = static_cast<float*>(
            take(1, c.dim, 4, MemKind::activations, format("final norm's weight gradient, weight slot %d", number)));
    weight_slots_.push_back(std::move(slot));
}

void Stage::check(const DeviceBatch& b) const {
    require(b.B > 0 && b.T > 0 && b.T <= options_.T && b.B * b.T <= options_.B * options_.T,
            "a batch of %ld x %ld does not fit a model built for %ld x %ld", b.B, b.T, options_.B, options_.T);
    require(!options_.context || (b.B == options_.B && b.T == options_.T && b.positions),
            "a batch of %ld x %ld: where ranks share sequences, all have the model's %ld x %ld and positions", b.B, b.T,
            options_.B, options_.T);
}

// ---- passes ---------------------------------------------------------------------------------------------------------

const char* Stage::parameters(const Tensor& t) {
    return at(parameters_.parameters(t.unit), table_.within(t), options_.dtype);
}

BlockWeights Stage::block_weights(int unit) {
    if (const std::optional<Fp8Parameters> fp8 = parameters_.fp8_parameters(unit))
        return work_.block(unit).weights(*fp8);
    return work_.weights(unit, parameters_.parameters(unit), parameters_.version());
}

void Stage::ready_weights() {
    for (int unit = first_block(); unit <= last_block(); ++unit) block_weights(unit);
}

char* Stage::gradients(const Tensor& t) {
    return at(gradients_->gradients(t.unit), table_.within(t), options_.grad_dtype);
}

static BlockShape shape_of(const DeviceBatch& b, bool rotates) {
    return {.B = b.B, .T = b.T, .positions = b.positions, .first_key = b.first_key, .rotates = rotates};
}

// The key names the piece and holds what it records by value and may change: of activations what exchange() moves. (A
// batch's first_key lies beside its positions.)
void Stage::graph_region(const GraphSet::Key& key, const std::function<void()>& enqueue) {
    if (!replays_) return enqueue();
    const auto exchanges_between = [&](GraphSet* graphs) {
        if (options_.tp) options_.tp->set_graphs(graphs);
        if (options_.context) options_.context->set_graphs(graphs);
    };
    exchanges_between(&graphs_);
    graphs_.run(stream_, key, enqueue);
    exchanges_between(nullptr);
}

void embed(Stream& s, EmbeddingForward lookup, const BlockScratch& scratch, TensorParallel* tp) {
    const DType out = tp ? tp->wire() : lookup.dtype;
    void *const resid = lookup.x, *const rows = tp ? scratch.whole : resid;
    lookup.x = out == lookup.dtype ? rows : scratch.dh;
    embedding_forward(s, lookup);
    if (!tp) return;
    if (out != lookup.dtype)
        cast(s, {.out = rows, .x = lookup.x, .n = lookup.N * lookup.C, .out_dtype = out, .dtype = lookup.dtype});
    tp->scatter(s, resid, rows, lookup.N, lookup.C, lookup.dtype);
}

void Stage::forward(int unit, int slot, const DeviceBatch& b, const PassArgs& goal) {
    check(b);
    const Slot& s = slots_[size_t(slot)];
    if (unit == 0)
        return embed(stream_,
                     {.x = s.blocks.front().resid,
                      .table = parameters_.parameters(0),
                      .tokens = b.tokens,
                      .N = b.B * b.T,
                      .C = config_.dim,
                      .V = vocab_.rows,
                      .dtype = options_.dtype,
                      .first = vocab_.first / config_.dim},
                     work_.scratch(), options_.tp);
    if (unit == model_last_) {
        final_norm(s, own_rows(b));
        if (goal.pass == Pass::loss || goal.pass == Pass::score) head(s, b, goal);
        if (goal.pass != Pass::logits) return;
        require(!options_.tp, "logits of the whole vocabulary: each rank of the tp axis has a part of them");
        linear(stream_, goal.logits, s.final_norm, parameters(table_.head()), b.B * b.T, config_.dim, config_.vocab,
               options_.dtype, options_.dtype);
        return;
    }
    const BlockActivations& a = s.blocks[index(unit)];
    const void* previous_mid = unit == first_block() ? nullptr : s.blocks[index(unit) - 1].mid;
    if (unit == first_block()) zero_scales(a.scales);
    const BlockWeights w = block_weights(unit);
    const bool away = offload_ && offload_->covers(int64_t(index(unit)));
    if (away) offload_->before_forward(slot, int64_t(index(unit)));
    graph_region(GraphSet::key(GraphRegion::forward, unit, slot, w.address, a.h1, a.o, a.gate_up, a.scales, b.B, b.T,
                               b.positions),
                 [&] {
                     BlockStats watch = goal.watch;
                     if (watch.squares) watch.squares += unit - 1, watch.largest += unit - 1;
                     work_.block(unit).forward(stream_, shape_of(b, config_.rotates(unit - 1)), w, a, work_.scratch(),
                                               previous_mid, watch.squares ? &watch : nullptr);
                 });
    if (away && goal.pass == Pass::train) offload_->after_forward(slot, int64_t(index(unit)));
    if (unit == last_unit_)  // rounded as the next block would round the sum that it stores
        reduce_add(stream_, {.out = s.output,
                             .a = work_.scratch().branch,
                             .b = a.mid,
                             .n = own_rows(b) * config_.dim,
                             .out_dtype = options_.dtype,
                             .a_dtype = options_.dtype,
                             .b_dtype = options_.dtype});
}

void Stage::final_norm(const Slot& s, int64_t rows) {
    rmsnorm_forward(stream_, {.y = s.final_norm,
                              .rstd = s.final_rstd,
                              .sum = s.final_resid,
                              .x = work_.scratch().branch,
                              .residual = s.blocks.back().mid,
                              .w = parameters(table_.final_norm()),
                              .N = rows,
                              .C = config_.dim,
                              .eps = float(config_.norm_eps),
                              .dtype = options_.dtype});
}

// Token losses of a chunk, and in training the gradient in place of the logits.
void Stage::losses(int64_t first, int64_t rows, const DeviceBatch& b, const PassArgs& goal) {
    const bool trains = goal.pass == Pass::train;
    const int32_t* targets = b.targets + first;
    float* loss = (goal.pass == Pass::score ? goal.losses : work_.losses()) + first;
    const float z = trains ? options_.z_loss : 0;
    float* z_loss = z > 0 ? work_.z_losses() + first : nullptr;
    if (!options_.tp)
        return cross_entropy(stream_, {.loss = loss,
                                       .logits = work_.logits(),
                                       .targets = targets,
                                       .N = rows,
                                       .V = config_.vocab,
                                       .grad_scale = goal.grad_scale,
                                       .write_gradient = trains,
                                       .dtype = options_.dtype,
                                       .loss_scale = goal.loss_scale,
                                       .z = z,
                                       .z_loss = z_loss});
    const int64_t ranks = options_.tp->size(), first_id = vocab_.first / config_.dim;
    float* all = work_.vocab_stats();
    float* own = all + ranks * rows * kVocabStats;
    vocab_softmax(stream_, {.stats = own,
                            .logits = work_.logits(),
                            .targets = targets,
                            .N = rows,
                            .V = vocab_.rows,
                            .first = first_id,
                            .dtype = options_.dtype});
    options_.tp->share(stream_, all, own, rows * kVocabStats);
    vocab_cross_entropy(stream_, {.loss = loss,
                                  .logits = work_.logits(),
                                  .stats = all,
                                  .targets = targets,
                                  .N = rows,
                                  .V = vocab_.rows,
                                  .first = first_id,
                                  .parts = ranks,
                                  .vocab = config_.vocab,
                                  .grad_scale = goal.grad_scale,
                                  .write_gradient = trains,
                                  .dtype = options_.dtype,
                                  .loss_scale = goal.loss_scale,
                                  .z = z,
                                  .z_loss = z_loss});
}

// Logits and losses; in training the gradient of x, into scratch.dh, and the head's weight gradient.
void Stage::head_chunk(const char* x, const char* w, char* dw, int64_t first, int64_t rows, const DeviceBatch& b,
                       const PassArgs& goal) {
    const DType t = options_.dtype, partial = options_.tp ? options_.tp->wire() : t;
    const int64_t C = config_.dim, V = vocab_.rows;
    x += first * C * size_of(t);
    linear(stream_, work_.logits(), x, w, rows, C, V, t, t);
    const int64_t ranks = options_.tp ? options_.tp->size() : 1;
    int32_t* best = options_.tp ? work_.vocab_best() + ranks * rows : goal.best + first;
    if (goal.pass == Pass::score)
        argmax(stream_,
               {.best = best, .logits = work_.logits(), .N = rows, .V = V, .dtype = t, .first = vocab_.first / C});
    losses(first, rows, b, goal);
    if (goal.pass == Pass::score && options_.tp) {
        int32_t* all = work_.vocab_best();
        options_.tp->share(stream_, reinterpret_cast<float*>(all), reinterpret_cast<const float*>(best), rows);
        vocab_argmax(stream_,
                     {.best = goal.best + first, .own = all, .stats = work_.vocab_stats(), .N = rows, .parts = ranks});
    }
    if (!dw) return;
    char* dx = at(work_.scratch().dh, first * C, partial);
    linear_backward_input(stream_, dx, work_.logits(), w, rows, C, V, t, partial);
    linear_backward_weight(stream_, dw, work_.logits(), x, rows, C, V, t, options_.grad_dtype);
}

// Chunk by chunk; in training leaves the gradient of the final norm's output in scratch.dnorm. The head is in the last
// unit, or, if tied, in the embedding's.
void Stage::head(const Slot& s, const DeviceBatch& b, const PassArgs& goal) {
    TensorParallel* tp = options_.tp;
    const int64_t N = b.B * b.T, chunk = work_.chunk_rows();
    const bool trains = goal.pass == Pass::train, scores = goal.pass == Pass::score;
    const char* w = parameters(table_.head());
    char* dw = trains ? gradients(table_.head()) : nullptr;
    const auto chunks = [&] {
        const BlockScratch& scratch = work_.scratch();
        if (tp) tp->gather(stream_, scratch.whole, s.final_norm, N, config_.dim, options_.dtype);
        const char* x = static_cast<const char*>(tp ? scratch.whole : s.final_norm);
        for (int64_t first = 0; first < N; first += chunk)
            head_chunk(x, w, dw, first, std::min(chunk, N - first), b, goal);
        if (!scores && (!tp || tp->rank() == 0)) {
            sum_f32(stream_, {.out = work_.loss_sum(), .x = work_.losses(), .n = N});
            if (trains && work_.z_sum()) sum_f32(stream_, {.out = work_.z_sum(), .x = work_.z_losses(), .n = N});
        }
        if (tp && trains) tp->scatter(stream_, scratch.dnorm, scratch.dh, N, config_.dim, options_.dtype);
    };
    const GraphRegion what = trains ? GraphRegion::head : scores ? GraphRegion::score : GraphRegion::loss;
    graph_region(GraphSet::key(what, w, dw, s.final_norm, b.B, b.T, b.targets, goal.grad_scale, goal.loss_scale,
                               goal.losses, goal.best),
                 chunks);
}

void Stage::final_norm_backward(const Slot& s, int64_t rows, void* dx, float* dw_sum, Fp8Scale* of_dx) {
    rmsnorm_backward(stream_, {.dx = dx,
                               .dw = dw_sum ? nullptr : gradients(table_.final_norm()),
                               .dw_sum = dw_sum,
                               .dy = work_.scratch().dnorm,
                               .x = s.final_resid,
                               .w = parameters(table_.final_norm()),
                               .rstd = s.final_rstd,
                               .scratch = work_.scratch().norm,
                               .N = rows,
                               .C = config_.dim,
                               .dtype = options_.dtype,
                               .grad_dtype = options_.grad_dtype,
                               .amax = magnitude_of(of_dx)});
}

// Scale of the gradient of a block's output, before its pass; nullptr where there is no such block or nobody asks. It
// is the weight slot's if the pass finds all magnitudes again.
Fp8Scale* Stage::scale_of_dout(int unit, const Slot& s, const WeightSlot* pending) const {
    if (unit < first_block()) return nullptr;
    const bool again = pending && has(options_.recompute, Recompute::block);
    return work_.block(unit).scale_of_dout(again ? pending->blocks[index(unit)].scales : s.blocks[index(unit)].scales);
}

// Measures a gradient that came from the stage above; another was measured by the op that wrote it.
void Stage::measure_dout(int unit, Fp8Scale* scale, const void* dout, int64_t rows) {
    if (unit == last_unit_ && scale)
        abs_max(stream_, {.scale = scale, .x = dout, .n = rows * config_.dim, .dtype = options_.dtype});
}

void Stage::embedding_gradient(const void* dx, const DeviceBatch& b) {
    if (options_.tp) {
        options_.tp->gather(stream_, work_.scratch().whole, dx, b.B * b.T, config_.dim, options_.dtype);
        dx = work_.scratch().whole;
    }
    embedding_backward(stream_, {.dtable = gradients_->gradients(0),
                                 .dx = dx,
                                 .rows = b.rows,
                                 .starts = b.starts,
                                 .ids = b.ids,
                                 .distinct = b.distinct,
                                 .N = b.B * b.T,
                                 .C = config_.dim,
                                 .V = vocab_.rows,
                                 .dtype = options_.dtype,
                                 .grad_dtype = options_.grad_dtype,
                                 .first = vocab_.first / config_.dim});
}

void Stage::backward(int unit, int slot, const DeviceBatch& b, const PassArgs& goal) {
    check(b);
    const Slot& s = slots_[size_t(slot)];
    if (unit == 0) return embedding_gradient(s.gradient, b);
    if (unit == model_last_) {
        head(s, b, goal);
        return final_norm_backward(s, own_rows(b), s.gradient, nullptr, scale_of_dout(last_block(), s));
    }
    const BlockActivations& a = s.blocks[index(unit)];
    const BlockShape shape = shape_of(b, config_.rotates(unit - 1));
    const BlockWeights w = block_weights(unit);
    char* dw = static_cast<char*>(gradients_->gradients(unit));
    if (offload_ && offload_->covers(int64_t(index(unit)))) offload_->before_backward(slot, int64_t(index(unit)));
    Fp8Scale *own = scale_of_dout(unit, s), *below = scale_of_dout(unit - 1, s);
    graph_region(GraphSet::key(GraphRegion::backward, unit, slot, w.address, dw, a.h1, a.o, a.gate_up, a.scales, below,
                               b.B, b.T, b.positions),
                 [&] {
                     measure_dout(unit, own, s.gradient, own_rows(b));
                     work_.block(unit).backward(stream_, shape, w, dw, a, work_.scratch(), s.gradient,
                                                options_.recompute, below);
                 });
}

void Stage::input_grad(int unit, int slot, int weight_slot, const DeviceBatch& b, const PassArgs& goal) {
    check(b);
    Slot& s = slots_[size_t(slot)];
    WeightSlot& pending = weight_slots_[size_t(weight_slot)];
    if (unit == 0) return std::swap(s.gradient, pending.embedding_gradient);
    if (unit == last_unit_ && options_.recompute == Recompute::block)  // which finds all magnitudes again
        zero_scales(pending.blocks.front().scales);
    if (unit == model_last_) {
        head(s, b, goal);
        return final_norm_backward(s, own_rows(b), pending.blocks.back().dout, pending.dw_final_norm,
                                   scale_of_dout(last_block(), s, &pending));
    }
    BlockActivations& a = s.blocks[index(unit)];
    WeightGradInputs& p = pending.blocks[index(unit)];
    if (unit == last_unit_) std::swap(s.gradient, p.dout);  // what came from the stage above
    void* dresid = unit == first_block() ? s.gradient : pending.blocks[index(unit) - 1].dout;
    const BlockWeights w = block_weights(unit);
    if (offload_ && offload_->covers(int64_t(index(unit)))) offload_->before_backward(slot, int64_t(index(unit)));
    Fp8Scale *own = scale_of_dout(unit, s, &pending), *below = scale_of_dout(unit - 1, s, &pending);
    const BlockActivations now = exchange(a, p, options_.recompute);
    graph_region(GraphSet::key(GraphRegion::input_grad, unit, slot, w.address, a.resid, p.h1, p.o, p.gate_up, p.scales,
                               p.dout, p.dmid, dresid, below, b.B, b.T, b.positions),
                 [&] {
                     measure_dout(unit, own, p.dout, own_rows(b));
                     work_.block(unit).input_grad(stream_, shape_of(b, config_.rotates(unit - 1)), w, now, p,
                                                  work_.scratch(), dresid, options_.recompute, below);
                 });
}

void Stage::weight_grad(int unit, int weight_slot, const DeviceBatch& b, bool then_below) {
    const WeightSlot& pending = weight_slots_[size_t(weight_slot)];
    if (unit == 0) return embedding_gradient(pending.embedding_gradient, b);
    if (unit == model_last_)
        return add_norm_gradient(stream_, gradients(table_.final_norm()), pending.dw_final_norm, config_.dim,
                                 options_.grad_dtype);
    const WeightGradInputs& p = pending.blocks[index(unit)];
    char* dw = static_cast<char*>(gradients_->gradients(unit));
    graph_region(
        GraphSet::key(GraphRegion::weight_grad, unit, dw, p.h1, p.o, p.gate_up, p.scales, p.dout, p.dmid, b.B, b.T),
        [&] {
            const bool sets_off = then_below && unit > first_block() && &work_.block(unit) == &work_.block(unit - 1);
            const WeightGradInputs* next = sets_off ? &pending.blocks[index(unit) - 1] : nullptr;
            work_.block(unit).weight_grad(stream_, shape_of(b, config_.rotates(unit - 1)), dw, p, work_.scratch(),
                                          dout_there_, next);
        });
}

}  // namespace rz
