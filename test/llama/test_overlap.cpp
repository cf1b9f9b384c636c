// Transfers that compute hides, and those it does not, in virtual time: the ring of context parallelism, and the rows
// that weight gradients read with tensor parallelism. Each formula says which transfers compute stands still for.

#include <gtest/gtest.h>

#include <cmath>

#include "comm/meter.h"
#include "comm/virtual_net.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "llama/model/model.h"
#include "llama/model/stage.h"
#include "llama/parallel/context.h"
#include "zero/zero.h"

namespace rz {
namespace {

// Links of one node, without latency: a message takes its bytes at the link's rate, and nothing else.
NetMachine wires(int ranks) {
    NetMachine m = NetMachine{}.without_gaps().without_message_cost();
    m.ranks_per_node = m.cards = ranks;
    m.link_latency = 0;
    return m;
}

// ---- the ring -------------------------------------------------------------------------------------------------------

constexpr int64_t kBatch = 2, kChunk = 32, kHeads = 4, kKvHeads = 2, kD = 16;

struct Passes {
    Ticks forward, backward, keys, gradients;  // the last two: of one hop
    Ticks exposed_forward, exposed_backward;   // what the meter saw compute stand still for
    Ticks moving_forward;                      // what cp's transfers took, hidden or not
    double overlap_forward;
};

// `pair`: of attention between one chunk of queries and one of keys, in either pass.
Passes attend(int ranks, ContextExchange exchange, Ticks pair) {
    const NetMachine machine = wires(ranks);
    VirtualNet net(ranks, machine);
    Passes out{};
    const auto ticks = [](double seconds) { return Ticks(std::llround(seconds / kSecondsPerTick)); };
    net.run([&](int rank) {
        net.context(rank).planned.cost = [pair](const OpCall& op, const Stream&) -> Ticks {
            if (const auto* a = op.as<AttentionForward>()) return pair * (a->shape.Tk / kChunk);
            if (const auto* a = op.as<AttentionBackward>()) return pair * (a->shape.Tk / kChunk);
            return 0;
        };
        const Device device = net.device(rank);
        CommMeter meter;
        Mesh mesh(net, rank, {.grid = {.cp = ranks}, .collectives = {.meter = &meter}});
        Stream compute(device, "compute");
        ContextParallel context(mesh, device,
                                {.B = kBatch,
                                 .T = 2 * ranks * kChunk,
                                 .heads = kHeads,
                                 .kv_heads = kKvHeads,
                                 .head_dim = kD,
                                 .dtype = DType::bf16,
                                 .exchange = exchange},
                                &meter);
        const Buffer memory(device, 1 << 20, MemKind::workspace, "operands");  // addresses
        void* p = memory.data();
        context.forward(compute, p, memory.as<float>(), p, nullptr);
        const Ticks forward = compute.clock();
        const CommTotals first = meter.take();
        context.backward(compute, p, p, p, p, memory.as<float>(), p, nullptr);
        if (rank == 0) {
            out.forward = forward, out.backward = compute.clock() - forward;
            out.exposed_forward = ticks(first.exposed_s), out.exposed_backward = ticks(meter.take().exposed_s);
            out.moving_forward = ticks(first.axes.at("cp")), out.overlap_forward = first.overlap_efficiency();
        }
        return compute.clock();
    });
    const int64_t elements = kBatch * 2 * kChunk * 2 * kKvHeads * kD;
    out.keys = ticks_of(elements * 2, machine.link_rate), out.gradients = ticks_of(elements * 4, machine.link_rate);
    return out;
}

// A rank works on three pairs of chunks of its own, then on two of each other rank's.
TEST(OverlapOfTheRing, TransfersHideBehindAttentionAsLongAsTheyAreShorter) {
    for (const int ranks : {2, 3, 4, 8}) {
        SCOPED_TRACE(ranks);
        const Passes link = attend(ranks, ContextExchange::ring, 0);
        const Ticks pair = link.keys + link.gradients, all = (2 * ranks + 1) * pair;
        const Passes ring = attend(ranks, ContextExchange::ring, pair),
                     gather = attend(ranks, ContextExchange::gather, pair);
        EXPECT_EQ(ring.forward, all) << "no transfer is waited for";
        EXPECT_EQ(ring.backward, all + ring.gradients) << "but for the last hop home";
        EXPECT_EQ(gather.forward, all + (ranks - 1) * gather.keys) << "nothing hides";
        EXPECT_EQ(gather.backward, all + (ranks - 1) * (gather.keys + gather.gradients));
        // metrics.jsonl says the same: what compute stands still for is what the step takes beside attention.
        for (const Passes& p : {ring, gather}) {
            EXPECT_EQ(p.exposed_forward, p.forward - all);
            EXPECT_EQ(p.exposed_backward, p.backward - all);
            EXPECT_EQ(p.moving_forward, (ranks - 1) * p.keys);
        }
        EXPECT_EQ(ring.overlap_forward, 1);
        EXPECT_EQ(gather.overlap_forward, 0);
    }
}

TEST(OverlapOfTheRing, WhereLinksAreSlowAttentionHidesBehindThem) {
    for (const int ranks : {2, 3, 4, 8}) {
        SCOPED_TRACE(ranks);
        const Passes link = attend(ranks, ContextExchange::ring, 0);
        EXPECT_EQ(link.forward, (ranks - 1) * link.keys);
        EXPECT_EQ(link.backward, (ranks - 1) * link.keys + ranks * link.gradients);
        const Ticks pair = link.keys / 4;  // three of them are shorter than a hop
        const Passes slow = attend(ranks, ContextExchange::ring, pair);
        EXPECT_EQ(slow.forward, (ranks - 1) * link.keys + 2 * pair) << "only the last keys' attention is not hidden";
        EXPECT_GT(slow.overlap_forward, 0);
        EXPECT_LT(slow.overlap_forward, 1);
    }
}

// ---- weight gradients -----------------------------------------------------------------------------------------------

// Time of `blocks` blocks whose input gradients are made. Each product takes `product`, each gather what comes back in
// `gather`.
Ticks weight_gradients(int blocks, bool overlap, Ticks product, Ticks& gather) {
    constexpr int64_t B = 1, T = 64;
    ModelConfig config;
    config.dim = 64, config.layers = blocks, config.heads = 4, config.kv_heads = 2, config.ffn = 96, config.vocab = 50;
    config.max_seq_len = T;
    config.resolve();
    const NetMachine machine = wires(2);
    gather = ticks_of(B * T / 2 * config.dim * 4, machine.link_rate);
    VirtualNet net(2, machine);
    Ticks took = 0;
    net.run([&](int rank) {
        net.context(rank).planned.cost = [product](const OpCall& op, const Stream&) -> Ticks {
            return op.as<Gemm>() ? product : 0;
        };
        const Device device = net.device(rank);
        Mesh mesh(net, rank, {.grid = {.tp = 2}});
        Stream compute(device, "compute");
        TensorParallel tp(mesh, DType::f32, nullptr, overlap);
        const ParamTable table(config, {.part = rank, .parts = 2});
        Zero zero(device, compute, unit_layouts(table), decay_segments(table), {}, {}, mesh);
        const StageOptions options{.B = B, .T = T, .tp = &tp};
        Workspace work(config, table, options, true, device, compute);
        Stage stage(config, table, options, 0, blocks + 1, 1, 1, device, compute, work, zero.params, &zero.grads);
        const Ticks begin = std::max(compute.clock(), mesh.stream().clock());
        compute.wait_until(begin), mesh.stream().wait_until(begin);
        DeviceBatch batch{};
        batch.B = B, batch.T = T;
        for (int u = blocks; u >= 1; --u) stage.weight_grad(u, 0, batch, u > 1);
        if (rank == 0) took = compute.clock() - begin;
        return compute.clock();
    });
    return took;
}

// A block's weights are the gradients of four products, each of which reads rows that are gathered.
TEST(OverlapOfWeightGradients, OnlyTheFirstGatherOfAStageIsWaitedFor) {
    Ticks gather = 0;
    weight_gradients(1, false, 0, gather);
    ASSERT_GT(gather, 0);
    for (const int blocks : {1, 2, 5}) {
        for (const Ticks product : {gather, 3 * gather}) {
            EXPECT_EQ(weight_gradients(blocks, true, product, gather), gather + 4 * blocks * product);
            EXPECT_EQ(weight_gradients(blocks, false, product, gather), 4 * blocks * (gather + product));
        }
        // Products shorter than gathers hide behind them, but for the last.
        EXPECT_EQ(weight_gradients(blocks, true, gather / 2, gather), 4 * blocks * gather + gather / 2);
    }
}

}  // namespace
}  // namespace rz
