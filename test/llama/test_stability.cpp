// z-loss over layouts: one rank's numbers on any other.
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
    // At the first step logits are small: lse is log V to a few per cent.
    const double log_v = std::log(37.0);
    EXPECT_NEAR(want.z_losses[0], 0.02 * log_v * log_v * 8 / 9, 0.02 * log_v * log_v * 0.1);
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

}  // namespace
}  // namespace rz
