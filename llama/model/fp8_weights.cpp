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
}

BlockWeights Fp8Weights::weights(Stream& s, const Block& block, int unit, const void* parameters, int64_t version) {
    BlockWeights w = block.weights(parameters);
    Unit& u = units_[size_t(unit)];
    if (u.number < 0) return w;
    Operand* const of[kMatrices] = {&w.qkv, &w.out, &w.gate_up, &w.down};
    Fp8Scale* const scales = scales_.as<Fp8Scale>() + u.number * kMatrices;
    if (std::exchange(u.version, version) != version) {
        s.zero(scales, kMatrices * int64_t(sizeof(Fp8Scale)));
        for (int m = 0; m < kMatrices; ++m)
            abs_max(s, {.scale = scales + m,
                        .x = of[m]->data,
                        .n = sides_[size_t(m)].rows * sides_[size_t(m)].columns,
                        .dtype = dtype_});
    }
    for (int m = 0; m < kMatrices; ++m) of[m]->measured = scales + m;
    return w;
}

}  // namespace rz
