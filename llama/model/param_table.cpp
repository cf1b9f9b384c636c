#include "llama/model/param_table.h"

#include <algorithm>
#include <cmath>

#include "kernels/runtime/check.h"

namespace rz {

void ParamTable::add(std::string name, std::vector<int64_t> shape, Init init, double init_std, Split split,
                     int64_t grain) {
    int64_t size = 1;
    for (const int64_t extent : shape) size = checked_mul(size, extent, name.c_str());
    const bool decay = shape.size() > 1;
    by_name_.emplace(name, int(tensors_.size()));
    tensors_.push_back({std::move(name), std::move(shape), int(units_.size()), size_ + unit_size_, size, decay, init,
                        init_std, split, grain});
    unit_size_ = checked_add(unit_size_, size, "size of a unit");
    parameters_ = checked_add(parameters_, size, "parameter count");
}

void ParamTable::end_unit(std::string name) {
    const int first = units_.empty() ? 0 : units_.back().first_tensor + units_.back().tensors;
    units_.push_back({make_unit(std::move(name), size_, unit_size_), first, int(tensors_.size()) - first});
    size_ = checked_add(size_, units_.back().padded, "size of the flat buffer");
    unit_size_ = 0;
}

ParamTable::ParamTable(const ModelConfig& config, LocalShard holding) : tied_(config.tied) {
    int count = 0;
    for (int which = 0; which < kBlockTensors; ++which)
        places_[which] = which <= kDown || (which <= kVBias ? config.qkv_bias : config.q_gains() > 0) ? count++ : -1;
    add_tensors(config);
    cut(holding);
    hold();
}

void ParamTable::add_tensors(const ModelConfig& c) {
    const double std = c.init_std;
    const double last_std = c.branch_init < 0 ? std / std::sqrt(2.0 * double(c.layers)) : std * c.branch_init;
    const auto by_rows = [&](std::string name, int64_t rows, int64_t cols, int64_t grain) {
        add(std::move(name), {rows, cols}, Init::kNormal, std, Split::rows, grain);
    };
    const auto by_cols = [&](std::string name, int64_t rows, int64_t cols, int64_t grain) {
        add(std::move(name), {rows, cols}, Init::kNormal, last_std, Split::cols, grain);
    };
    const auto bias = [&](std::string name, int64_t size, int64_t grain) {
        add(std::move(name), {size}, Init::kNormal, 0, Split::cols, grain);
    };
    constexpr const char* after_attention = "post_attention_layernorm.weight";
    by_rows("model.embed_tokens.weight", c.vocab, c.dim, 1);
    end_unit("embedding");
    for (int64_t l = 0; l < c.layers; ++l) {
        const std::string prefix = "model.layers." + std::to_string(l) + ".";
        add(prefix + (c.post_norm ? after_attention : "input_layernorm.weight"), {c.dim}, Init::kOnes);
        by_rows(prefix + "self_attn.q_proj.weight", c.q_rows(), c.dim, c.head_dim);
        by_rows(prefix + "self_attn.k_proj.weight", c.kv_rows(), c.dim, c.head_dim);
        by_rows(prefix + "self_attn.v_proj.weight", c.kv_rows(), c.dim, c.head_dim);
        by_cols(prefix + "self_attn.o_proj.weight", c.dim, c.q_rows(), c.head_dim);
        add(prefix + (c.post_norm ? "post_feedforward_layernorm.weight" : after_attention), {c.dim}, Init::kOnes);
        by_rows(prefix + "mlp.gate_proj.weight", c.ffn, c.dim, 1);
        by_rows(prefix + "mlp.up_proj.weight", c.ffn, c.dim, 1);
        by_cols(prefix + "mlp.down_proj.weight", c.dim, c.ffn, 1);
        if (c.qkv_bias) {
            bias(prefix + "self_attn.q_proj.bias", c.q_rows(), c.head_dim);
            bias(prefix + "self_attn.k_proj.bias", c.kv_rows(), c.head_dim);
            bias(prefix + "self_attn.v_proj.bias", c.kv_rows(), c.head_dim);
        }
        const Split of_gains = c.post_norm ? Split::cols : Split::none;  // of heads, or of each
        const auto gains = [&](const char* name, int64_t size) {
            if (size > 0) add(prefix + name, {size}, Init::kOnes, 0, of_gains, c.head_dim);
        };
        gains("self_attn.q_norm.weight", c.q_gains());
        gains("self_attn.k_norm.weight", c.k_gains());
        end_unit("block " + std::to_string(l));
    }
    add("model.norm.weight", {c.dim}, Init::kOnes);
    if (!c.tied) by_rows("lm_head.weight", c.vocab, c.dim, 1);
    end_unit("head");
}

// ---- what is held ---------------------------------------------------------------------------------------------------

// Which of `groups` part `part` has: as many as the others or one more; with fewer groups than parts, neighbours have
// the same one, and the first of them owns it.
struct Cut {
    int64_t begin, end;
    int first_part, parts;  // who has it
};
static Cut cut_groups(int64_t groups, int part, int parts) {
    const int64_t each = groups / parts, extra = groups % parts;
    if (each > 0) {
        const int64_t begin = part * each + std::min<int64_t>(part, extra);
        return {begin, begin + each + (part < extra ? 1 : 0), part, 1};
    }
    const auto group_of = [&](int p) { return p * groups / parts; };
    const int64_t group = group_of(part);
    Cut cut{group, group + 1, part, 1};
    while (cut.first_part > 0 && group_of(cut.first_part - 1) == group) --cut.first_part, ++cut.parts;
    while (cut.first_part + cut.parts < parts && group_of(cut.first_part + cut.parts) == group) ++cut.parts;
    return cut;
}

TensorShard ParamTable::piece_of(int tensor, int64_t local, int part) const {
    const Tensor& t = tensors_[size_t(tensor)];
    const int64_t rows = t.shape.size() > 1 ? t.shape[0] : 1, cols = t.size / rows;
    TensorShard piece{tensor, rows, cols, 0, cols, local, true};
    if (t.split == Split::none) {
        piece.owned = part == 0;
        piece.parts = holding_.parts;
        return piece;
    }
    int64_t& extent = t.split == Split::rows ? piece.rows : piece.cols;
    const Cut cut = cut_groups(extent / t.grain, part, holding_.parts);
    extent = (cut.end - cut.begin) * t.grain;
    piece.first = cut.begin * t.grain * (t.split == Split::rows ? cols : 1);
    piece.first_part = cut.first_part;
    piece.parts = cut.parts;
    piece.owned = cut.first_part == part;
    return piece;
}

TensorShard ParamTable::part_of(const Tensor& t) const { return part_of(t, holding_.part); }
TensorShard ParamTable::part_of(const Tensor& t, int part) const {
    return piece_of(int(&t - tensors_.data()), within(t), part);
}

// Places each tensor's part within its unit, the same whichever units are held.
void ParamTable::cut(const LocalShard& holding) {
    require(holding.parts >= 1 && holding.part >= 0 && holding.part < holding.parts, "part %d of %d of a table",
            holding.part, holding.parts);
    holding_ = holding;
    for (const Unit& unit : units_) {
        int64_t size = 0;
        for (int t = unit.first_tensor; t < unit.first_tensor + unit.tensors; ++t) {
            within_.push_back(size);
            size += piece_of(t, 0, holding_.part).size();
        }
        part_padded_.push_back(make_unit(unit.name, 0, size, holding.sharers).padded);
    }
}

void ParamTable::hold() {
    std::vector<int> units = holding_.units;
    for (int u = 0; holding_.units.empty() && u < int(units_.size()); ++u) units.push_back(u);
    int64_t local = 0;
    for (size_t i = 0; i < units.size(); ++i) {
        const int u = units[i];
        require(u >= 0 && u < int(units_.size()) && (i == 0 || u > units[i - 1]),
                "a rank that holds unit %d: units 0 to %zu ascend", u, units_.size() - 1);
        const Unit& unit = units_[size_t(u)];
        const int64_t begin = local;
        std::vector<ElementRange> elsewhere;
        for (int t = unit.first_tensor; t < unit.first_tensor + unit.tensors; ++t) {
            TensorShard piece = piece_of(t, local, holding_.part);
            if (std::find(holding_.copies.begin(), holding_.copies.end(), u) != holding_.copies.end())
                piece.owned = false;
            held_.push_back(piece);
            if (!piece.owned) elsewhere.push_back({local - begin, local - begin + piece.size()});
            local += piece.size();
        }
        held_units_.push_back(make_unit(unit.name, begin, local - begin, holding_.sharers));
        held_units_.back().global_offset = unit.offset;
        held_units_.back().owned_by_other_rank = std::move(elsewhere);
        local = begin + held_units_.back().padded;
    }
}

void ParamTable::for_each_run(int64_t begin, int64_t end, int64_t most,
                              const std::function<void(const TensorRun&)>& body) const {
    require(most > 0, "runs of %ld elements", most);
    auto p = std::partition_point(held_.begin(), held_.end(),
                                  [&](const TensorShard& piece) { return piece.local + piece.size() <= begin; });
    for (; p != held_.end() && p->local < end; ++p) {
        const int64_t stop = std::min(end - p->local, p->size());
        for (int64_t at = std::max<int64_t>(begin - p->local, 0), count; at < stop; at += count) {
            const int64_t row = at / p->cols, col = at % p->cols;
            count = std::min(most, stop - at);
            if (p->cols < p->stride) count = std::min(count, p->cols - col);  // the next row is elsewhere in the tensor
            body({p->tensor, p->first + row * p->stride + col, count, p->local + at, p->owned});
        }
    }
}

const Tensor* ParamTable::find(std::string_view name) const {
    const auto it = by_name_.find(std::string(name));
    return it == by_name_.end() ? nullptr : &tensors_[size_t(it->second)];
}

const Tensor& ParamTable::block(int64_t layer, BlockTensor which) const {
    return tensors_[size_t(units_[size_t(layer) + 1].first_tensor + places_[which])];
}

const Tensor& ParamTable::final_norm() const { return tensors_[size_t(units_.back().first_tensor)]; }

const Tensor& ParamTable::head() const { return tied_ ? embedding() : tensors_.back(); }

std::vector<ParamTable::DecaySegment> ParamTable::decay_segments(bool embedding_decays,
                                                                 const std::vector<double>& rates) const {
    std::vector<DecaySegment> segments;
    size_t unit = 0;
    for (const TensorShard& p : held_) {
        while (p.local >= held_units_[unit].offset + held_units_[unit].padded) ++unit;
        const Tensor& t = tensors_[size_t(p.tensor)];
        const bool decay = t.decay && (embedding_decays || &t != &embedding());
        const double rate = rates.empty() ? 1 : rates[size_t(p.tensor)];
        if (!segments.empty() && segments.back().decay == decay && segments.back().rate == rate) continue;
        if (!segments.empty())
            segments.back().end = held_units_[unit].global_offset + p.local - held_units_[unit].offset;
        segments.push_back({0, decay, rate});
    }
    if (!segments.empty()) segments.back().end = held_units_.back().global_offset + held_units_.back().padded;
    return segments;
}

}  // namespace rz
