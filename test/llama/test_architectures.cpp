// Parts of other architectures beside a LLaMA's, on every kind of layout.

#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

// Biases, norms of heads, blocks without rotation, windows and norms after the branches on every kind of layout; where
// nothing is cut and no ranks are summed over, to the bit.
TEST(Architectures, TrainAsOneRankDoes) {
    struct Cut {
        int tp, dp, pp, stage;
        std::optional<PipelineKind> schedule = {};
        Recompute recompute = Recompute::none;
        bool overlap = false;
    };
    const Cut cuts[] = {{2, 1, 1, 0},
                        {4, 1, 1, 0},  // two ranks hold a head of keys
                        {1, 2, 1, 1},
                        {1, 2, 1, 2},
                        {2, 2, 1, 3},
                        {4, 1, 1, 0, {}, Recompute::block, true},
                        {1, 1, 1, 0, {}, Recompute::mlp},
                        {1, 1, 1, 0, {}, Recompute::block},
                        {1, 1, 2, 0, PipelineKind::f1b1, Recompute::block},
                        {1, 1, 2, 0, PipelineKind::zb_v},
                        {1, 1, 4, 0, PipelineKind::zb_h1},
                        {2, 1, 2, 0, PipelineKind::dualpipe},
                        {2, 2, 2, 3, PipelineKind::zb_v}};
    for (const char* name : {"qkv-bias", "qk-norm", "nope-every", "window", "post-norm"}) {
        Layout one{.config = toy(2), .micro_batches = 4, .steps = 3};
        one.config.layers = 4;
        for (const ConfigSwitch& w : config_switches())
            if (std::string_view(w.name) == name) one.config.*w.member = true;
        if (std::string_view(name) == "nope-every") one.config.nope_every = 2;
        if (std::string_view(name) == "window") one.config.window = 4;
        // As OLMo 2 begins: the smaller a last product's weights, the more of its norm an update is, and its rounding.
        if (std::string_view(name) == "post-norm") one.config.branch_init = 1;
        const Outcome plain = train({.config = toy(2), .micro_batches = 4, .steps = 1}), want = train(one);
        EXPECT_NE(plain.norms[0][0], want.norms[0][0]) << name << " changes what is computed";
        for (const Cut& c : cuts) {
            SCOPED_TRACE(format("%s, tp %d, dp %d, pp %d, ZeRO-%d", name, c.tp, c.dp, c.pp, c.stage));
            Layout cut = one;
            cut.tp = c.tp, cut.dp = c.dp, cut.pp = c.pp, cut.zero.stage = c.stage;
            cut.schedule = c.schedule, cut.recompute = c.recompute, cut.overlap = c.overlap;
            const Outcome got = train(cut);
            expect_close(got, want, 3 * double(one.rate));
            if (c.tp * c.dp == 1) {
                EXPECT_EQ(got.weights, want.weights);
            }
        }
    }
}

}  // namespace
}  // namespace rz
