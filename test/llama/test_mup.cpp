// muP: factors by the paper's table, a run at the base width as one without, and layouts.
#include "llama/model/mup.h"

#include <gtest/gtest.h>

#include "llama/model/presets.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

ModelConfig wide(int64_t dim, bool tied = false) {
    ModelConfig c;
    c.dim = dim, c.layers = 6, c.heads = dim / 16, c.kv_heads = dim / 32, c.head_dim = 16, c.ffn = 3 * dim,
    c.vocab = 50;
    c.tied = tied;
    c.resolve();
    return c;
}

// Yang et al. 2022, table 8 (Adam): hidden matrices 1 / fan-in and variance 1 / fan-in; output multiplier 1 / fan-in
// with everything else of the output constant; input and vectors constant. The multiplier is the final norm's gain.
TEST(Mup, FactorsAreThePapers) {
    for (const bool tied : {false, true}) {
        const ModelConfig c = wide(256, tied);
        const ParamTable table(c);
        const std::vector<MupFactors> f = mup_table({.base_width = 64}, c, table);
        ASSERT_EQ(f.size(), table.tensors().size());
        for (size_t t = 0; t < f.size(); ++t) {
            const Tensor& tensor = table.tensors()[t];
            const bool hidden = tensor.unit > 0 && tensor.shape.size() == 2 && &tensor != &table.head();
            const bool last = &tensor == &table.final_norm();
            EXPECT_DOUBLE_EQ(f[t].rate, hidden || last ? 0.25 : 1) << tensor.name;
            EXPECT_DOUBLE_EQ(f[t].init, hidden ? 0.5 : last ? 0.25 : 1) << tensor.name;
        }
    }
    EXPECT_TRUE(mup_table({}, wide(64), ParamTable(wide(64))).empty());
    // CompleteP: six layers of a base of two add a third each; drawn as the base's, at 0.02 / sqrt(2 x 2).
    const ModelConfig c = wide(64);
    const ParamTable table(c);
    const Tensor& o = table.block(3, kO);
    const MupFactors f = mup_factors({.base_width = 64, .base_depth = 2, .base_head_dim = 4}, c, table,
                                     int(&o - table.tensors().data()));
    EXPECT_DOUBLE_EQ(f.rate, 1.0 / 3);
    EXPECT_DOUBLE_EQ(f.init * o.init_std, 0.02 / 2 / 3);
    const Tensor& q = table.block(3, kQ);
    EXPECT_DOUBLE_EQ(
        mup_factors({.base_width = 64, .base_head_dim = 4}, c, table, int(&q - table.tensors().data())).rate,
        0.5);  // 1 / sqrt(16) x 1/2 = 1 / 16 x sqrt(4)
}

TEST(Mup, OfTheBaseItselfChangesNoBit) {
    Layout plain{.config = toy(2), .steps = 3}, same = plain;
    same.mup = {.base_width = plain.config.dim};
    const Outcome want = train(plain), got = train(same);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.weights, want.weights);
}

// The first step of AdamW goes by the rate: |update| is lr x rate where the gradient is far above eps, and the decay is
// lr x decay whatever the rate.
TEST(Mup, RatesReachEveryTensorOnAnyLayout) {
    Layout one{.config = toy(2), .B = 3, .steps = 1, .rate = 1e-3f};
    one.mup = {.base_width = 12, .base_depth = 1};
    const Outcome start = train(with(one, "--steps 0")), want = train(one);
    const ParamTable table(one.config);
    const std::vector<MupFactors> f = mup_table(one.mup, one.config, table);
    for (size_t t = 0; t < f.size(); ++t) {
        std::vector<double> moved;
        for (size_t i = 0; i < want.weights[t].size(); ++i)
            moved.push_back(std::abs(double(want.weights[t][i]) -
                                     double(start.weights[t][i]) * (1 - (table.tensors()[t].decay ? 1e-4 : 0))));
        std::nth_element(moved.begin(), moved.begin() + long(moved.size() / 2), moved.end());
        if (t == 0) continue;  // most of its rows have no gradient
        EXPECT_NEAR(moved[moved.size() / 2], 1e-3 * f[t].rate, 0.02e-3 * f[t].rate) << table.tensors()[t].name;
    }
    const Layout longer = with(one, "--steps 3");
    expect_rows({"--tp 2", "--tp 4 --dp 3 --zero 3", "--dp 3 --zero 2", "--pp 2", "--tp 2 --dp 3 --pp 2 --zero 1"},
                longer, is_close_to(train(longer), how_far(longer)));
}

}  // namespace
}  // namespace rz
