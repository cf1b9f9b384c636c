// Memory and messages of a rank of a pipeline, by its ledger and its links' counters, against closed forms: activations
// are slots times their bytes, links carry each tensor once, the data axis what ZeRO's table says for the rank's own
// units. On the planned device, where a rank is built and run without the others.

#include <gtest/gtest.h>

#include "kernels/runtime/context.h"
#include "llama/train/train_state.h"
#include "test/llama/toys.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

using Kind = PipelineKind;
constexpr int64_t kSequences = 2, kLength = 7, kTokens = kSequences * kLength;

struct Layout {
    Kind kind;
    int pp, micro_batches;
    int dp = 1;
    ZeroOptions zero = {};
    GatherFor gather = GatherFor::step;
    bool tied = false;
};

// One rank of the job, after a step.
struct PlannedStages {
    RankContext context;
    Device device{DeviceKind::planned, 0, &context};
    Mesh mesh;
    TrainState core;
    int64_t data_bytes = 0;  // that the step has sent on the data axis

    PlannedStages(const Layout& s, int rank)
        : mesh(device, rank, s.pp * s.dp, PlannedLink{}, {.grid = {.pp = s.pp}, .algorithms = {Algorithm::ring}}),
          core(toy24(s.tied, /*layers=*/18),
               {.zero = s.zero,
                .adamw = {},
                .stage = {.B = kSequences, .T = kLength},
                .micro_batches = s.micro_batches,
                .pipeline = {.schedule = {.kind = s.kind}, .gather = s.gather}},
               device, mesh) {
        const int64_t before = mesh.data().transport().bytes_sent();
        const Buffer ids(Device{DeviceKind::planned}, 4 * (kTokens + 1), MemKind::data, "token ids");
        const int32_t* id = ids.as<int32_t>();
        core.model.run(core.program, {.pass = Pass::train, .grad_scale = 1},
                       [&](int64_t) -> DeviceBatch { return {kSequences, kLength, id, id, id, id, id, 5}; });
        core.zero.optimizer.gradient_norm();
        core.zero.optimizer.update(0, 1);
        data_bytes = mesh.data().transport().bytes_sent() - before;
    }
    int at() const { return mesh.place(Axis::pp).rank; }
};

const Kind kKinds[] = {Kind::gpipe, Kind::f1b1, Kind::interleaved, Kind::zb_h1, Kind::zb_v, Kind::dualpipev};

// Bytes of one micro-batch: what forward keeps of a block until its input gradient, and what that leaves for the weight
// gradient: tensors of the width C, of the heads, of the FFN's two halves.
int64_t block_forward(const ModelConfig& c, int64_t e) {
    const int64_t wide = 4 * c.dim + (c.heads + 2 * c.kv_heads) * c.head_dim + c.heads * c.head_dim + 2 * c.ffn;
    return kTokens * (e * wide + 4 * (2 + c.heads));  // rstd of two norms, lse of each head: fp32
}
int64_t block_pending(const ModelConfig& c, int64_t e) {
    const int64_t wide = 4 * c.dim + (c.heads + 2 * c.kv_heads) * c.head_dim + c.heads * c.head_dim + 3 * c.ffn;
    return kTokens * e * wide + 2 * 4 * c.dim;  // dw of two norms: fp32
}

TEST(PipelineResources, ActivationsAreTheSlotsTimesTheirBytes) {
    for (const Kind kind : pipeline_kinds())
        for (const auto& [pp, M] : {std::pair(2, 4), {3, 6}, {4, 8}})
            for (const DType dtype : {DType::f32, DType::bf16}) {
                if (!find_pipeline_refusal(kind, {pp, M}).empty()) continue;  // dualpipe on 3
                SCOPED_TRACE(format("%s on %d, %d micro-batches, %s", name_of(kind), pp, M, name_of(dtype)));
                for (int r = 0; r < pp; ++r) {
                    ZeroOptions zero;
                    zero.param_dtype = zero.grad_dtype = dtype;
                    const PlannedStages rank({kind, pp, M, 1, zero}, r);
                    const ModelConfig& c = rank.core.config;
                    const int64_t e = size_of(dtype), last = c.layers + 1;
                    int64_t bytes = 0;
                    int slots = 0;
                    const RankProgram& program = rank.core.plan->training[size_t(r)];
                    ASSERT_EQ(program.program.slots.size(), program.shape.stages.size());
                    for (size_t i = 0; i < program.shape.stages.size(); ++i) {
                        const StageUnits& s = program.shape.stages[i];
                        const StageSlots& n = program.program.slots[i];
                        const bool first_stage = s.first_unit == 0, last_stage = s.last_unit == last;
                        const int64_t blocks = s.last_unit - s.first_unit + 1 - first_stage - last_stage;
                        // The residual stream's gradient, and what leaves the stage; or the final norm's three.
                        const int64_t ends =
                            kTokens * e * c.dim * (last_stage ? 3 : 2) + (last_stage ? 4 * kTokens : 0);
                        bytes += n.forward * (blocks * block_forward(c, e) + ends);
                        bytes += n.weight * (blocks * block_pending(c, e) + (first_stage ? kTokens * e * c.dim : 0) +
                                             (last_stage ? 4 * c.dim : 0));
                        if (last_stage) bytes += 4 * kTokens;  // the losses of a micro-batch's tokens
                        slots += n.forward + n.weight;
                    }
                    EXPECT_EQ(rank.context.memory.peak(DeviceKind::planned, MemKind::activations), bytes) << r;
                    // As many as the simulation holds until their weight gradient, and inputs that have come and wait.
                    EXPECT_GE(slots, rank.core.plan->predicted.ranks[size_t(r)].peak_forward) << r;
                }
            }
}

// And the axis' own group the gradients of what two ranks hold, once each way: a tied head's embedding, all that
// DualPipe's copies have.
TEST(PipelineResources, EachLinkCarriesEachTensorOnce) {
    std::vector<Layout> layouts;
    for (const auto& [pp, M] : {std::pair(2, 4), {3, 6}, {4, 8}})
        for (const Kind kind : kKinds) layouts.push_back({kind, pp, M});
    layouts.push_back({Kind::dualpipe, 2, 4}), layouts.push_back({Kind::dualpipe, 4, 8});
    layouts.push_back({Kind::dualpipe, 6, 12});
    layouts.push_back({Kind::f1b1, 3, 6}), layouts.back().tied = true;
    layouts.push_back({Kind::zb_v, 3, 6}), layouts.back().tied = true;
    for (const Layout& layout : layouts)
        for (int r = 0; r < layout.pp; ++r) {
            const PlannedStages rank(layout, r);
            const int pp = layout.pp;
            const PipelineSchedule& s = rank.core.plan->schedule;
            std::vector<int64_t> bytes(static_cast<size_t>(pp), 0);  // to each neighbour
            for (int m = 0; m < s.micro_batches; ++m)
                for (int stage = 0; stage + 1 < s.stages; ++stage) {
                    const int below = s.rank_of[size_t(stage)][size_t(m)],
                              above = s.rank_of[size_t(stage) + 1][size_t(m)];
                    if (below == r && above != r)
                        bytes[size_t(above)] += kTokens * rank.core.config.dim * 4;  // outputs
                    if (above == r && below != r)
                        bytes[size_t(below)] += kTokens * rank.core.config.dim * 4;  // gradients
                }
            const auto units = unit_layouts(rank.core.table);
            int64_t copies = 0;
            if (layout.kind == Kind::dualpipe)
                for (const UnitLayout& u : units) copies += u.padded * 4;
            if (layout.tied && layout.kind == Kind::f1b1 && (r == 0 || r == pp - 1)) copies = units.front().padded * 4;
            EXPECT_EQ(rank.mesh.pp().transport().bytes_sent(), copies) << name_of(layout.kind) << " on " << pp;
            int64_t all = 0;
            for (int peer = 0; peer < pp; ++peer) {
                if (peer != r && ((peer - r + pp) % pp == 1 || (r - peer + pp) % pp == 1)) {
                    EXPECT_EQ(rank.mesh.link_to(peer).bytes_sent(), bytes[size_t(peer)])
                        << name_of(layout.kind) << " on " << pp << ", from " << r << " to " << peer;
                }
                all += bytes[size_t(peer)];
            }
            EXPECT_GT(all, 0);
        }
}

// ZeRO's table over the rank's own units: gradients are reduced once, since they are kept until the stage's last weight
// gradient; parameters are gathered once a step, after the update or, sharded, before their first use.
TEST(PipelineResources, TheDataAxisCarriesOwnUnitsOnceEachWay) {
    constexpr int dp = 3;
    for (const Kind kind : {Kind::f1b1, Kind::zb_v, Kind::dualpipev})
        for (const int stage : {0, 1, 2, 3})
            for (int r = 0; r < 2 * dp; ++r) {
                ZeroOptions zero;
                zero.stage = stage, zero.accumulate_locally = stage >= 2;
                const PlannedStages rank({kind, 2, 4, dp, zero}, r);
                const int member = rank.mesh.place(Axis::data).rank;
                int64_t scatters = 0, gathers = 0;
                std::vector<int64_t> blocks(dp + 1, 0);  // of the norm: where each member's begin
                for (const UnitLayout& u : unit_layouts(rank.core.table)) {
                    const auto slices = u.slice_offsets(dp);
                    scatters += sent_by_scatter(slices, member, 4);
                    gathers += sent_by_gather(slices, member, 4);
                    for (int i = 0; i <= dp; ++i) blocks[size_t(i)] += slices[size_t(i)] / u.block;
                }
                const int64_t norm = stage == 0 ? 0 : sent_by_gather(blocks, member, sizeof(double));
                EXPECT_EQ(rank.data_bytes, scatters + gathers + norm)
                    << name_of(kind) << ", --zero " << stage << ", rank " << r;
            }
}

// Twice a micro-batch where they are gathered for each use; but the embedding's backward reads none, and a unit stays
// whole where 1f1b turns: on the last rank its last unit from forward to backward, M times, and its first one from
// backward to the next forward, M - 1 times; on the first rank its last unit, M - 1 times.
TEST(PipelineResources, GathersForEachUseAreTwoAMicroBatch) {
    constexpr int dp = 3, M = 4;
    for (int r = 0; r < 2 * dp; ++r) {
        ZeroOptions zero;
        zero.stage = 3, zero.accumulate_locally = true;
        const PlannedStages rank({Kind::f1b1, 2, M, dp, zero, GatherFor::op}, r);
        const int member = rank.mesh.place(Axis::data).rank;
        const auto units = unit_layouts(rank.core.table);
        int64_t bytes = 0;
        std::vector<int64_t> blocks(dp + 1, 0);
        for (size_t i = 0; i < units.size(); ++i) {
            const auto slices = units[i].slice_offsets(dp);
            const bool first = i == 0, last = i + 1 == units.size();
            int64_t times = 2 * M;
            if (rank.at() == 0) times -= first ? M : last ? M - 1 : 0;
            if (rank.at() == 1) times -= last ? M : first ? M - 1 : 0;
            bytes += sent_by_scatter(slices, member, 4) + times * sent_by_gather(slices, member, 4);
            for (int k = 0; k <= dp; ++k) blocks[size_t(k)] += slices[size_t(k)] / units[i].block;
        }
        EXPECT_EQ(rank.data_bytes, bytes + sent_by_gather(blocks, member, sizeof(double))) << r;
    }
}

}  // namespace
}  // namespace rz
