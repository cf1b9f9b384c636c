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
// Values of a test's cases.
template <class T>
std::vector<T> cases_of(std::initializer_list<T> all, std::initializer_list<T> sanitized) {
    return kSanitized ? sanitized : all;
}

// Every step is clipped (at a norm of 0.5), so a norm that differs on one rank would move all weights.
void expect_the_bits(const Outcome& got, const Outcome& want) {
    EXPECT_EQ(got.weights, want.weights);
    for (const auto& norms : got.norms) EXPECT_EQ(norms, want.norms[0]) << "the norm is the same number on all ranks";
    for (size_t s = 0; s < want.losses.size(); ++s) EXPECT_NEAR(got.losses[s], want.losses[s], 1e-12);
    EXPECT_EQ(got.unequal, 0);
    EXPECT_EQ(got.sent, got.expected) << "bytes";
    for (const float norm : want.norms[0]) EXPECT_GT(norm, 0.5f) << "not clipped";
}

constexpr PipelineKind kOneCopy[] = {PipelineKind::gpipe, PipelineKind::f1b1, PipelineKind::interleaved,
                                     PipelineKind::zb_h1, PipelineKind::zb_v, PipelineKind::dualpipev};

Layout deep_layout(int layers) {
    Layout one{.config = toy(3), .B = 1, .micro_batches = 12, .steps = kSteps};
    one.config.layers = layers;
    return one;
}

TEST(PipelineBits, EveryScheduleHasTheBitsOfOneRank) {
    const Layout one = deep_layout(8);
    const Outcome want = train(one);
    for (const int pp : cases_of({2, 3, 4}, {3}))
        for (const PipelineKind kind : kOneCopy) {
            SCOPED_TRACE(format("%s on %d", name_of(kind), pp));
            Layout cut = one;
            cut.pp = pp, cut.schedule = kind;
            expect_the_bits(train(cut), want);
        }
}

// If the backward pass is in halves, the first one recomputes, and the other finds what it reads.
TEST(PipelineBits, RecomputationBeforeEachHalfChangesNoBit) {
    Layout one = deep_layout(6);
    one.micro_batches = 6, one.zero.param_dtype = DType::bf16;
    const Outcome want = train(one);
    for (const PipelineKind kind : {PipelineKind::zb_h1, PipelineKind::zb_v, PipelineKind::dualpipev})
        for (const Recompute recompute : {Recompute::mlp, Recompute::block}) {
            SCOPED_TRACE(format("%s, recompute %s", name_of(kind), name_of(recompute)));
            Layout cut = one;
            cut.pp = 3, cut.schedule = kind, cut.recompute = recompute;
            expect_the_bits(train(cut), want);
        }
}

// Gradients are added in bf16, and rounded at each addition: the order shows at once.
TEST(PipelineBits, InBf16TheSameOrderOfRoundings) {
    Layout one = deep_layout(6);
    one.zero.param_dtype = one.zero.grad_dtype = DType::bf16;
    const Outcome want = train(one);
    for (const PipelineKind kind : cases_of({PipelineKind::f1b1, PipelineKind::zb_v}, {PipelineKind::f1b1})) {
        SCOPED_TRACE(name_of(kind));
        Layout cut = one;
        cut.pp = 3, cut.schedule = kind;
        expect_the_bits(train(cut), want);
    }
}

// Three data ranks, whose sums depend on their order, at every ZeRO stage.
TEST(PipelineBits, EveryZeroStageHasTheBitsOfItsDataRanksAlone) {
    Layout alone = deep_layout(4);
    alone.dp = 3, alone.B = 3, alone.micro_batches = 4;
    const Outcome want = train(alone);
    for (const int stage : cases_of({0, 1, 2, 3}, {0, 3}))
        for (const PipelineKind kind :
             cases_of({PipelineKind::f1b1, PipelineKind::zb_v, PipelineKind::dualpipev}, {PipelineKind::zb_v})) {
            SCOPED_TRACE(format("%s, ZeRO-%d", name_of(kind), stage));
            Layout cut = alone;
            cut.pp = 2, cut.schedule = kind;
            cut.zero.stage = stage, cut.zero.accumulate_locally = stage >= 2;
            expect_the_bits(train(cut), want);
        }
}

// Two data ranks of which one has the first half of the micro-batches and one the second: each sums its own, and the
// sum of two is the same in any order.
TEST(DualPipe, HasTheBitsOfTheSumOfTheTwoHalves) {
    for (const int pp : cases_of({2, 4, 6}, {4})) {
        Layout halves{.config = toy(3), .dp = 2, .B = 2, .micro_batches = pp, .steps = kSteps, .halves = true};
        halves.config.layers = pp;
        const Outcome want = train(halves);
        Layout dual{.config = halves.config, .pp = pp, .schedule = PipelineKind::dualpipe, .B = 1};
        dual.micro_batches = 2 * pp, dual.steps = kSteps;
        SCOPED_TRACE(format("pp %d", pp));
        const Outcome got = train(dual);
        EXPECT_EQ(got.weights, want.weights);
        for (const auto& norms : got.norms) EXPECT_EQ(norms, want.norms[0]);
        for (size_t s = 0; s < want.losses.size(); ++s) EXPECT_NEAR(got.losses[s], want.losses[s], 1e-12);
        EXPECT_EQ(got.unequal, 0);
        EXPECT_EQ(got.sent, got.expected);
    }
}

// With three data ranks, at every ZeRO stage: sums of more than two depend on the order.
TEST(DualPipe, TrainsAsOneRankDoesAtEveryZeroStage) {
    Layout one{.config = toy(2), .B = 3, .micro_batches = 4, .steps = 4};
    one.config.layers = 4;
    const Outcome want = train(one);
    for (const int stage : cases_of({0, 1, 2, 3}, {3})) {
        SCOPED_TRACE(format("ZeRO-%d", stage));
        Layout dual = one;
        dual.pp = 2, dual.dp = 3, dual.schedule = PipelineKind::dualpipe;
        dual.zero.stage = stage, dual.zero.accumulate_locally = stage >= 2;
        expect_close(train(dual), want, 4 * double(one.rate));
    }
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
    struct Case {
        PipelineKind schedule;
        int pp;
    };
    for (const Case& c : cases_of(
             {Case{PipelineKind::f1b1, 2}, {PipelineKind::zb_h1, 3}, {PipelineKind::zb_v, 2}, {PipelineKind::gpipe, 4}},
             {{PipelineKind::zb_h1, 3}})) {
        SCOPED_TRACE(format("%s on %d", name_of(c.schedule), c.pp));
        Layout cut = one;
        cut.pp = c.pp, cut.schedule = c.schedule;
        const Outcome got = train(cut);
        EXPECT_EQ(got.unequal, 0) << "both holders add the same two numbers";
        for (size_t i = 0; i < want.size(); ++i) {
            const double bound = looked_up[i] ? 2 * (2 * kMicroBatches - 1) * std::ldexp(sizes[i], -24) : 0;
            ASSERT_LE(std::abs(double(got.gradients[0][i]) - double(want[i])), bound) << "element " << i;
        }
    }
}

}  // namespace
}  // namespace rz
