#include "llama/model/param_table.h"

#include <cmath>

#include "kernels/runtime/check.h"

namespace rz {

void ParamTable::add(std::string name, std::vector<int64_t> shape, Init init, double init_std) {
    int64_t size = 1;
    for (const int64_t extent : shape) size = checked_mul(size, extent, name.c_str());
    const bool decay = shape.size() > 1;
    by_name_.emplace(name, int(tensors_.size()));
    tensors_.push_back(
        {std::move(name), std::move(shape), int(units_.size()), size_ + unit_size_, size, decay, init, init_std});
    unit_size_ = checked_add(unit_size_, size, "size of a unit");
    parameters_ = checked_add(parameters_, size, "parameter count");
}

void ParamTable::end_unit(std::string name) {
    const int first = units_.empty() ? 0 : units_.back().first_tensor + units_.back().tensors;
    units_.push_back({make_unit(std::move(name), size_, unit_size_), first, int(tensors_.size()) - first});
    size_ = checked_add(size_, units_.back().padded, "size of the flat buffer");
    unit_size_ = 0;
}

ParamTable::ParamTable(const ModelConfig& c) : tied_(c.tied) {
    const double std = c.init_std;
    const double last_std = c.depth_scaled_init ? std / std::sqrt(2.0 * double(c.layers)) : std;
    const auto matrix = [&](std::string name, int64_t rows, int64_t cols, double init_std) {
        add(std::move(name), {rows, cols}, Init::kNormal, init_std);
    };
    matrix("model.embed_tokens.weight", c.vocab, c.dim, std);
    end_unit("embedding");
    for (int64_t l = 0; l < c.layers; ++l) {
        const std::string prefix = "model.layers." + std::to_string(l) + ".";
        add(prefix + "input_layernorm.weight", {c.dim}, Init::kOnes);
        matrix(prefix + "self_attn.q_proj.weight", c.q_rows(), c.dim, std);
        matrix(prefix + "self_attn.k_proj.weight", c.kv_rows(), c.dim, std);
        matrix(prefix + "self_attn.v_proj.weight", c.kv_rows(), c.dim, std);
        matrix(prefix + "self_attn.o_proj.weight", c.dim, c.q_rows(), last_std);
        add(prefix + "post_attention_layernorm.weight", {c.dim}, Init::kOnes);
        matrix(prefix + "mlp.gate_proj.weight", c.ffn, c.dim, std);
        matrix(prefix + "mlp.up_proj.weight", c.ffn, c.dim, std);
        matrix(prefix + "mlp.down_proj.weight", c.dim, c.ffn, last_std);
        end_unit("block " + std::to_string(l));
    }
    add("model.norm.weight", {c.dim}, Init::kOnes);
    if (!c.tied) matrix("lm_head.weight", c.vocab, c.dim, std);
    end_unit("head");
}

const Tensor* ParamTable::find(std::string_view name) const {
    const auto it = by_name_.find(std::string(name));
    return it == by_name_.end() ? nullptr : &tensors_[size_t(it->second)];
}

const Tensor& ParamTable::block(int64_t layer, BlockTensor which) const {
    return tensors_[size_t(units_[size_t(layer) + 1].first_tensor + which)];
}

const Tensor& ParamTable::final_norm() const { return tensors_[size_t(units_.back().first_tensor)]; }

const Tensor& ParamTable::head() const { return tied_ ? embedding() : tensors_.back(); }

std::vector<ParamTable::DecaySegment> ParamTable::decay_segments() const {
    std::vector<DecaySegment> segments;
    for (const Tensor& t : tensors_) {
        if (segments.empty() || segments.back().decay != t.decay) {
            if (!segments.empty()) segments.back().end = t.offset;
            segments.push_back({0, t.decay});
        }
    }
    if (!segments.empty()) segments.back().end = size_;
    return segments;
}

}  // namespace rz
