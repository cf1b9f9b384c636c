// Pipelines trained on threads: each schedule gives the weights of one rank, to the bit; where ranks hold the same
// parameters (DualPipe's two copies, tied heads), those of sums in another order.
//
// Under ThreadSanitizer (build/tsan/tests) these look for races between the stages of whole models: a send reads the
// sender's memory in place, so a slot that is used too early, on either side, is a race. Fewer cases, of two steps.

#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

#ifdef __SANITIZE_THREAD__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kSteps = kSanitized ? 2 : 10;  // the sanitizer looks at the order of accesses, and slots are used again
Rows cases_of(const Rows& all, const Rows& sanitized) { return kSanitized ? sanitized : all; }

Layout deep_layout(int layers, const std::string& settings = "") {
    Layout one{.config = toy(3), .B = 1, .micro_batches = 12, .steps = kSteps};
    one.config.layers = layers;
    return with(one, settings);
}

// Every step is clipped (at a norm of 0.5), so a norm that differs on one rank would move all weights.
void expect_bits(const Rows& rows, const Layout& one) {
    const Outcome want = train(one);
    for (const float norm : want.norms[0]) EXPECT_GT(norm, 0.5f) << "not clipped";
    expect_rows(rows, one, has_the_bits_of(want));
}

// Schedules that keep one copy of each parameter.
const Rows kOneCopy = each({"--pp-schedule"}, {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"});

TEST(PipelineBits, EveryScheduleHasTheBitsOfOneRank) {
    expect_bits(each(cases_of({"--pp 2", "--pp 3", "--pp 4"}, {"--pp 3"}), kOneCopy), deep_layout(8));
}

// If the backward pass is in halves, the first one recomputes, and the other finds what it reads.
TEST(PipelineBits, RecomputationBeforeEachHalfChangesNoBit) {
    expect_bits(
        each(each({"--pp 3 --pp-schedule"}, {"zb-h1", "zb-v", "dualpipev"}), {"--recompute mlp", "--recompute block"}),
        deep_layout(6, "--micro-batches 6 --dtype bf16"));
}

// Gradients are added in bf16, and rounded at each addition: the order shows at once.
TEST(PipelineBits, InBf16TheSameOrderOfRoundings) {
    expect_bits(each({"--pp 3 --pp-schedule"}, cases_of({"1f1b", "zb-v"}, {"1f1b"})),
                deep_layout(6, "--dtype bf16 --grad-dtype bf16"));
}

const Rows kStagesOnce =
    cases_of({"--zero 0", "--zero 1", "--zero 2 --accumulate-locally on", "--zero 3 --accumulate-locally on"},
             {"--zero 0", "--zero 3 --accumulate-locally on"});

// Three data ranks, whose sums depend on their order, at every ZeRO stage.
TEST(PipelineBits, EveryZeroStageHasTheBitsOfItsDataRanksAlone) {
    expect_bits(each(kStagesOnce, each({"--pp 2 --pp-schedule"}, cases_of({"1f1b", "zb-v", "dualpipev"}, {"zb-v"}))),
                deep_layout(4, "--dp 3 --batch 3 --micro-batches 4"));
}

// Two data ranks of which one has the first half of the micro-batches and one the second: each sums its own, and the
// sum of two is the same in any order.
TEST(DualPipe, HasTheBitsOfTheSumOfTheTwoHalves) {
    for (const int pp : kSanitized ? std::vector{4} : std::vector{2, 4, 6}) {
        SCOPED_TRACE(format("pp %d", pp));
        const Layout dual = deep_layout(pp, format("--pp %d --pp-schedule dualpipe --micro-batches %d", pp, 2 * pp));
        Layout halves = deep_layout(pp, format("--dp 2 --batch 2 --micro-batches %d", pp));
        halves.halves = true;
        expect_the_bits(train(dual), train(halves));
    }
}

// With three data ranks, at every ZeRO stage: sums of more than two depend on the order.
TEST(DualPipe, TrainsAsOneRankDoesAtEveryZeroStage) {
    const Layout one = with({.config = toy(2), .B = 3, .micro_batches = 4, .steps = 4}, "--layers 4");
    expect_rows(each({"--pp 2 --dp 3 --pp-schedule dualpipe"}, kSanitized ? Rows{kStagesOnce.back()} : kStagesOnce),
                one, is_close_to(train(one), 4 * double(one.rate)));
}

// A tied head's gradient is the sum of 2 M terms, of each micro-batch one as embedding and one as head, which are the
// same bits everywhere; a pipeline adds them in another order. In fp32 n terms t, added in any order, come within
// (n - 1) 2^-24 sum |t| of their sum (Higham 2002, section 4.2, to first order), so two orders within twice that.
TEST(TiedHead, DiffersByTheOrderOfItsSumOnly) {
    constexpr int64_t kMicroBatches = 4;
    const OwnGemm own;  // adds a micro-batch's share in one rounding
    Layout one{.config = toy(3, /*tied=*/true), .B = 1, .micro_batches = kMicroBatches, .steps = 1};
    one.config.layers = 4;
    one.logits_bytes = 1 << 20;
    const std::vector<float> want = train(one).gradients[0];
    std::vector<double> sizes(want.size(), 0);
    std::vector<bool> looked_up(want.size(), false);
    Layout apart = one;
    apart.config.tied = false, apart.head_is_embedding = true;
    apart.micro_batches = 1, apart.scale_micro_batches = kMicroBatches;
    for (int64_t m = 0; m < kMicroBatches; ++m) {
        apart.first_micro_batch = m;
        const Outcome terms = train(apart);
        for (size_t i = 0; i < want.size(); ++i) {
            sizes[i] += std::abs(double(terms.gradients[0][i])) + std::abs(double(terms.gradients.back()[i]));
            looked_up[i] = looked_up[i] || terms.gradients[0][i] != 0;
        }
    }
    expect_rows(cases_of({"--pp 2 --pp-schedule 1f1b", "--pp 3 --pp-schedule zb-h1", "--pp 2 --pp-schedule zb-v",
                          "--pp 4 --pp-schedule gpipe"},
                         {"--pp 3 --pp-schedule zb-h1"}),
                one, [&](const Outcome& got) {
                    EXPECT_EQ(got.unequal, 0) << "both holders add the same two numbers";
                    for (size_t i = 0; i < want.size(); ++i) {
                        const double bound = looked_up[i] ? 2 * (2 * kMicroBatches - 1) * std::ldexp(sizes[i], -24) : 0;
                        ASSERT_LE(std::abs(double(got.gradients[0][i]) - double(want[i])), bound) << "element " << i;
                    }
                });
}

}  // namespace
}  // namespace rz
