// Training on the planned device: executed, it gives the CPU's weights to the bit; costed, it takes the CPU's memory to
// the byte, of each kind and on each rank, and sends the same bytes, with the other ranks or without them.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "kernels/gemm/gemm.h"
#include "test/zero/zero_case.h"

namespace rz {
namespace {

using zero_case::Case;
using zero_case::Result;

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

std::vector<Taken> train(LoopbackHub& hub, const Case& how, const MeshOptions& options, std::vector<Result>* results) {
    std::vector<Taken> out(static_cast<size_t>(hub.size()));
    if (results) results->resize(out.size());
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, options);
        const Result result = zero_case::train(mesh, how);
        if (results) (*results)[size_t(rank)] = result;
        out[size_t(rank)] = taken(hub.device(rank), mesh);
    });
    return out;
}

struct Setting {
    Case how;
    int ranks;
    MeshOptions mesh = {};
    std::string text() const {
        return format("%d ranks, shards of %d, ZeRO-%d, %s, %s, recompute %d, %lld micro-batches%s%s", ranks,
                      mesh.grid.shard_size, how.zero.stage, name_of(how.zero.param_dtype), name_of(how.zero.grad_dtype),
                      int(how.recompute), (long long)how.micro_batches, how.zero.overlap ? "" : ", no overlap",
                      how.tied ? ", tied" : "");
    }
};

std::vector<Setting> settings() {
    std::vector<Setting> all;
    for (const int ranks : {1, 3, 4})
        for (int stage = 0; stage <= 3; ++stage)
            for (const DType dtype : {DType::f32, DType::bf16})
                for (const Recompute recompute : {Recompute::none, Recompute::mlp, Recompute::block}) {
                    Case how;
                    how.recompute = recompute;
                    how.steps = 2;
                    how.zero.stage = stage;
                    how.zero.param_dtype = dtype;
                    // The other settings take turns.
                    const size_t i = all.size();
                    how.zero.grad_dtype = i % 2 ? dtype : DType::f32;
                    how.zero.wire_dtype = how.zero.grad_dtype;
                    how.zero.prefetch = int(i % 3);
                    how.zero.overlap = i % 5 != 0;
                    how.zero.accumulate_locally = i % 3 == 0;
                    how.micro_batches = 1 + int64_t(i / 2 % 2);
                    how.tied = i % 7 == 0;
                    Setting s{how, ranks};
                    if (ranks == 4 && stage > 0 && i % 2) s.mesh.grid.shard_size = 2;
                    all.push_back(s);
                }
    return all;
}

TEST(ZeroPlanned, ExecutedOpsGiveTheCpusWeights) {
    for (const int ranks : {1, 3})
        for (int stage = 0; stage <= 3; ++stage) {
            SCOPED_TRACE(format("%d ranks, ZeRO-%d", ranks, stage));
            Case how;
            how.micro_batches = 2;
            how.steps = 3;
            how.zero.stage = stage;
            LoopbackHub cpu(ranks), planned(ranks, even_link(1000, 1'000'000'000));
            for (int r = 0; r < ranks; ++r) {
                planned.device(r).context->planned.executes = true;
                planned.device(r).context->one_memory = true;
            }
            std::vector<Result> want, got;
            const std::vector<Taken> a = train(cpu, how, {}, &want), b = train(planned, how, {}, &got);
            EXPECT_EQ(got, want);
            EXPECT_EQ(b, a);
        }
}

TEST(ZeroPlanned, TakesTheCpusMemoryToTheByte) {
    for (const Setting& s : settings()) {
        SCOPED_TRACE(s.text());
        LoopbackHub cpu(s.ranks), planned(s.ranks, even_link(1000, 1'000'000'000));
        for (int r = 0; r < s.ranks; ++r) planned.device(r).context->one_memory = true;
        const std::vector<Taken> want = train(cpu, s.how, s.mesh, nullptr),
                                 got = train(planned, s.how, s.mesh, nullptr);
        EXPECT_EQ(got, want);
        for (int r = 0; r < s.ranks; ++r) {
            RankContext context;
            context.one_memory = true;
            const Device device{DeviceKind::planned, 0, &context};
            Mesh mesh(device, r, s.ranks, even_link(1000, 1'000'000'000), s.mesh);
            zero_case::train(mesh, s.how);
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
        Case how;
        how.recompute = recompute;
        how.micro_batches = micro_batches;
        how.steps = 1;
        zero_case::train(mesh, how);
        return context.planned.host;
    };
    const ModelConfig c = zero_case::toy(false);
    const int64_t tokens = 2 * 11, head = c.vocab * c.dim, matrices = c.matmul_parameters(), blocks = matrices - head;
    EXPECT_EQ(ticks(Recompute::none, 1), 3 * tokens * matrices);
    EXPECT_EQ(ticks(Recompute::none, 2), 2 * 3 * tokens * matrices);
    EXPECT_EQ(ticks(Recompute::block, 1), 3 * tokens * matrices + tokens * blocks);
}

}  // namespace
}  // namespace rz
