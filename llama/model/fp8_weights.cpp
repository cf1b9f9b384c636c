#include "llama/model/fp8_weights.h"

#include <algorithm>
#include <utility>

namespace rz {

Fp8Weights::Fp8Weights(const ModelConfig& c, const ParamTable& table, const Fp8Options& o, DType dtype, Device device)
    : recipe_(o.recipe), dtype_(dtype), units_(table.units().size()) {
    const ModelConfig part = part_config(c, table);
    const std::array<std::pair<int64_t, int64_t>, kMatrices> sides = {
        {{part.qkv_rows(), c.dim}, {c.dim, part.q_rows()}, {2 * part.ffn, c.dim}, {c.dim, part.ffn}}};
    for (size_t m = 0; m < sides.size(); ++m) {
        const auto [rows, columns] = sides[m];
        matrices_[m] = {rows, columns, fp8_weight_scale_bytes(recipe_, rows, columns),
                        fp8_weight_scale_bytes(recipe_, columns, rows)};
        elements_ += matrices_[m].size();
        scale_bytes_ += matrices_[m].scale_bytes, scale_bytes_t_ += matrices_[m].scale_bytes_t;
    }
    const std::vector<int>& held = table.holding().units;  // none: all
    int64_t kept = 0;
    for (int unit = 1; unit <= int(c.layers); ++unit)
        if (o.covers(unit - 1, c.layers) && (held.empty() || std::count(held.begin(), held.end(), unit) > 0))
            units_[size_t(unit)].number = kept++;
    scales_ = Buffer(device, kept * scale_bytes_, MemKind::workspace, "fp8 scales of the weights");
    if (!o.keep_weights) return;
    const int64_t bytes = checked_mul(kept, elements_, "fp8 codes");
    codes_ = Buffer(device, bytes, MemKind::parameters, "fp8 codes of the weights");
    codes_t_ = Buffer(device, bytes, MemKind::parameters, "fp8 codes of the weights, transposed");
    if (!one_scale())
        scales_t_ = Buffer(device, kept * scale_bytes_t_, MemKind::workspace, "fp8 scales of the weights, transposed");
}

void Fp8Weights::quantise(Stream& s, const Kept& kept, const Matrix& m, const void* x) const {
    const auto made = [&](auto how) {
        how.y = kept.codes, how.y_t = kept.codes_t, how.x = x;
        how.rows = m.rows, how.columns = m.columns, how.dtype = dtype_;
        return how;
    };
    const auto tiles = [&]<class Scale>(auto how, Scale*) {
        how.scales = static_cast<Scale*>(kept.scales), how.scales_t = static_cast<Scale*>(kept.scales_t);
        return made(how);
    };
    if (recipe_ == Fp8Recipe::mx) return quantise_mx(s, tiles(QuantiseMx{}, static_cast<uint8_t*>(nullptr)));
    if (recipe_ == Fp8Recipe::block) {
        QuantiseBlocks how = tiles(QuantiseBlocks{}, static_cast<float*>(nullptr));
        how.tiles = Fp8Tiles::squares;
        return quantise_blocks(s, how);
    }
    Quantise how = made(Quantise{});
    how.scale = static_cast<Fp8Scale*>(kept.scales), how.type = Fp8::e4m3;
    rz::quantise(s, how);
}

BlockWeights Fp8Weights::weights(Stream& s, const Block& block, int unit, const void* parameters, int64_t version) {
    BlockWeights w = block.weights(parameters);
    Unit& u = units_[size_t(unit)];
    if (u.number < 0) return w;
    Operand* const of[kMatrices] = {&w.qkv, &w.out, &w.gate_up, &w.down};
    const bool stale = std::exchange(u.version, version) != version;
    int64_t at = u.number * elements_, scale = u.number * scale_bytes_, scale_t = u.number * scale_bytes_t_;
    if (stale && one_scale()) s.zero(scales_.bytes_at(scale), scale_bytes_);
    for (int m = 0; m < kMatrices; ++m) {
        const Matrix& matrix = matrices_[size_t(m)];
        Operand& x = *of[m];
        const void* const numbers = x.data;
        Kept kept{.scales = scales_.bytes_at(scale)};
        kept.scales_t = one_scale() ? kept.scales : scales_t_.bytes_at(scale_t);
        if (one_scale()) {
            x.measured = static_cast<Fp8Scale*>(kept.scales);
            if (stale) abs_max(s, {.scale = x.measured, .x = numbers, .n = matrix.size(), .dtype = dtype_});
        }
        if (codes_) {
            kept.codes = codes_.as<uint8_t>() + at, kept.codes_t = codes_t_.as<uint8_t>() + at;
            if (stale) quantise(s, kept, matrix, numbers);
            x = Operand::coded(kept.codes, nullptr);
            x.codes_t = kept.codes_t, x.scales = kept.scales, x.scales_t = kept.scales_t;
        }
        at += matrix.size(), scale += matrix.scale_bytes, scale_t += matrix.scale_bytes_t;
    }
    return w;
}

}  // namespace rz
