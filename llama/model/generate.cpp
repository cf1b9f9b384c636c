#include "llama/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/philox.h"
#include "kernels/rmsnorm.h"
#include "llama/model/linear.h"
#include "llama/model/model.h"

namespace rz {

int32_t choose_token(const std::vector<float>& logits, const Sampling& how, int64_t position) {
    const auto higher = [&](int32_t a, int32_t b) {
        return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
    };
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    if (how.temperature <= 0 || how.top_k == 1) return *std::min_element(ids.begin(), ids.end(), higher);

    if (how.top_k > 0 && size_t(how.top_k) < ids.size()) {
        std::partial_sort(ids.begin(), ids.begin() + how.top_k, ids.end(), higher);
        ids.resize(size_t(how.top_k));
    } else {
        std::sort(ids.begin(), ids.end(), higher);
    }
    std::vector<double> weight(ids.size());
    const double largest = logits[size_t(ids[0])];
    for (size_t i = 0; i < ids.size(); ++i) weight[i] = std::exp((logits[size_t(ids[i])] - largest) / how.temperature);
    double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    if (how.top_p < 1) {
        double kept = 0;
        size_t n = 0;
        while (n < weight.size() && kept < how.top_p * total) kept += weight[n++];
        n = std::max<size_t>(n, 1);
        weight.resize(n);
        total = kept > 0 ? kept : weight[0];
    }
    constexpr uint64_t kSamplingStream = 0x73616d706c65ull;  // apart from the streams that initialise tensors
    const double draw = philox4x32(how.seed, uint64_t(position), kSamplingStream).w[0] * 0x1p-32 * total;
    double sum = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
        sum += weight[i];
        if (draw < sum) return ids[i];
    }
    return ids[weight.size() - 1];
}

constexpr int64_t kPrefill = 256;  // positions at a time: bounds the activations, not the prompt

static Block decoder_block(const ModelConfig& c, const ParamTable& t, DType dtype, Device device, Stream& s,
                           int64_t positions, Buffer& cos_table, Buffer& sin_table, Buffer& window,
                           TensorParallel* tp) {
    make_rope_tables(c, positions, device, s, cos_table, sin_table);
    window = make_window(c, positions, device, s);
    return Block(c, t, dtype, dtype, cos_table.as<float>(), sin_table.as<float>(), window.as<int32_t>(), tp);
}

static RankProgram whole_forward(const ParamTable& table, DType dtype, const ParameterSource& parameters) {
    RankProgram p;
    p.shape = step_shape(table, dtype, parameters, nullptr, {{0, 0, int(table.units().size()) - 1}}, 1,
                         /*trains=*/false);
    p.program = single_stage_program(p.shape);
    check_program(p.program, p.shape, 0);
    return p;
}

Decoder::Decoder(const ModelConfig& c, const ParamTable& table, DType dtype, Device device, Stream& stream,
                 ParameterSource& parameters, int64_t max_positions, TensorParallel* tp)
    : Decoder(c, table, dtype, device, stream, parameters, max_positions, whole_forward(table, dtype, parameters),
              nullptr, 0, tp) {}

Decoder::Decoder(const ModelConfig& c, const ParamTable& table, DType dtype, Device device, Stream& stream,
                 ParameterSource& parameters, int64_t max_positions, const RankProgram& forward, Mesh& mesh,
                 int head_rank, TensorParallel* tp)
    : Decoder(c, table, dtype, device, stream, parameters, max_positions, forward, &mesh, head_rank, tp) {}

Decoder::Decoder(const ModelConfig& c, const ParamTable& table, DType dtype, Device device, Stream& stream,
                 ParameterSource& parameters, int64_t max_positions, RankProgram forward, Mesh* mesh, int head_rank,
                 TensorParallel* tp)
    : config_(c),
      part_(part_config(c, table)),
      table_(table),
      tp_(tp),
      dtype_(dtype),
      device_(device),
      stream_(stream),
      parameters_(parameters),
      program_(std::move(forward)),
      mesh_(mesh),
      head_rank_(head_rank),
      executor_(stream, mesh),
      max_positions_(std::min(max_positions, c.max_seq_len)),
      block_(decoder_block(c, table, dtype, device, stream, max_positions_, cos_, sin_, window_, tp)) {
    const int64_t e = size_of(dtype), n = std::min(kPrefill, max_positions_);
    require(part_.qkv_rows() * e % 16 == 0,
            "generation with head-dim (head_dim) = %ld: a token's q, k and v take %ld bytes, not a multiple of 16\n"
            "  nearest: head-dim %ld",
            c.head_dim, part_.qkv_rows() * e, round_up(c.head_dim, 8));
    auto take = [&](int64_t rows, int64_t columns, int64_t element, MemKind kind, const char* name) {
        return buffers_.emplace_back(device, checked_mul(checked_mul(rows, columns, name), element, name), kind, name)
            .data();
    };
    cache_.resize(size_t(c.layers));
    for (const StageUnits& held : program_.shape.stages) {
        for (int u = std::max(held.first_unit, 1); u <= std::min(held.last_unit, int(c.layers)); ++u)
            cache_[size_t(u) - 1] =
                take(max_positions_, part_.qkv_rows(), e, MemKind::activations, "key and value cache");
        if (held.last_unit <= int(c.layers))
            outputs_[held.stage] = take(n, c.dim, e, MemKind::activations, "stage output");
    }
    a_.resid = take(n, c.dim, e, MemKind::activations, "residual");
    a_.h1 = c.post_norm ? a_.resid : take(n, c.dim, e, MemKind::activations, "attention norm");
    a_.o = take(n, part_.q_rows(), e, MemKind::activations, "attention output");
    a_.mid = take(n, c.dim, e, MemKind::activations, "middle residual");
    a_.h2 = c.post_norm ? a_.mid : take(n, c.dim, e, MemKind::activations, "ffn norm");
    final_norm_ = c.post_norm ? take(n, c.dim, e, MemKind::activations, "last product") : a_.h1;
    if (c.post_norm) {
        a_.last1 = a_.last2 = final_norm_;
        const int64_t ranks = tp ? tp->size() : 1;
        a_.qk_sums = static_cast<float*>(take(n, 2 * ranks, 4, MemKind::activations, "sums over q and k"));
        scratch_.qk_sums = static_cast<float*>(take(n, 2, 4, MemKind::workspace, "own sums over q and k"));
    }
    a_.gate_up = take(n, 2 * part_.ffn, e, MemKind::activations, "gate and up");
    a_.rstd1 = static_cast<float*>(take(n, 1, 4, MemKind::activations, "attention rstd"));
    a_.rstd2 = static_cast<float*>(take(n, 1, 4, MemKind::activations, "ffn rstd"));
    a_.lse = static_cast<float*>(take(n, part_.heads, 4, MemKind::activations, "attention lse"));
    scratch_.branch = take(n, c.dim, e, MemKind::workspace, "branch output");
    scratch_.act = take(n, part_.ffn, e, MemKind::workspace, "swiglu output");
    tokens_ = static_cast<int32_t*>(take(n, 1, 4, MemKind::data, "tokens"));
    logits_ = take(1, c.vocab, e, MemKind::workspace, "logits");
    if (tp) {
        const int64_t wide = std::max(e, size_of(tp->wire()));
        scratch_.whole = take(n, c.dim, wide, MemKind::workspace, "rows of all tp ranks");
        scratch_.dh = take(n, c.dim, wide, MemKind::workspace, "partial sums");
        own_logits_ = static_cast<float*>(take(1, c.vocab, 4, MemKind::workspace, "own logits"));
    }
    logits32_ = static_cast<float*>(take(1, c.vocab, 4, MemKind::workspace, "logits"));
    host_.resize(size_t(c.vocab));
}

std::vector<float> Decoder::append(const std::vector<int32_t>& tokens) {
    require(!tokens.empty(), "generation needs at least one token to start from");
    require(position_ + int64_t(tokens.size()) <= max_positions_, "%zu tokens do not fit: position %ld of %ld",
            tokens.size(), position_, max_positions_);
    for (int32_t t : tokens)
        require(t >= 0 && t < config_.vocab, "token %d is outside the model's vocabulary of %ld", t, config_.vocab);
    const int64_t total = int64_t(tokens.size());
    for (int64_t first = 0; first < total; first += kPrefill)
        forward_chunk(tokens.data() + first, std::min(kPrefill, total - first));
    if (mesh_) {
        Stream& comm = mesh_->stream();
        comm.wait(stream_.record());
        mesh_->pp().broadcast(comm, logits32_, config_.vocab * 4, head_rank_);
        stream_.wait(comm.record());
    }
    stream_.copy(host_.data(), logits32_, config_.vocab * 4);
    stream_.synchronize();
    return host_;
}

// A stage's input is the memory that all stages of the rank work in: it is free when the tensor comes, since that was
// made from this rank's output of the stage before, and a chunk begins when the one before has ended.
struct Decoder::Host : ProgramHost {
    Host(Decoder& d, int64_t n) : decoder(d), count(n) {}
    void gather(const Instr& i) override { decoder.parameters_.gather(i.first_unit); }
    void release(const Instr& i) override { decoder.parameters_.release(i.first_unit); }
    void compute(const Instr& i) override {
        const StageUnits& stage = decoder.program_.shape.stage(i.stage);
        for (int u = i.first_unit; u <= i.last_unit; ++u) decoder.forward_unit(u, stage, count);
    }
    void* boundary(Boundary which, int stage, int) override {
        return which == Boundary::input ? decoder.a_.resid : decoder.outputs_.at(stage);
    }
    int64_t boundary_bytes(int) override {
        return decoder.own_rows(count) * decoder.config_.dim * size_of(decoder.dtype_);
    }
    Decoder& decoder;
    int64_t count;  // of new tokens
};

void Decoder::forward_chunk(const int32_t* tokens, int64_t count) {
    stream_.copy(tokens_, tokens, count * 4);
    Host host(*this, count);
    executor_.run(program_, host);
    stream_.synchronize();  // the caller's tokens and tokens_ are used again
    position_ += count;
}

void Decoder::forward_unit(int unit, const StageUnits& stage, int64_t count) {
    const ModelConfig& c = config_;
    const TensorShard vocab = table_.part_of(table_.head());
    if (unit == 0)
        return embed(stream_,
                     {.x = a_.resid,
                      .table = parameters_.parameters(0),
                      .tokens = tokens_,
                      .N = count,
                      .C = c.dim,
                      .V = vocab.rows,
                      .dtype = dtype_,
                      .first = vocab.first / c.dim},
                     scratch_, tp_);
    const void* previous_mid = unit > std::max(stage.first_unit, 1) ? a_.mid : nullptr;
    if (unit > int(c.layers)) return forward_head(count, previous_mid);
    a_.qkv = at(cache_[size_t(unit - 1)], position_ * part_.qkv_rows(), dtype_);
    block_.forward(stream_, {.B = 1, .T = count, .first_position = position_, .rotates = c.rotates(unit - 1)},
                   block_.weights(parameters_.parameters(unit)), a_, scratch_, previous_mid);
    if (unit == stage.last_unit)
        reduce_add(stream_, {.out = outputs_.at(stage.stage),
                             .a = scratch_.branch,
                             .b = a_.mid,
                             .n = own_rows(count) * c.dim,
                             .out_dtype = dtype_,
                             .a_dtype = dtype_,
                             .b_dtype = dtype_});
}

// The logits after the last of the tokens.
void Decoder::forward_head(int64_t count, const void* previous_mid) {
    const ModelConfig& c = config_;
    const TensorShard vocab = table_.part_of(table_.head());
    const auto parameters = [&](const Tensor& t) {
        return at(parameters_.parameters(t.unit), table_.within(t), dtype_);
    };
    rmsnorm_forward(stream_, {.y = final_norm_,
                              .rstd = a_.rstd1,
                              .sum = a_.resid,
                              .x = scratch_.branch,
                              .residual = previous_mid,
                              .w = parameters(table_.final_norm()),
                              .N = own_rows(count),
                              .C = c.dim,
                              .eps = float(c.norm_eps),
                              .dtype = dtype_});
    const void* rows = final_norm_;
    if (tp_) tp_->gather(stream_, scratch_.whole, final_norm_, count, c.dim, dtype_), rows = scratch_.whole;
    linear(stream_, logits_, at(rows, (count - 1) * c.dim, dtype_), parameters(table_.head()), 1, c.dim, vocab.rows,
           dtype_, dtype_);
    cast(stream_, {.out = tp_ ? own_logits_ : logits32_,
                   .x = logits_,
                   .n = vocab.rows,
                   .out_dtype = DType::f32,
                   .dtype = dtype_});
    if (tp_) tp_->gather(stream_, logits32_, own_logits_, c.vocab, 1, DType::f32);
}

int64_t generate(Decoder& decoder, const ModelConfig& config, const std::vector<int32_t>& prompt, int64_t max_tokens,
                 const Sampling& how, const std::function<bool(int32_t)>& emit) {
    std::vector<float> logits = decoder.append(prompt);
    int64_t made = 0;
    while (made < max_tokens) {
        const int32_t token = choose_token(logits, how, decoder.position());
        if (std::find(config.eos.begin(), config.eos.end(), int64_t(token)) != config.eos.end()) break;
        ++made;
        if (!emit(token) || made == max_tokens || decoder.position() == decoder.max_positions()) break;
        logits = decoder.append({token});
    }
    return made;
}

}  // namespace rz
