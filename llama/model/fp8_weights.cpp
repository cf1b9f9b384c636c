#include "llama/model/fp8_weights.h"

#include <algorithm>
#include <utility>

namespace rz {

Fp8Weights::Fp8Weights(const ModelConfig& c, const ParamTable& table, const Fp8Options& o, DType dtype, Device device)
    : dtype_(dtype), units_(table.units().size()) {
    const ModelConfig part = part_config(c, table);
    sides_ = {{{part.qkv_rows(), c.dim}, {c.dim, part.q_rows()}, {2 * part.ffn, c.dim}, {c.dim, part.ffn}}};
    const std::vector<int>& held = table.holding().units;  // none: all
    int64_t kept = 0;
    for (int unit = 1; unit <= int(c.layers); ++unit)
        if (o.covers(unit - 1, c.layers) && (held.empty() || std::count(held.begin(), held.end(), unit) > 0))
            units_[size_t(unit)].number = kept++;
    scales_ =
        Buffer(device, kept * kMatrices * int64_t(sizeof(Fp8Scale)), MemKind::workspace, "fp8 scales of the weights");
    for (const Sides& s : sides_) elements_ += s.size();
    if (!o.keep_weights) return;
    const int64_t bytes = checked_mul(kept, elements_, "fp8 codes");
    codes_ = Buffer(device, bytes, MemKind::parameters, "fp8 codes of the weights");
    codes_t_ = Buffer(device, bytes, MemKind::parameters, "fp8 codes of the weights, transposed");
}

BlockWeights Fp8Weights::weights(Stream& s, const Block& block, int unit, const void* parameters, int64_t version) {
    BlockWeights w = block.weights(parameters);
    Unit& u = units_[size_t(unit)];
    if (u.number < 0) return w;
    Operand* const of[kMatrices] = {&w.qkv, &w.out, &w.gate_up, &w.down};
    Fp8Scale* const scales = scales_.as<Fp8Scale>() + u.number * kMatrices;
    const bool stale = std::exchange(u.version, version) != version;
    if (stale) s.zero(scales, kMatrices * int64_t(sizeof(Fp8Scale)));
    int64_t at = u.number * elements_;
    for (int m = 0; m < kMatrices; ++m) {
        const Sides& sides = sides_[size_t(m)];
        Operand& x = *of[m];
        x.measured = scales + m;
        if (stale) abs_max(s, {.scale = scales + m, .x = x.data, .n = sides.size(), .dtype = dtype_});
        if (!codes_) continue;
        uint8_t *codes = codes_.as<uint8_t>() + at, *codes_t = codes_t_.as<uint8_t>() + at;
        if (stale)
            quantise(s, {.y = codes,
                         .y_t = codes_t,
                         .scale = scales + m,
                         .x = x.data,
                         .rows = sides.rows,
                         .columns = sides.columns,
                         .type = Fp8::e4m3,
                         .dtype = dtype_});
        x = Operand::coded(codes, scales + m);
        x.codes_t = codes_t;
        at += sides.size();
    }
    return w;
}

}  // namespace rz
