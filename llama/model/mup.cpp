#include "llama/model/mup.h"

#include <cmath>

namespace rz {

MupFactors mup_factors(const Mup& mup, const ModelConfig& c, const ParamTable& table, int tensor) {
    const Tensor& t = table.tensors()[size_t(tensor)];
    const double m = double(c.dim) / double(mup.base_width);
    if (&t == &table.final_norm()) return {1 / m, 1 / m};
    const int blocks = int(table.units().size()) - 2;
    if (t.unit < 1 || t.unit > blocks || t.shape.size() < 2) return {};
    MupFactors f{1 / std::sqrt(m), 1 / m};
    const auto scale = [&](double x) { f.init *= x, f.rate *= x; };
    const int which = tensor - table.units()[size_t(t.unit)].first_tensor;
    if (which == kQ && mup.base_head_dim > 0) scale(std::sqrt(double(mup.base_head_dim) / double(c.head_dim)));
    if ((which == kO || which == kDown) && mup.base_depth > 0) {
        scale(double(mup.base_depth) / double(c.layers));
        if (c.branch_init < 0)
            f.init *= std::sqrt(double(c.layers) / double(mup.base_depth));  // 1 / sqrt(2 base depth)
    }
    return f;
}

std::vector<MupFactors> mup_table(const Mup& mup, const ModelConfig& c, const ParamTable& table) {
    std::vector<MupFactors> all;
    for (int t = 0; mup.on() && t < int(table.tensors().size()); ++t) all.push_back(mup_factors(mup, c, table, t));
    return all;
}

}  // namespace rz
