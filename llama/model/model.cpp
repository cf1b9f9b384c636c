#include "llama/model/model.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/rmsnorm.h"

namespace rz {

void make_rope_tables(const ModelConfig& c, int64_t positions, Device device, Stream& stream, Buffer& cos_table,
                      Buffer& sin_table) {
    const int64_t n = checked_mul(positions, c.head_dim / 2, "rope table");
    std::vector<float> cos_host(n), sin_host(n);
    rope_tables(cos_host.data(), sin_host.data(), positions, c.head_dim, c.rope_theta, c.rope_scaling);
    cos_table = Buffer(device, n * 4, MemKind::workspace, "rope cos");
    sin_table = Buffer(device, n * 4, MemKind::workspace, "rope sin");
    stream.copy(cos_table.data(), cos_host.data(), n * 4);
    stream.copy(sin_table.data(), sin_host.data(), n * 4);
    stream.synchronize();  // the host vectors end here
}

static Block make_block(const ModelConfig& c, const ParamTable& table, const ModelOptions& o, Device device, Stream& s,
                        Buffer& cos_table, Buffer& sin_table) {
    make_rope_tables(c, o.T, device, s, cos_table, sin_table);
    return Block(c, table, o.dtype, o.grad_dtype, cos_table.as<float>(), sin_table.as<float>());
}

Model::Model(const ModelConfig& config, const ParamTable& table, ModelOptions options, Device device, Stream& compute,
             Zero& zero)
    : config_(config),
      table_(table),
      options_(options),
      stream_(compute),
      zero_(zero),
      block_(make_block(config, table, options, device, compute, cos_, sin_)) {
    require(options.B > 0 && options.T > 0, "micro-batch %lld x %lld: both must be positive", (long long)options.B,
            (long long)options.T);
    require(options.T <= config.max_seq_len, "--seq-len %lld is longer than the model's max_seq_len %lld",
            (long long)options.T, (long long)config.max_seq_len);
    allocate(device);
    reset_loss();
}

void Model::allocate(Device device) {
    const ModelConfig& c = config_;
    const int64_t N = checked_mul(options_.B, options_.T, "micro-batch"), e = size_of(options_.dtype);
    const int64_t heads_dim = c.heads * c.head_dim, qkv_dim = c.qkv_rows();
    auto take = [&](int64_t rows, int64_t columns, int64_t element, MemKind kind, const std::string& name) {
        const int64_t bytes = checked_mul(checked_mul(rows, columns, name.c_str()), element, name.c_str());
        return buffers_.emplace_back(device, bytes, kind, name).data();
    };

    const bool share = options_.recompute == Recompute::block;
    const bool share_gate_up = options_.recompute != Recompute::none;
    layers_.resize(size_t(c.layers));
    for (int64_t l = 0; l < c.layers; ++l) {
        BlockActivations& a = layers_[size_t(l)];
        auto act = [&](const char* name, int64_t columns) {
            return take(N, columns, e, MemKind::activations, format("%s of block %lld", name, (long long)l));
        };
        auto row = [&](const char* name, int64_t columns) {
            return static_cast<float*>(
                take(N, columns, 4, MemKind::activations, format("%s of block %lld", name, (long long)l)));
        };
        if (l > 0 && share) a = layers_[0];
        a.resid = act("residual", c.dim);
        if (l > 0 && share) continue;
        a.h1 = act("attention norm", c.dim);
        a.rstd1 = row("attention rstd", 1);
        a.qkv = act("qkv", qkv_dim);
        a.o = act("attention output", heads_dim);
        a.lse = row("attention lse", c.heads);
        a.mid = act("middle residual", c.dim);
        a.h2 = act("ffn norm", c.dim);
        a.rstd2 = row("ffn rstd", 1);
        a.gate_up = l > 0 && share_gate_up ? layers_[0].gate_up : act("gate and up", 2 * c.ffn);
    }
    final_resid_ = take(N, c.dim, e, MemKind::activations, "final residual");
    final_norm_ = take(N, c.dim, e, MemKind::activations, "final norm");
    final_rstd_ = static_cast<float*>(take(N, 1, 4, MemKind::activations, "final rstd"));
    dresid_ = take(N, c.dim, e, MemKind::activations, "residual gradient");
    losses_ = static_cast<float*>(take(N, 1, 4, MemKind::activations, "token losses"));

    scratch_.branch = take(N, c.dim, e, MemKind::workspace, "branch output");
    scratch_.act = take(N, c.ffn, e, MemKind::workspace, "swiglu output");
    scratch_.dqkv = take(N, qkv_dim, e, MemKind::workspace, "qkv gradient");
    scratch_.dh = take(N, std::max(c.dim, heads_dim), e, MemKind::workspace, "norm gradient");
    const BlockShape largest{.B = options_.B, .T = options_.T};
    scratch_.attention = take(1, attention_backward_workspace(block_.attention_shape(largest)), 1, MemKind::workspace,
                              "attention backward");
    scratch_.norm =
        static_cast<float*>(take(1, rmsnorm_backward_scratch(c.dim), 4, MemKind::workspace, "norm partials"));

    chunk_rows_ = std::clamp<int64_t>(options_.logits_bytes / (c.vocab * e), 1, N);
    chunk_rows_ = ceil_div(N, ceil_div(N, chunk_rows_));  // equal chunks
    logits_ = take(chunk_rows_, c.vocab, e, MemKind::workspace, "logits chunk");
    loss_sum_ = Buffer(device, 8, MemKind::workspace, "loss sum");
}

void Model::reset_loss() { stream_.zero(loss_sum_.data(), 8); }

void Model::check(const DeviceBatch& b) const {
    require(b.B > 0 && b.T > 0 && b.T <= options_.T && b.B * b.T <= options_.B * options_.T,
            "a batch of %lld x %lld does not fit a model built for %lld x %lld", (long long)b.B, (long long)b.T,
            (long long)options_.B, (long long)options_.T);
}

// Which piece of work it is; beside it the key has what else the piece records by value and may change.
enum class Piece { kForward, kBackward, kHead, kLoss };

void Model::piece(const GraphSet::Key& key, const std::function<void()>& enqueue) {
    if (replays_)
        graphs_.run(stream_, key, enqueue);
    else
        enqueue();
}

void* Model::forward(const DeviceBatch& b) {
    check(b);
    const ModelConfig& c = config_;
    const int64_t N = b.B * b.T;
    zero_.begin_forward();
    embedding_forward(stream_, {.x = layers_[0].resid,
                                .table = zero_.gather(0),
                                .tokens = b.tokens,
                                .N = N,
                                .C = c.dim,
                                .V = c.vocab,
                                .dtype = options_.dtype});
    zero_.release(0);

    const void* previous_mid = nullptr;
    for (int64_t l = 0; l < c.layers; ++l) {
        const BlockActivations& a = layers_[size_t(l)];
        const int unit = int(l) + 1;
        const char* w = static_cast<const char*>(zero_.gather(unit));
        piece(GraphSet::key(Piece::kForward, l, w, b.B, b.T),
              [&] { block_.forward(stream_, shape(b), w, a, scratch_, previous_mid); });
        zero_.release(unit);
        previous_mid = a.mid;
    }

    const int last = int(c.layers) + 1;
    const auto& unit = table_.units()[size_t(last)];
    const char* w = static_cast<const char*>(zero_.gather(last));
    rmsnorm_forward(stream_, {.y = final_norm_,
                              .rstd = final_rstd_,
                              .sum = final_resid_,
                              .x = scratch_.branch,
                              .residual = previous_mid,
                              .w = w + (table_.final_norm().offset - unit.offset) * size_of(options_.dtype),
                              .N = N,
                              .C = c.dim,
                              .eps = float(c.norm_eps),
                              .dtype = options_.dtype});
    return final_norm_;  // unit `last` stays gathered: the head follows
}

// The head is in the last unit, or, if tied, in the embedding's.
void Model::head(const DeviceBatch& b, bool backward, float grad_scale) {
    const ModelConfig& c = config_;
    const Tensor& head = table_.head();
    const DType t = options_.dtype;
    const int64_t N = b.B * b.T, e = size_of(t), within = head.offset - table_.units()[size_t(head.unit)].offset;
    const char* w = static_cast<const char*>(zero_.gather(head.unit)) + within * e;
    char* dw =
        backward ? static_cast<char*>(zero_.gradients(head.unit)) + within * size_of(options_.grad_dtype) : nullptr;

    const auto chunks = [&] {
        for (int64_t first = 0; first < N; first += chunk_rows_) {
            const int64_t rows = std::min(chunk_rows_, N - first);
            const char* x = static_cast<const char*>(final_norm_) + first * c.dim * e;
            linear(stream_, logits_, x, w, rows, c.dim, c.vocab, t);
            cross_entropy(stream_, {.loss = losses_ + first,
                                    .logits = logits_,
                                    .targets = b.targets + first,
                                    .N = rows,
                                    .V = c.vocab,
                                    .grad_scale = grad_scale,
                                    .write_gradient = backward,
                                    .dtype = t});
            if (!backward) continue;
            char* dx = static_cast<char*>(scratch_.dh) + first * c.dim * e;
            linear_backward_input(stream_, dx, logits_, w, rows, c.dim, c.vocab, t);
            linear_backward_weight(stream_, dw, logits_, x, rows, c.dim, c.vocab, t, options_.grad_dtype);
        }
        sum_f32(stream_, {.out = loss_sum_.as<double>(), .x = losses_, .n = N});
    };
    piece(GraphSet::key(backward ? Piece::kHead : Piece::kLoss, w, dw, b.B, b.T, b.targets, grad_scale), chunks);
    if (head.unit == 0) zero_.release(0);
}

void Model::train(const DeviceBatch& b, float grad_scale) {
    forward(b);
    zero_.begin_backward();
    head(b, /*backward=*/true, grad_scale);
    backward(b);
}

void Model::evaluate(const DeviceBatch& b) {
    forward(b);
    head(b, /*backward=*/false, 0);
    zero_.release(int(config_.layers) + 1);
}

void Model::logits(const DeviceBatch& b, void* out) {
    forward(b);
    const Tensor& head = table_.head();
    const int64_t within = head.offset - table_.units()[size_t(head.unit)].offset;
    const char* w = static_cast<const char*>(zero_.gather(head.unit)) + within * size_of(options_.dtype);
    linear(stream_, out, final_norm_, w, b.B * b.T, config_.dim, config_.vocab, options_.dtype);
    if (head.unit == 0) zero_.release(0);
    zero_.release(int(config_.layers) + 1);
}

// Enters with the gradient of the final norm's output in scratch_.dh and the last unit gathered.
void Model::backward(const DeviceBatch& b) {
    const ModelConfig& c = config_;
    const int64_t N = b.B * b.T;
    const int last = int(c.layers) + 1;
    const auto& unit = table_.units()[size_t(last)];
    const int64_t norm_at = table_.final_norm().offset - unit.offset;
    rmsnorm_backward(stream_, {.dx = dresid_,
                               .dw = static_cast<char*>(zero_.gradients(last)) + norm_at * size_of(options_.grad_dtype),
                               .dy = scratch_.dh,
                               .x = final_resid_,
                               .w = static_cast<const char*>(zero_.gather(last)) + norm_at * size_of(options_.dtype),
                               .rstd = final_rstd_,
                               .scratch = scratch_.norm,
                               .N = N,
                               .C = c.dim,
                               .dtype = options_.dtype,
                               .grad_dtype = options_.grad_dtype});
    zero_.release(last);
    zero_.reduce(last);

    for (int64_t l = c.layers - 1; l >= 0; --l) {
        const BlockActivations& a = layers_[size_t(l)];
        const int u = int(l) + 1;
        const char* w = static_cast<const char*>(zero_.gather(u));
        char* dw = static_cast<char*>(zero_.gradients(u));
        piece(GraphSet::key(Piece::kBackward, l, w, dw, b.B, b.T), [&] {
            if (options_.recompute == Recompute::block) block_.forward(stream_, shape(b), w, a, scratch_, nullptr);
            block_.backward(stream_, shape(b), w, dw, a, scratch_, dresid_, options_.recompute == Recompute::mlp);
        });
        zero_.release(u);
        zero_.reduce(u);
    }

    embedding_backward(stream_, {.dtable = zero_.gradients(0),
                                 .dx = dresid_,
                                 .rows = b.rows,
                                 .starts = b.starts,
                                 .ids = b.ids,
                                 .distinct = b.distinct,
                                 .N = N,
                                 .C = c.dim,
                                 .V = c.vocab,
                                 .dtype = options_.dtype,
                                 .grad_dtype = options_.grad_dtype});
    zero_.reduce(0);
}

// ---- the table's views for zero/, and what training needs once ------------------------------------------------------

std::vector<UnitLayout> unit_layouts(const ParamTable& table) { return table.held_units(); }

DecaySegments decay_segments(const ParamTable& table) {
    DecaySegments out;
    for (const auto& s : table.decay_segments()) {
        out.end.push_back(s.end);
        out.decays.push_back(s.decay);
    }
    return out;
}

void initialise_weights(const ParamTable& table, uint64_t seed, Stream& stream, Zero& zero) {
    const DType dtype = zero.options().master_dtype;
    for (const OwnedRange& own : zero.owned())
        table.for_each_run(own.local, own.local + own.elements.size(), INT64_MAX, [&](const TensorRun& run) {
            const Tensor& t = table.tensors()[size_t(run.tensor)];
            random_normal(stream, {.x = static_cast<char*>(own.master) + (run.local - own.local) * size_of(dtype),
                                   .n = run.count,
                                   .first = run.first,
                                   .seed = seed,
                                   .stream = uint64_t(run.tensor),
                                   .mean = t.init == Init::kOnes ? 1.0f : 0.0f,
                                   .std = t.init == Init::kOnes ? 0.0f : float(t.init_std),
                                   .dtype = dtype});
        });
    zero.publish();
}

double training_flops_per_token(const ModelConfig& c, int64_t T) {
    return 6.0 * double(c.matmul_parameters()) + 6.0 * double(c.layers) * double(c.q_rows()) * double(T);
}

}  // namespace rz
