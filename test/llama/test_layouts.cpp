// The matrix of layouts: models and options, each on many cuts of ranks, against one rank. Pipelines' bits are in
// test_pipeline_layouts.cpp, and ZeRO's in test/zero/test_zero.cpp, which run under ThreadSanitizer too.

#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

// `steps` of four layers, which every row trains as one rank does. `bits`: rows that also give the bits.
void expect_as_one_rank(const Layout& one, const Rows& rows, const Rows& bits = {}) {
    const Outcome want = train(one);
    expect_rows(rows, one, is_close_to(want, how_far(one)));
    expect_rows(bits, one, has_the_bits_of(want));
}

Layout deep(const ModelConfig& config, const std::string& settings) {
    return with({.config = config}, "--layers 4 " + settings);
}

// ---- tensor parallelism ---------------------------------------------------------------------------------------------

TEST(TensorParallelModel, TrainsAsOneRankDoes) {
    const struct {
        int64_t kv_heads;
        Rows tp;
    } cases[] = {{1, {"2", "3", "4"}}, {2, {"2", "4"}}, {3, {"3"}}};
    for (const auto& [kv_heads, tp] : cases) {
        SCOPED_TRACE(kv_heads);
        expect_as_one_rank({.config = toy(kv_heads)}, each({"--tp"}, tp));
    }
}

// With three data ranks: gradients are summed over tp before the data axis, whatever the stage does then.
TEST(TensorParallelModel, TrainsAsOneRankDoesAtEveryZeroStage) {
    for (const bool tied : {false, true}) {
        SCOPED_TRACE(tied ? "tied" : "untied");
        expect_as_one_rank({.config = toy(2, tied), .B = 3, .micro_batches = 2, .steps = 4},
                           each({"--dp 3"}, {"--tp 2 --zero 0", "--tp 2 --zero 1", "--tp 2 --zero 2", "--tp 2 --zero 3",
                                             "--tp 4 --zero 0", "--tp 4 --zero 3"}));
    }
}

TEST(TensorParallelModel, TrainsAsOneRankDoesInAPipelineToo) {
    expect_as_one_rank(deep(toy(2), "--micro-batches 4 --steps 3"),
                       each({"--tp 2 --pp 2 --pp-schedule"},
                            {"1f1b --recompute block", "zb-v", "zb-v --dp 2 --zero 3 --accumulate-locally on",
                             "zb-h1 --dp 2 --zero 2 --shard-size 1 --recompute mlp", "dualpipe --recompute block",
                             "dualpipe --dp 2 --zero 3 --accumulate-locally on"}));
}

// Rows of a product on their own have the bits that they have among all rows, but for a library's: with that the
// losses are close.
TEST(TensorParallelModel, OverlapChangesNoBit) {
    const auto layout = [](int64_t kv_heads, const std::string& settings) {
        return deep(toy(kv_heads), "--micro-batches 2 --steps 3 " + settings);
    };
    const Layout on_two = layout(2, "--tp 2 --dp 2"), in_stages = layout(2, "--tp 2 --pp 2");
    for (const Layout& how : {on_two, in_stages})
        expect_rows({"--tp-overlap on"}, how, is_close_to(train(how), how_far(how)));
    const OwnGemm own;
    for (const Layout& how : {on_two, in_stages, layout(3, "--tp 3 --dp 2"), layout(2, "--tp 4 --dp 2")})
        expect_same_bits({"--tp-overlap on"}, how);
}

// ---- recomputation --------------------------------------------------------------------------------------------------

// "none" is another run with the same seed.
TEST(Recomputation, ChangesNoBit) {
    Rows rows;
    for (const Named<Recompute>& r : kNames<Recompute>) rows.push_back(std::string("--recompute ") + r.name);
    for (const char* settings : {"--tp 3", "--dtype fp32", "--dtype bf16"})
        expect_same_bits(rows, with({.config = toy(3)}, std::string("--steps 4 ") + settings));
}

// ---- parts of other architectures than a LLaMA's -----------------------------------------------------------------

// Biases, norms of heads, blocks without rotation, windows and norms after the branches on every kind of layout; where
// nothing is cut and no ranks are summed over, to the bit.
TEST(Architectures, TrainAsOneRankDoes) {
    const std::string settings = "--micro-batches 4 --steps 3";
    const Outcome plain = train(with({.config = toy(2)}, "--micro-batches 4 --steps 1"));
    for (const std::string name : {"qkv-bias", "qk-norm", "nope-every", "window", "post-norm"}) {
        SCOPED_TRACE(name);
        Layout one = deep(toy(2), settings);
        for (const ConfigSwitch& w : config_switches())
            if (name == w.name) one.config.*w.member = true;
        if (name == "nope-every") one.config.nope_every = 2;
        if (name == "window") one.config.window = 4;
        // As OLMo 2 begins: the smaller a last product's weights, the more of its norm an update is, and its rounding.
        if (name == "post-norm") one.config.branch_init = 1;
        EXPECT_NE(plain.norms[0][0], train(one).norms[0][0]) << "it changes what is computed";
        expect_as_one_rank(one,
                           {"--tp 2", "--tp 4" /* two ranks hold a head of keys */, "--dp 2 --zero 1",
                            "--dp 2 --zero 2", "--tp 2 --dp 2 --zero 3", "--tp 4 --recompute block --tp-overlap on",
                            "--tp 2 --pp 2 --pp-schedule dualpipe", "--tp 2 --dp 2 --pp 2 --zero 3 --pp-schedule zb-v"},
                           {"--recompute mlp", "--recompute block", "--pp 2 --pp-schedule 1f1b --recompute block",
                            "--pp 2 --pp-schedule zb-v", "--pp 4 --pp-schedule zb-h1"});
    }
}

// ---- z-loss, the decay of embeddings, muP, the average of weights -----------------------------------------------

const Rows kCuts = {"--tp 2",
                    "--tp 4 --dp 3 --zero 3 --logits-bytes 1048576",
                    "--dp 3 --zero 2",
                    "--dp 3 --zero 1",
                    "--pp 2 --pp-schedule zb-v",
                    "--dp 3 --pp 2 --zero 1 --pp-schedule 1f1b --logits-bytes 400",
                    "--tp 2 --pp 2 --pp-schedule zb-h1",
                    "--logits-bytes 1048576"};

TEST(ZLossLayouts, TrainsAsOneRankDoes) {
    Layout one = deep(toy(2), "--batch 3 --micro-batches 4 --steps 3"), none = one;
    one.z_loss = 0.02f;
    const Outcome want = train(one), without = train(none);
    EXPECT_EQ(without.losses[0], want.losses[0]) << "the loss stays the cross-entropy";
    EXPECT_NE(without.norms[0][0], want.norms[0][0]);
    EXPECT_NE(without.losses[2], want.losses[2]);
    // At the first step logits are small: lse is not far above log V.
    const double log_v = std::log(37.0);
    EXPECT_NEAR(want.z_losses[0], 0.02 * log_v * log_v * 8 / 9, 0.02 * log_v * log_v * 0.25);
    expect_rows(kCuts, one, [&](const Outcome& got) {
        expect_close(got, want, how_far(one));
        for (size_t s = 0; s < want.z_losses.size(); ++s)
            EXPECT_NEAR(got.z_losses[s], want.z_losses[s], 1e-5 * want.z_losses[s]) << "step " << s + 1;
    });
}

TEST(FlagLayouts, TrainAsOneRankDoes) {
    const Layout plain = deep(toy(2), "--batch 3 --micro-batches 2 --steps 2");
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
        SCOPED_TRACE(name);
        EXPECT_NE(train(one).weights, without);
        expect_as_one_rank(one, kCuts);
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
        const Outcome start = train(with(one, "--steps 0"));
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
        SCOPED_TRACE(config.tied ? "tied" : "untied");
        expect_rows({"--tp 2", "--dp 3 --zero 3", "--pp 2", "--tp 2 --dp 3 --zero 2"}, one,
                    [&](const Outcome& got) { EXPECT_EQ(rows_that_stay(got), config.vocab - kSeen); });
        const Outcome got = train(one);
        EXPECT_EQ(rows_that_stay(got), config.vocab - kSeen);
        for (size_t t = 1; t < got.weights.size(); ++t) EXPECT_EQ(got.weights[t], decays.weights[t]) << "tensor " << t;
    }
}

// The average of the weights after each of two updates, to the bit, on any layout; and the weights are those without.
TEST(Average, IsThatOfItsOwnWeightsOnAnyLayout) {
    struct Case {
        const char* settings;
        bool bf16 = false, muon = false;
    };
    for (const Case& c :
         {Case{""}, Case{"--dp 3 --zero 1"}, Case{"--dp 3 --zero 2", true}, Case{"--dp 3 --zero 3"}, Case{"--tp 2"},
          Case{"--tp 4 --dp 3 --zero 3", true}, Case{"--pp 2 --pp-schedule zb-v", true},
          Case{"--tp 2 --dp 3 --pp 2 --pp-schedule 1f1b --zero 2 --accumulate-locally on"},  // the head is tied
          Case{.settings = "", .muon = true}, Case{.settings = "--tp 2 --dp 3 --zero 3", .bf16 = true, .muon = true}}) {
        SCOPED_TRACE(std::string(c.settings) + (c.muon ? ", Muon" : ", AdamW"));
        Layout how = with({.config = toy(2), .B = 3, .micro_batches = 2, .steps = 2, .rate = 1e-2f}, c.settings);
        how.config.tied = how.pp > 1;
        how.zero.muon.on = c.muon;
        how = with(how, "--layers 4");
        Tensors want = train(with(how, "--steps 0")).weights, weights;
        for (const char* steps : {"--steps 1", "--steps 2"}) {
            weights = train(with(how, steps)).weights;
            for (size_t t = 0; t < want.size(); ++t)
                for (size_t i = 0; i < want[t].size(); ++i)
                    want[t][i] = std::fmaf(0.25f, weights[t][i] - want[t][i], want[t][i]);
        }
        Layout averages = how;
        averages.zero.ema = 0.75;
        const Outcome got = train(averages);
        EXPECT_EQ(got.averages, want);
        EXPECT_EQ(got.weights, weights);
        EXPECT_EQ(got.unequal, 0);
        if (!c.bf16) continue;
        const char* masters_apart = "--dtype bf16 --grad-dtype bf16 --wire-dtype bf16";
        const Outcome narrow = train(with(averages, masters_apart));
        EXPECT_EQ(narrow.weights, train(with(how, masters_apart)).weights);
        EXPECT_NE(narrow.averages, narrow.weights);
    }
}

}  // namespace
}  // namespace rz
