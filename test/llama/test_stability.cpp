// z-loss and the decay of embeddings over layouts: one rank's numbers on any other.
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

TEST(ZLossLayouts, TrainsAsOneRankDoes) {
    Layout one{.config = toy(2), .B = 3, .micro_batches = 4, .steps = 3, .z_loss = 0.02f};
    one.config.layers = 4;
    Layout none = one;
    none.z_loss = 0;
    const Outcome want = train(one), without = train(none);
    EXPECT_EQ(without.losses[0], want.losses[0]) << "the loss stays the cross-entropy";
    EXPECT_NE(without.norms[0][0], want.norms[0][0]);
    EXPECT_NE(without.losses[2], want.losses[2]);
    // At the first step logits are small: lse is not far above log V.
    const double log_v = std::log(37.0);
    EXPECT_NEAR(want.z_losses[0], 0.02 * log_v * log_v * 8 / 9, 0.02 * log_v * log_v * 0.25);
    struct Case {
        int tp, dp, pp, zero;
        PipelineKind schedule;
        int64_t logits_bytes;
    };
    for (const Case& c : {Case{2, 1, 1, 0, {}, 1500}, Case{4, 3, 1, 3, {}, 1 << 20}, Case{1, 3, 1, 2, {}, 1500},
                          Case{1, 1, 2, 0, PipelineKind::zb_v, 1500}, Case{1, 3, 2, 1, PipelineKind::f1b1, 400},
                          Case{2, 1, 2, 0, PipelineKind::zb_h1, 1500}, Case{1, 1, 1, 0, {}, 1 << 20}}) {
        SCOPED_TRACE(format("tp %d, dp %d, pp %d, ZeRO-%d", c.tp, c.dp, c.pp, c.zero));
        Layout cut = one;
        cut.tp = c.tp, cut.dp = c.dp, cut.pp = c.pp, cut.zero.stage = c.zero, cut.logits_bytes = c.logits_bytes;
        if (c.pp > 1) cut.schedule = c.schedule;
        const Outcome got = train(cut);
        expect_close(got, want, 3 * double(one.rate));
        for (size_t s = 0; s < want.z_losses.size(); ++s)
            EXPECT_NEAR(got.z_losses[s], want.z_losses[s], 1e-5 * want.z_losses[s]) << "step " << s + 1;
    }
}

// A token that no batch holds has no gradient: AdamW leaves its row as it is, but for the decay.
TEST(DecayEmbeddings, RowsWithoutGradientStayToTheBit) {
    const ModelConfig untied = toy(2), tied = toy(2, true);
    constexpr int64_t kSeen = 10;
    for (const ModelConfig& config : {untied, tied}) {
        Layout one{.config = config, .B = 3, .steps = 1};
        for (int64_t i = 0; i < 3 * kT; ++i) {
            one.inputs.push_back(int32_t(i % kSeen));
            one.targets.push_back(config.tied ? kIgnoreTarget : int32_t((i + 1) % kSeen));  // a tied head has one
        }
        Layout none = one;
        none.steps = 0;
        const Outcome start = train(none);
        const auto rows_that_stay = [&](const Outcome& got) {
            EXPECT_EQ(got.unequal, 0);
            int64_t rows = 0;
            for (int64_t v = kSeen; v < config.vocab; ++v)
                rows +=
                    std::equal(got.weights[0].begin() + v * config.dim, got.weights[0].begin() + (v + 1) * config.dim,
                               start.weights[0].begin() + v * config.dim);
            return rows;
        };
        const Outcome decays = train(one);
        EXPECT_EQ(rows_that_stay(decays), 0) << "the default decays";
        one.decay_embeddings = false;
        for (const auto& [tp, dp, pp, zero] :
             {std::array{1, 1, 1, 0}, {2, 1, 1, 0}, {1, 3, 1, 3}, {1, 1, 2, 0}, {2, 3, 1, 2}}) {
            Layout cut = one;
            cut.tp = tp, cut.dp = dp, cut.pp = pp, cut.zero.stage = zero;
            SCOPED_TRACE(format("tp %d, dp %d, pp %d, ZeRO-%d, %s", tp, dp, pp, zero, config.tied ? "tied" : "untied"));
            const Outcome got = train(cut);
            EXPECT_EQ(rows_that_stay(got), config.vocab - kSeen);
            if (tp * dp * pp > 1) continue;
            for (size_t t = 1; t < got.weights.size(); ++t)
                EXPECT_EQ(got.weights[t], decays.weights[t]) << "tensor " << t;
        }
    }
}

}  // namespace
}  // namespace rz
