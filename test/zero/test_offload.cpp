// Optimizer state, parameters, gradients and activations on the host: the bits of none of it, the memory by the ledger,
// and copies that run beside the compute stream.

#include <gtest/gtest.h>

#include <string>

#include "kernels/adamw.h"
#include "kernels/runtime/host_streams.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

// 6 clipped steps of two micro-batches, of which the fourth is skipped. Tiles are small enough that a unit takes many.
Layout base(int ranks, const std::string& settings, int64_t layers = 3) {
    Layout how = with(data_ranks(ranks, toy24(false, layers)), "--micro-batches 2 --steps 6 " + settings);
    how.zero.offload_tile = 256;
    how.bad_step = 4;
    return how;
}

void expect_no_change(const Rows& rows, const Layout& plain) {
    const Outcome want = train(plain);
    EXPECT_EQ(want.updates, 5);
    expect_rows(rows, plain, has_the_bits_of(want));
}

const Rows kWays = each({"--offload-optimizer"}, {"stream", "zero-copy", "cpu"});

// On the CPU, whose AdamW `cpu` uses too, all ways give the same bits.
TEST(Offload, TheOptimizerOnTheHostChangesNoBit) {
    for (const std::string& settings :
         each({"--zero 0", "--zero 2", "--zero 3"},
              {"", "--dtype bf16", "--dtype bf16 --master-dtype bf16 --adam-dtype bf16"})) {
        SCOPED_TRACE(settings);
        expect_no_change(kWays, base(3, settings));
    }
}

// Muon's matrices are orthogonalised on the device: their state comes in tiles, also where the host updates the rest.
TEST(Offload, MuonsStateOnTheHostChangesNoBit) {
    for (const std::string& settings : each({"--dtype fp32", "--dtype bf16"}, {"--zero 0", "--zero 1", "--zero 3"})) {
        SCOPED_TRACE(settings);
        Layout plain = base(3, settings);
        plain.zero.muon.on = true, plain.zero.muon.beta2 = 0.9f, plain.zero.ema = 0.75;
        expect_no_change(kWays, plain);
        if (plain.zero.stage < 3) continue;
        expect_no_change(each({"--offload-params on --offload-grads on --offload-optimizer"}, {"stream", "cpu"}),
                         plain);
    }
}

// And a step that is skipped leaves it, as it leaves the weights.
TEST(Offload, TheAverageOfTheWeightsChangesNoBit) {
    const Rows stages = {"--zero 0", "--zero 1", "--zero 2 --accumulate-locally on"};  // one order of summation
    const std::string sliced = "--zero 3 --accumulate-locally on";
    for (const char* dtype : {"--dtype fp32", "--dtype bf16"}) {
        SCOPED_TRACE(dtype);
        Layout plain = base(3, dtype);
        const Outcome without = train(plain);
        plain.zero.ema = 0.75;
        const Outcome want = train(plain);
        EXPECT_EQ(want.weights, without.weights) << "training does not see the average, nor that it was shown";
        EXPECT_NE(want.averages, want.weights);
        expect_rows(each(stages, kWays), plain, has_the_bits_of(want));
        expect_rows(stages, plain, has_the_bits_of(want));
        expect_rows({sliced}, plain, has_the_bits_of(want));
        expect_rows(each({sliced + " --offload-params on"}, kWays), plain, has_the_bits_of(want));
    }
}

TEST(Offload, ParametersAndGradientsOnTheHostChangeNoBit) {
    const Rows params_and_grads = {"--offload-params on", "--offload-grads on",
                                   "--offload-params on --offload-grads on"},
               ways = each({"--offload-optimizer"}, {"none", "stream", "cpu"});
    for (const int ranks : {1, 3}) expect_no_change(each(ways, params_and_grads), base(ranks, "--zero 3 --dtype bf16"));
    // fp32 parameters are their own masters; replicas sum their slices before these go to the host.
    for (const char* shards : {"--zero 3 --shard-size 2", "--zero 3 --shard-size 4"})
        expect_no_change(each(ways, {params_and_grads.back()}), base(4, shards));
}

TEST(Offload, GradientsOnTheHostWithWholeParameters) {
    expect_no_change({"--offload-grads on"}, base(3, "--zero 2 --dtype bf16"));
}

// Four of five blocks go, and have two places: two of them come back.
TEST(Offload, ActivationsOnTheHostChangeNoBit) {
    for (const char* stage : {"--zero 0", "--zero 3"})
        expect_no_change({"--offload-activations on", "--offload-activations on --offload-optimizer stream"},
                         base(3, std::string("--recompute block ") + stage, /*layers=*/5));
}

TEST(Offload, Fp8CodesAreMadeOfParametersOnTheHost) {
    Layout how = data_ranks(3, toy16());
    how.T = 16;
    expect_same_bits(each({"--offload-params on --offload-optimizer"}, {"none", "stream", "cpu"}),
                     with(how, "--zero 3 --dtype bf16 --fp8 tensor --steps 4"));
}

TEST(Offload, WhatStaysWholeIsRefused) {
    for (const char* settings :
         {"--zero 2 --offload-params on", "--zero 1 --offload-grads on", "--zero 0 --offload-activations on"})
        EXPECT_THROW(train(base(1, settings)), Error) << settings;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

struct Memory {
    int64_t device_state, host_state, parameters, host_parameters, gradients, host_gradients, activations,
        host_activations;
};

// Memory of one rank, on a device beside its host.
Memory memory(const Layout& how) {
    RankContext context;
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device);
    LayoutRun(how).on(mesh);
    const MemoryLedger& l = context.memory;
    const auto on = [&](DeviceKind where, MemKind kind) { return l.peak(where, kind); };
    using enum MemKind;
    const DeviceKind here = DeviceKind::planned, host = DeviceKind::cpu;
    return {on(here, optimizer), on(host, optimizer), on(here, parameters),  on(host, parameters),
            on(here, gradients), on(host, gradients), on(here, activations), on(host, activations)};
}

TEST(Offload, TheLedgerHasTwoTilesOnTheDeviceAndTheStateOnTheHost) {
    Layout c = base(1, "--zero 3 --dtype bf16 --grad-dtype bf16 --wire-dtype bf16 --steps 1");
    c.bad_step = 0;
    const Memory none = memory(c);
    const ParamTable table(toy24());
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
    Layout c = base(1, "--dtype bf16 --recompute block --steps 1");
    c.bad_step = 0;
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
