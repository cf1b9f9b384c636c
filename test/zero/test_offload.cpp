// Optimizer state, parameters, gradients and activations on the host: the bits of none of it, the memory by the ledger,
// and copies that run beside the compute stream.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/loopback.h"
#include "kernels/adamw.h"
#include "kernels/runtime/host_streams.h"
#include "test/zero/zero_case.h"

namespace rz {
namespace {

using zero_case::Case;
using zero_case::Result;

Result run_offloaded(int ranks, const Case& how, const MeshOptions& mesh_how = {}) {
    std::vector<Result> results(static_cast<size_t>(ranks));
    LoopbackHub hub(ranks);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, mesh_how);
        results[size_t(rank)] = zero_case::train(mesh, how);
    });
    for (const Result& r : results)
        EXPECT_TRUE(r.weights == results[0].weights && r.updates == results[0].updates) << "ranks disagree";
    return results[0];
}

// The norm of a skipped step is no number, so norms are not compared with ==.
bool same(const Result& a, const Result& b) { return a.weights == b.weights && a.updates == b.updates; }

// 6 clipped steps of two micro-batches, of which the fourth is skipped. Tiles are small enough that a unit takes many.
Case base(int stage, DType param = DType::f32, DType master = DType::f32, DType adam = DType::f32) {
    Case c;
    c.zero.stage = stage;
    c.zero.param_dtype = param;
    c.zero.master_dtype = master;
    c.zero.adam_dtype = adam;
    c.zero.offload_tile = 256;
    c.micro_batches = 2;
    c.bad_step = 4;
    c.steps = 6;
    return c;
}

constexpr OffloadOptimizer kWays[] = {OffloadOptimizer::stream, OffloadOptimizer::zero_copy, OffloadOptimizer::cpu};

// On the CPU, whose AdamW `cpu` uses too, all ways give the same bits.
TEST(Offload, TheOptimizerOnTheHostChangesNoBit) {
    const struct {
        DType param, master, adam;
    } types[] = {{DType::f32, DType::f32, DType::f32},
                 {DType::bf16, DType::f32, DType::f32},
                 {DType::bf16, DType::bf16, DType::bf16}};
    for (const auto& [param, master, adam] : types)
        for (const int stage : {0, 2, 3}) {
            const Case plain = base(stage, param, master, adam);
            const Result want = run_offloaded(3, plain);
            EXPECT_EQ(want.updates, 5);
            for (const OffloadOptimizer way : kWays) {
                Case c = plain;
                c.zero.offload_optimizer = way;
                EXPECT_TRUE(same(run_offloaded(3, c), want))
                    << name_of(way) << ", stage " << stage << ", " << name_of(param) << ", " << name_of(master);
            }
        }
}

// Muon's matrices are orthogonalised on the device: their state comes in tiles, also where the host updates the rest.
TEST(Offload, MuonsStateOnTheHostChangesNoBit) {
    for (const DType param : {DType::f32, DType::bf16})
        for (const int stage : {0, 1, 3}) {
            Case plain = base(stage, param);
            plain.zero.muon.on = true, plain.zero.muon.beta2 = 0.9f, plain.zero.ema = 0.75;
            const Result want = run_offloaded(3, plain);
            EXPECT_EQ(want.updates, 5);
            for (const OffloadOptimizer way : kWays)
                for (const bool all : {false, true}) {
                    if (all && (stage < 3 || way == OffloadOptimizer::zero_copy)) continue;
                    Case c = plain;
                    c.zero.offload_optimizer = way;
                    c.zero.offload_params = c.zero.offload_grads = all;
                    EXPECT_TRUE(same(run_offloaded(3, c), want)) << name_of(way) << ", stage " << stage << ", " << all;
                }
        }
}

// And a step that is skipped leaves it, as it leaves the weights.
TEST(Offload, TheAverageOfTheWeightsChangesNoBit) {
    for (const DType param : {DType::f32, DType::bf16}) {
        Case plain = base(0, param);
        const std::vector<float> weights = run_offloaded(3, plain).weights;
        plain.zero.ema = 0.75;
        const Result want = run_offloaded(3, plain);
        ASSERT_EQ(want.weights.size(), 2 * weights.size());
        EXPECT_TRUE(std::equal(weights.begin(), weights.end(), want.weights.begin() + long(weights.size())))
            << "training does not see the average, nor that it was shown";
        EXPECT_FALSE(std::equal(weights.begin(), weights.end(), want.weights.begin()));
        for (const int stage : {0, 1, 2, 3})
            for (const OffloadOptimizer way : {OffloadOptimizer::none, OffloadOptimizer::stream,
                                               OffloadOptimizer::zero_copy, OffloadOptimizer::cpu}) {
                Case c = base(stage, param);
                c.zero.ema = 0.75, c.zero.accumulate_locally = stage >= 2;  // one order of summation
                c.zero.offload_optimizer = way;
                c.zero.offload_params = stage == 3 && way != OffloadOptimizer::none;
                EXPECT_TRUE(same(run_offloaded(3, c), want)) << name_of(way) << ", stage " << stage;
            }
    }
}

TEST(Offload, ParametersAndGradientsOnTheHostChangeNoBit) {
    for (const int ranks : {1, 3})
        for (const OffloadOptimizer way : {OffloadOptimizer::none, OffloadOptimizer::stream, OffloadOptimizer::cpu}) {
            const Case plain = base(3, DType::bf16);
            const Result want = run_offloaded(ranks, plain);
            for (const int what : {1, 2, 3}) {
                Case c = plain;
                c.zero.offload_optimizer = way;
                c.zero.offload_params = what & 1, c.zero.offload_grads = what & 2;
                EXPECT_TRUE(same(run_offloaded(ranks, c), want)) << ranks << " ranks, " << name_of(way) << ", " << what;
            }
        }
    // fp32 parameters are their own masters; replicas sum their slices before these go to the host.
    for (const int shard : {2, 4}) {
        MeshOptions mesh;
        mesh.grid.shard_size = shard;
        const Result want = run_offloaded(4, base(3), mesh);
        Case c = base(3);
        c.zero.offload_params = c.zero.offload_grads = true;
        EXPECT_TRUE(same(run_offloaded(4, c, mesh), want)) << "shards of " << shard;
        c.zero.offload_optimizer = OffloadOptimizer::stream;
        EXPECT_TRUE(same(run_offloaded(4, c, mesh), want)) << "shards of " << shard;
        c.zero.offload_optimizer = OffloadOptimizer::cpu;
        EXPECT_TRUE(same(run_offloaded(4, c, mesh), want)) << "shards of " << shard;
    }
}

TEST(Offload, GradientsOnTheHostWithWholeParameters) {
    const Result want = run_offloaded(3, base(2, DType::bf16));
    Case c = base(2, DType::bf16);
    c.zero.offload_grads = true;
    EXPECT_TRUE(same(run_offloaded(3, c), want));
}

// Four of five blocks go, and have two places: two of them come back.
TEST(Offload, ActivationsOnTheHostChangeNoBit) {
    for (const int stage : {0, 3}) {
        Case c = base(stage);
        c.layers = 5;
        c.recompute = Recompute::block;
        const Result want = run_offloaded(3, c);
        c.offload = true;
        EXPECT_TRUE(same(run_offloaded(3, c), want));
        c.zero.offload_optimizer = OffloadOptimizer::stream;
        EXPECT_TRUE(same(run_offloaded(3, c), want));
    }
}

TEST(Offload, Fp8CodesAreMadeOfParametersOnTheHost) {
    Case c;
    c.zero.stage = 3, c.zero.param_dtype = DType::bf16, c.fp8.recipe = Fp8Recipe::tensor, c.steps = 4;
    const Result want = run_offloaded(3, c);
    c.zero.offload_params = true;
    for (const OffloadOptimizer way : {OffloadOptimizer::none, OffloadOptimizer::stream, OffloadOptimizer::cpu}) {
        c.zero.offload_optimizer = way;
        EXPECT_TRUE(same(run_offloaded(3, c), want)) << name_of(way);
    }
}

TEST(Offload, WhatStaysWholeIsRefused) {
    Case params = base(2), grads = base(1), activations = base(0);
    params.zero.offload_params = true;
    grads.zero.offload_grads = true;
    activations.offload = true;
    EXPECT_THROW(run_offloaded(1, params), Error);
    EXPECT_THROW(run_offloaded(1, grads), Error);
    EXPECT_THROW(run_offloaded(1, activations), Error);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

struct Memory {
    int64_t device_state, host_state, parameters, host_parameters, gradients, host_gradients, activations,
        host_activations;
};

// Memory of one rank, on a device beside its host.
Memory memory(const Case& how) {
    RankContext context;
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device);
    zero_case::train(mesh, how);
    const MemoryLedger& l = context.memory;
    const auto on = [&](DeviceKind where, MemKind kind) { return l.peak(where, kind); };
    using enum MemKind;
    const DeviceKind here = DeviceKind::planned, host = DeviceKind::cpu;
    return {on(here, optimizer), on(host, optimizer), on(here, parameters),  on(host, parameters),
            on(here, gradients), on(host, gradients), on(here, activations), on(host, activations)};
}

TEST(Offload, TheLedgerHasTwoTilesOnTheDeviceAndTheStateOnTheHost) {
    Case c = base(3, DType::bf16);
    c.zero.grad_dtype = c.zero.wire_dtype = DType::bf16;
    c.steps = 1, c.bad_step = 0;
    const Memory none = memory(c);
    const ParamTable table(zero_case::toy(false));
    int64_t elements = 0;
    for (const UnitLayout& u : table.held_units()) elements += u.padded;
    const int64_t segments = none.device_state - 12 * elements;  // where decay ends
    EXPECT_GE(segments, 0);
    EXPECT_LT(segments, 1024);
    EXPECT_EQ(none.host_state, 0);
    EXPECT_EQ(none.parameters, 2 * elements);
    EXPECT_EQ(none.gradients, 2 * elements);

    c.zero.offload_optimizer = OffloadOptimizer::stream;
    const Memory stream = memory(c);
    EXPECT_EQ(stream.device_state, 2 * 12 * 256 + segments);
    EXPECT_EQ(stream.host_state, 12 * elements);
    EXPECT_EQ(stream.parameters, none.parameters);

    c.zero.offload_params = c.zero.offload_grads = true;
    const Memory all = memory(c);
    EXPECT_EQ(all.device_state, 2 * (12 + 2 + 2) * 256 + segments);
    EXPECT_EQ(all.parameters, 0);
    EXPECT_EQ(all.gradients, 0);
    EXPECT_EQ(all.host_parameters, 2 * elements);
    EXPECT_EQ(all.host_gradients, 2 * elements);

    c.zero.offload_params = c.zero.offload_grads = false;
    c.zero.offload_optimizer = OffloadOptimizer::zero_copy;
    EXPECT_EQ(memory(c).device_state, segments);
    EXPECT_EQ(memory(c).host_state, 12 * elements);

    c.zero.offload_optimizer = OffloadOptimizer::cpu;
    EXPECT_EQ(memory(c).device_state, segments);
    EXPECT_EQ(memory(c).host_state, 12 * elements);
    EXPECT_EQ(memory(c).host_gradients, 2 * elements);
    EXPECT_EQ(memory(c).host_parameters, 2 * elements);
}

TEST(Offload, TheLedgerHasTwoResidualsOnTheDevice) {
    Case c = base(0, DType::bf16);
    c.recompute = Recompute::block;
    c.steps = 1, c.bad_step = 0;
    const Memory none = memory(c);
    c.offload = true;
    const Memory away = memory(c);
    const int64_t residual = 2 * 11 * 24 * 2;  // of one of three blocks
    EXPECT_EQ(away.host_activations, 2 * residual);
    EXPECT_EQ(away.activations, none.activations) << "two of three go, and have two places";
}

// ---- time -----------------------------------------------------------------------------------------------------------

// A bare optimizer of one unit of 8 tiles: what its update takes, of copies to and from the host and AdamW by the tile.
Ticks update_time(OffloadOptimizer way, Ticks in, Ticks work, Ticks out) {
    RankContext context;
    bool counts = false;
    context.planned.cost = [&](const OpCall& op, const Stream& stream) -> Ticks {
        if (!counts) return 0;
        if (op.as<AdamW>()) return work;
        if (op.type || op.bytes < 256) return 0;
        return stream.name() == kFromHostStream ? in : stream.name() == kToHostStream ? out : 0;
    };
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device);
    Stream compute(device, "compute");
    const UnitLayout unit = make_unit("unit", 0, 8 * 256);
    Zero zero(device, compute, {unit}, {.end = {unit.padded}, .decays = {1}},
              {.param_dtype = DType::f32, .offload_optimizer = way, .offload_tile = 256}, {}, mesh);
    zero.optimizer.gradient_norm();
    compute.synchronize();
    counts = true;
    const Ticks before = context.planned.host;
    zero.optimizer.update(1e-3f, 1);
    compute.synchronize();
    return context.planned.host - before;
}

// m and v, since fp32 parameters are their own masters: two copies each way for a tile. The slowest of the three
// streams sets the pace, the others show at the ends only; with two tiles a third waits until the first is back.
TEST(Offload, CopiesRunBesideTheUpdate) {
    const OffloadOptimizer stream = OffloadOptimizer::stream;
    EXPECT_EQ(update_time(stream, 10, 1, 1), 8 * 20 + 1 + 2) << "bound by what comes";
    EXPECT_EQ(update_time(stream, 1, 100, 1), 2 + 8 * 100 + 2) << "bound by AdamW";
    EXPECT_EQ(update_time(stream, 1, 1, 10), 2 + 1 + 8 * 20) << "bound by what goes";
    // All alike: a tile's memory comes, is updated and goes, 20 + 20 + 20, and two take turns.
    EXPECT_EQ(update_time(stream, 10, 20, 10), 4 * 60 + 20);
    EXPECT_EQ(update_time(OffloadOptimizer::none, 10, 20, 10), 20);
    EXPECT_EQ(update_time(OffloadOptimizer::zero_copy, 10, 20, 10), 20);
}

}  // namespace
}  // namespace rz
