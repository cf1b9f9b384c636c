// --stats-every: against sums and products in double that are written out here, and at other layouts.

#include <gtest/gtest.h>

#include <cmath>

#include "llama/base/json.h"
#include "llama/model/presets.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using layout_runs::Layout;
using layout_runs::Outcome;
using layout_runs::Tensors;

double norm_of(const std::vector<float>& x) {
    double sum = 0;
    for (const float v : x) sum += double(v) * double(v);
    return std::sqrt(sum);
}

// The input of block 0, and the logits of its attention, of the step's sequences.
struct FirstBlock {
    double residual_rms = 0, largest_logit = -INFINITY;

    FirstBlock(const Layout& how, const Tensors& weights) {
        const ModelConfig& c = how.config;
        const ParamTable table(c);
        const auto of = [&](const Tensor& t) -> const std::vector<float>& {
            return weights[size_t(&t - table.tensors().data())];
        };
        const int64_t all = how.B * how.micro_batches, C = c.dim, D = c.head_dim;
        std::vector<int32_t> tokens(size_t(all * how.T)), targets(tokens.size());
        layout_runs::draw(0, all, how.T, c.vocab, tokens.data(), targets.data());
        double squares = 0;
        for (int64_t s = 0; s < all; ++s) {
            std::vector<std::vector<double>> h;
            for (int64_t t = 0; t < how.T; ++t) {
                const float* row = &of(table.embedding())[size_t(tokens[size_t(s * how.T + t)] * C)];
                double mean = 0;
                for (int64_t i = 0; i < C; ++i) mean += double(row[i]) * double(row[i]) / double(C);
                squares += mean;
                h.emplace_back();
                for (int64_t i = 0; i < C; ++i)
                    h.back().push_back(double(row[i]) / std::sqrt(mean + c.norm_eps) *
                                       double(of(table.block(0, kNorm1))[size_t(i)]));
            }
            // Head `head` of a projection at position t, rotated: pairs are D / 2 apart.
            const auto rotated = [&](BlockTensor which, int64_t head, int64_t t) {
                std::vector<double> x(static_cast<size_t>(D), 0), y(x);
                for (int64_t d = 0; d < D; ++d)
                    for (int64_t i = 0; i < C; ++i)
                        x[size_t(d)] +=
                            h[size_t(t)][size_t(i)] * double(of(table.block(0, which))[size_t((head * D + d) * C + i)]);
                for (int64_t d = 0; d < D / 2; ++d) {
                    const double angle = double(t) * std::pow(c.rope_theta, -2.0 * double(d) / double(D));
                    const double a = x[size_t(d)], b = x[size_t(d + D / 2)];
                    y[size_t(d)] = a * std::cos(angle) - b * std::sin(angle);
                    y[size_t(d + D / 2)] = b * std::cos(angle) + a * std::sin(angle);
                }
                return y;
            };
            for (int64_t head = 0; head < c.heads; ++head)
                for (int64_t t = 0; t < how.T; ++t)
                    for (int64_t j = 0; j <= t; ++j) {
                        const auto q = rotated(kQ, head, t), k = rotated(kK, head / (c.heads / c.kv_heads), j);
                        double logit = 0;
                        for (int64_t d = 0; d < D; ++d) logit += q[size_t(d)] * k[size_t(d)];
                        largest_logit = std::max(largest_logit, logit / std::sqrt(double(D)));
                    }
        }
        residual_rms = std::sqrt(squares / double(all * how.T));
    }
};

TEST(Statistics, AreThoseOfSumsInDouble) {
    Layout how{.micro_batches = 2, .steps = 0};
    const Tensors before = layout_runs::train(how).weights;
    how.steps = 1, how.statistics = true;
    const Outcome one = layout_runs::train(how);
    const Json json = parse_json(one.statistics, "statistics");
    const ParamTable table(how.config);
    ASSERT_EQ(json.at("tensors").size(), table.tensors().size());
    for (size_t t = 0; t < before.size(); ++t) {
        const Json& found = json.at("tensors").at(table.tensors()[t].name);
        std::vector<float> change = one.weights[t];
        double squares = 0;
        for (size_t i = 0; i < change.size(); ++i) squares += std::pow(double(change[i]) - double(before[t][i]), 2);
        SCOPED_TRACE(table.tensors()[t].name);
        // Sums of the same floats in double, printed with seven digits.
        EXPECT_NEAR(found.at("grad_norm"), norm_of(one.gradients[t]), 1e-6 * norm_of(one.gradients[t]));
        EXPECT_NEAR(found.at("norm"), norm_of(before[t]), 1e-6 * norm_of(before[t]));
        const double ratio = std::sqrt(squares) / norm_of(before[t]);
        EXPECT_GT(ratio, 0);
        EXPECT_NEAR(found.at("update_ratio"), ratio, 1e-6 * ratio);
    }
    const FirstBlock want(how, before);
    const Json& block = json.at("blocks").at(0);
    // fp32: the norm's sum of 48 squares, its root and reciprocal; products of 48 terms, twice, and of 4. What a logit
    // is too large by is at most ln 11 / 65536.
    EXPECT_NEAR(block.at("residual_rms"), want.residual_rms, 1e-5 * want.residual_rms);
    EXPECT_NEAR(block.at("largest_logit"), want.largest_logit, 2e-5 * want.largest_logit + std::log(11) / 65536);
    EXPECT_EQ(json.at("blocks").size(), size_t(how.config.layers));
}

// Gradients are rounded in another order; the largest logit of many equal ones is up to ln 11 / 65536 too large.
void expect_same(const Json& got, const Json& want, const std::string& where) {
    if (want.is_structured()) {
        ASSERT_EQ(got.size(), want.size()) << where;
        for (const auto& [key, value] : want.items())
            expect_same(want.is_array() ? got.at(std::stoul(key)) : got.at(key), value, where + "/" + key);
        return;
    }
    ASSERT_TRUE(want.is_number() && got.is_number()) << where;
    EXPECT_NEAR(got.get<double>(), want.get<double>(), 5e-5 * std::abs(want.get<double>()) + 5e-5) << where;
}

TEST(Statistics, DoNotDependOnTheLayout) {
    Layout one{.B = 4, .micro_batches = 2, .steps = 2, .statistics = true};
    const Json want = parse_json(layout_runs::train(one).statistics, "one rank");
    layout_runs::expect_rows(
        {"--dp 2 --zero 0", "--dp 2 --zero 1", "--dp 2 --zero 2", "--dp 2 --zero 3", "--dp 4 --shard-size 2 --zero 3",
         "--tp 3", "--tp 3 --dp 2 --zero 3", "--pp 2 --pp-schedule 1f1b",
         "--pp 2 --pp-schedule dualpipe --batch 2 --micro-batches 4",  // a stage on both ranks
         "--recompute block"},
        one, [&](const Outcome& got) { expect_same(parse_json(got.statistics, "statistics"), want, ""); });
}

}  // namespace
}  // namespace rz
