// Training on the planned device: executed, it gives the CPU's weights to the bit; costed, it takes the CPU's memory to
// the byte, of each kind and on each rank, and sends the same bytes, with the other ranks or without them.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "kernels/gemm/gemm.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

struct Taken {
    std::array<int64_t, int(MemKind::count_)> peak{};  // by kind
    int64_t total_peak = 0, sent = 0;
    bool operator==(const Taken&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Taken& t) {
    for (int k = 0; k < int(MemKind::count_); ++k) out << name_of(MemKind(k)) << " " << t.peak[size_t(k)] << ", ";
    return out << "at once " << t.total_peak << ", sent " << t.sent;
}

Taken taken(Device device, const Mesh& mesh) {
    const MemoryLedger& ledger = device.context->memory;
    Taken t{.total_peak = ledger.peak(device.kind), .sent = mesh.bytes_sent()};
    for (int k = 0; k < int(MemKind::count_); ++k) t.peak[size_t(k)] = ledger.peak(device.kind, MemKind(k));
    return t;
}

std::vector<Taken> taken(LoopbackHub& hub, const Layout& how, Outcome* outcome = nullptr) {
    std::vector<Taken> out(static_cast<size_t>(hub.size()));
    Outcome got = train(how, hub, [&](int rank, Mesh& mesh) { out[size_t(rank)] = taken(hub.device(rank), mesh); });
    if (outcome) *outcome = std::move(got);
    return out;
}

const PlannedLink kLink = even_link(1000, 1'000'000'000);

TEST(ZeroPlanned, ExecutedOpsGiveTheCpusWeights) {
    for (const int ranks : {1, 3})
        for (const std::string& stage : kStages) {
            SCOPED_TRACE(format("%d ranks, %s", ranks, stage.c_str()));
            const Layout how = with(data_ranks(ranks), "--micro-batches 2 --steps 3 " + stage);
            LoopbackHub cpu(ranks), planned(ranks, kLink);
            for (int r = 0; r < ranks; ++r) {
                planned.device(r).context->planned.executes = true;
                planned.device(r).context->one_memory = true;
            }
            Outcome want, got;
            const std::vector<Taken> a = taken(cpu, how, &want), b = taken(planned, how, &got);
            expect_the_bits(got, want);
            EXPECT_EQ(b, a);
        }
}

// 72 layouts: ranks, stages, types and recomputation, each with each; the other settings take turns.
Layout layout(size_t i) {
    const int ranks = std::array{1, 3, 4}[i / 24], stage = int(i / 6 % 4);
    const char* dtype = i / 3 % 2 ? "bf16" : "fp32";
    const char* gradients = i % 2 ? dtype : "fp32";
    const Recompute recompute = std::array{Recompute::none, Recompute::mlp, Recompute::block}[i % 3];
    Layout how = data_ranks(ranks, toy24(/*tied=*/i % 7 == 0));
    how.steps = 2;
    how.recompute = recompute;
    how.micro_batches = 1 + int64_t(i / 2 % 2);
    how.shard_size = ranks == 4 && stage > 0 && i % 2 ? 2 : 0;
    how.zero = {.stage = stage, .prefetch = int(i % 3), .overlap = i % 5 != 0, .accumulate_locally = i % 3 == 0};
    return with(how, format("--dtype %s --grad-dtype %s --wire-dtype %s", dtype, gradients, gradients));
}

TEST(ZeroPlanned, TakesTheCpusMemoryToTheByte) {
    for (size_t i = 0; i < 72; ++i) {
        const Layout how = layout(i);
        SCOPED_TRACE(format("layout %zu: %d ranks, shards of %d, ZeRO-%d, recompute %s", i, how.dp, how.shard_size,
                            how.zero.stage, name_of(how.recompute)));
        LoopbackHub cpu(how.dp), planned(how.dp, kLink);
        for (int r = 0; r < how.dp; ++r) planned.device(r).context->one_memory = true;
        const std::vector<Taken> want = taken(cpu, how);
        EXPECT_EQ(taken(planned, how), want);
        for (int r = 0; r < how.dp; ++r) {
            RankContext context;
            context.one_memory = true;
            const Device device{DeviceKind::planned, 0, &context};
            Mesh mesh(device, r, how.dp, kLink, mesh_options(how));
            LayoutRun(how).on(mesh);
            EXPECT_EQ(taken(device, mesh), want[size_t(r)]) << "rank " << r << " without the others";
        }
    }
}

// Every product costs, nothing else: a step of one rank takes its 3 products per matrix and micro-batch, one after the
// other, and recomputation of blocks the forward products of the blocks once more.
TEST(ZeroPlanned, AStepCostsItsProducts) {
    const auto ticks = [](Recompute recompute, int64_t micro_batches) {
        RankContext context;
        context.planned.cost = [](const OpCall& op, const Stream&) {
            const Gemm* g = op.as<Gemm>();
            return g ? g->M * g->N * g->K : 0;
        };
        const Device device{DeviceKind::planned, 0, &context};
        Mesh mesh(device);
        Layout how = data_ranks(1);
        how.recompute = recompute;
        how.micro_batches = micro_batches;
        how.steps = 1;
        LayoutRun(how).on(mesh);
        return context.planned.host;
    };
    const ModelConfig c = toy24();
    const int64_t tokens = 2 * 11, head = c.vocab * c.dim, matrices = c.matmul_parameters(), blocks = matrices - head;
    EXPECT_EQ(ticks(Recompute::none, 1), 3 * tokens * matrices);
    EXPECT_EQ(ticks(Recompute::none, 2), 2 * 3 * tokens * matrices);
    EXPECT_EQ(ticks(Recompute::block, 1), 3 * tokens * matrices + tokens * blocks);
}

}  // namespace
}  // namespace rz
