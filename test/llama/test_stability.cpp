// z-loss, the decay of embeddings and the average of weights over layouts: one rank's numbers on any other.
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

struct Cut {
    int tp, dp, pp, zero;
    PipelineKind schedule = {};
    int64_t logits_bytes = 1500;
    std::string text() const { return format("tp %d, dp %d, pp %d, ZeRO-%d", tp, dp, pp, zero); }
    Layout of(Layout one) const {
        one.tp = tp, one.dp = dp, one.pp = pp, one.zero.stage = zero, one.logits_bytes = logits_bytes;
        if (pp > 1) one.schedule = schedule;
        return one;
    }
};
const Cut kCuts[] = {{2, 1, 1, 0},
                     {4, 3, 1, 3, {}, 1 << 20},
                     {1, 3, 1, 2},
                     {1, 3, 1, 1},
                     {1, 1, 2, 0, PipelineKind::zb_v},
                     {1, 3, 2, 1, PipelineKind::f1b1, 400},
                     {2, 1, 2, 0, PipelineKind::zb_h1},
                     {1, 1, 1, 0, {}, 1 << 20}};

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
    for (const Cut& c : kCuts) {
        SCOPED_TRACE(c.text());
        const Outcome got = train(c.of(one));
        expect_close(got, want, 3 * double(one.rate));
        for (size_t s = 0; s < want.z_losses.size(); ++s)
            EXPECT_NEAR(got.z_losses[s], want.z_losses[s], 1e-5 * want.z_losses[s]) << "step " << s + 1;
    }
}

TEST(FlagLayouts, TrainAsOneRankDoes) {
    Layout plain{.config = toy(2), .B = 3, .micro_batches = 2, .steps = 2};
    plain.config.layers = 4;
    Layout no_decay = plain, init_scale = plain, mup = plain, skips = plain;
    no_decay.decay_embeddings = false;
    init_scale.config.branch_init = 1;
    mup.mup = {.base_width = 12, .base_depth = 2, .base_head_dim = 2};
    skips.left_out = 1;
    const Tensors without = train(plain).weights;
    for (const auto& [name, one] : {std::pair("--decay-embeddings off", no_decay),
                                    {"--init-scale 1", init_scale},
                                    {"--mup-base-width", mup},
                                    {"--on-spike skip", skips}}) {
        const Outcome want = train(one);
        EXPECT_NE(want.weights, without) << name;
        for (const Cut& c : kCuts) {
            SCOPED_TRACE(name + (" on " + c.text()));
            expect_close(train(c.of(one)), want, 2 * double(one.rate));
        }
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

// The average of the weights after each of two updates, to the bit, on any layout; and the weights are those without.
TEST(Average, IsThatOfItsOwnWeightsOnAnyLayout) {
    struct Case {
        int tp, dp, pp, zero;
        bool bf16 = false;
        PipelineKind schedule = PipelineKind::f1b1;
        bool muon = false;
    };
    for (const Case& c : {Case{1, 1, 1, 0}, Case{1, 3, 1, 1}, Case{1, 3, 1, 2, true}, Case{1, 3, 1, 3},
                          Case{2, 1, 1, 0}, Case{4, 3, 1, 3, true}, Case{1, 1, 2, 0, true, PipelineKind::zb_v},
                          Case{2, 3, 2, 2}, Case{.tp = 1, .dp = 1, .pp = 1, .zero = 0, .muon = true},
                          Case{.tp = 2, .dp = 3, .pp = 1, .zero = 3, .bf16 = true, .muon = true}}) {
        SCOPED_TRACE(format("tp %d, dp %d, pp %d, ZeRO-%d, %s", c.tp, c.dp, c.pp, c.zero, c.muon ? "Muon" : "AdamW"));
        Layout how{.config = toy(2, /*tied=*/c.pp > 1), .tp = c.tp, .dp = c.dp, .pp = c.pp, .B = 3};
        how.config.layers = 4, how.micro_batches = 2, how.rate = 1e-2f;
        how.zero.stage = c.zero, how.zero.accumulate_locally = c.pp > 1 && c.zero >= 2;  // the head is tied
        how.zero.muon.on = c.muon;
        if (c.pp > 1) how.schedule = c.schedule;
        Tensors want;
        for (how.steps = 0; how.steps <= 2; ++how.steps) {
            how.zero.ema = 0;
            const Outcome plain = train(how);
            if (how.steps == 0) want = plain.weights;
            for (size_t t = 0; t < want.size(); ++t)
                for (size_t i = 0; i < want[t].size(); ++i)
                    want[t][i] = std::fmaf(0.25f, plain.weights[t][i] - want[t][i], want[t][i]);
            if (how.steps < 2) continue;
            how.zero.ema = 0.75;
            const Outcome got = train(how);
            EXPECT_EQ(got.averages, want);
            EXPECT_EQ(got.weights, plain.weights);
            EXPECT_EQ(got.unequal, 0);
            if (!c.bf16) continue;
            how.zero.param_dtype = how.zero.grad_dtype = how.zero.wire_dtype = DType::bf16;  // masters apart
            const Outcome narrow = train(how);
            how.zero.ema = 0;
            EXPECT_EQ(narrow.weights, train(how).weights);
            EXPECT_NE(narrow.averages, narrow.weights);
            how.zero.param_dtype = how.zero.grad_dtype = how.zero.wire_dtype = DType::f32;
        }
    }
}

}  // namespace
}  // namespace rz
