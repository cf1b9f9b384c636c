// ZeRO over threads: every stage, split and schedule gives the weights it promises. No MPI; under ThreadSanitizer this
// is the race test of the streams, the collectives and zero/ together (a send reads the sender's memory in place, so
// memory that is reused or read too early is a race).
//
// Three and four ranks and fp32: with two ranks, or bf16 values, any order of summation gives the same bits and
// equality would prove nothing.

#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <cmath>
#include <vector>

#include "comm/loopback.h"
#include "kernels/runtime/context.h"
#include "test/zero/zero_case.h"

namespace rz {
namespace {

using zero_case::Case;
using zero_case::Result;

Result run(int ranks, const Case& how, MeshOptions mesh_options = {}) {
    if (ranks == 1) {
        Mesh mesh({DeviceKind::cpu, 0}, mesh_options);
        return zero_case::train(mesh, how);
    }
    LoopbackHub hub(ranks);
    std::vector<Result> results(static_cast<size_t>(ranks));
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, mesh_options);
        results[size_t(rank)] = zero_case::train(mesh, how);
    });
    for (const Result& r : results)
        if (how.bad_step == 0)  // NaN norms equal nothing
            EXPECT_EQ(r, results[0]) << "ranks disagree";
        else
            EXPECT_TRUE(r.weights == results[0].weights && r.updates == results[0].updates) << "ranks disagree";
    return results[0];
}

Case stage(int s) {
    Case c;
    c.zero.stage = s;
    return c;
}

class ZeroRanks : public testing::TestWithParam<int> {};

TEST_P(ZeroRanks, AllStagesAndSchedulesGiveTheSameBits) {
    const int ranks = GetParam();
    const Result want = run(ranks, stage(0));
    for (int s = 1; s <= 3; ++s) EXPECT_EQ(run(ranks, stage(s)), want) << "stage " << s;

    for (int s = 0; s <= 3; ++s) {
        Case late = stage(s);
        late.zero.overlap = false;
        EXPECT_EQ(run(ranks, late), want) << "no overlap, stage " << s;
        EXPECT_EQ(run(ranks, stage(s), {.collectives = {.chunk_bytes = 512}}), want) << "small chunks, stage " << s;
    }
    for (int prefetch : {0, 3}) {
        Case c = stage(3);
        c.zero.prefetch = prefetch;
        EXPECT_EQ(run(ranks, c), want) << "prefetch " << prefetch;
    }
    for (Recompute recompute : {Recompute::mlp, Recompute::block}) {
        Case c = stage(3);
        c.recompute = recompute;
        EXPECT_EQ(run(ranks, c), want);
    }
    Case other = stage(0);
    other.steps = 9;
    EXPECT_NE(run(ranks, other), want);
}

// Units with padding for equal slices; the loss and the logits are those of the vocabulary without it.
TEST_P(ZeroRanks, EqualSlicesGiveTheSameBitsInEveryStage) {
    Case base = stage(0);
    base.vocab = zero_case::kEqualVocab;
    base.steps = 4;
    const Result want = run(GetParam(), base);
    for (int s = 1; s <= 3; ++s) {
        Case c = base;
        c.zero.stage = s;
        EXPECT_EQ(run(GetParam(), c), want) << "stage " << s;
        c.zero.bucket_bytes = 400'000;
        EXPECT_EQ(run(GetParam(), c), want) << "in buckets, stage " << s;
    }
}

TEST_P(ZeroRanks, TiedHeadsGiveTheSameBitsInEveryStage) {
    Case base = stage(0);
    base.tied = true;
    const Result want = run(GetParam(), base);
    for (int s = 1; s <= 3; ++s) {
        Case c = base;
        c.zero.stage = s;
        EXPECT_EQ(run(GetParam(), c), want) << "stage " << s;
    }
}

TEST_P(ZeroRanks, DirectGivesTheSameBitsInEveryStage) {
    const Result want = run(GetParam(), stage(0), {.algorithms = {.data = Algorithm::direct}});
    for (int s = 1; s <= 3; ++s)
        EXPECT_EQ(run(GetParam(), stage(s), {.algorithms = {.data = Algorithm::direct}}), want);
    // Stages 1 and 2 then hold one copy of the parameters, which all ranks read.
    for (int s : {0, 1, 2, 3})
        EXPECT_EQ(run(GetParam(), stage(s), {.algorithms = {.data = Algorithm::symmetric}}), want) << "stage " << s;
}

TEST_P(ZeroRanks, Bf16StagesAgree) {
    Case base;
    base.zero.param_dtype = base.zero.grad_dtype = DType::bf16;
    const Result want = run(GetParam(), base);
    for (int s = 1; s <= 3; ++s) {
        Case c = base;
        c.zero.stage = s;
        EXPECT_EQ(run(GetParam(), c), want) << "stage " << s;
    }
}

// Stage 1 sums in fp32 and rounds to the wire's type on the way; where that rounds all values first, stages 2 and 3
// have the blocks' gradients in that type. Heads, in several chunks of logits, and tied units are added in fp32.
TEST_P(ZeroRanks, GradientsInTheWiresTypeGiveTheBitsOfThoseThatAreRoundedOnTheWay) {
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::direct, Algorithm::symmetric})
        for (const bool tied : {false, true}) {
            Case base = stage(1);
            base.tied = tied;
            base.zero.param_dtype = base.zero.wire_dtype = DType::bf16;
            const MeshOptions mesh{.algorithms = {.data = algorithm}};
            const Result want = run(GetParam(), base, mesh);
            for (const int s : {2, 3}) {
                base.zero.stage = s;
                EXPECT_EQ(run(GetParam(), base, mesh), want) << name_of(algorithm) << ", stage " << s;
            }
        }
}

TEST(Zero, WhereAllValuesAreRoundedFirstGradientsOfBlocksTakeHalfTheMemory) {
    const std::vector<UnitLayout> units = unit_layouts(ParamTable(zero_case::toy(false), {.sharers = 3}));
    const int64_t block = units[1].padded, end = std::max(units.front().padded, units.back().padded);
    const auto pool = [](int64_t b, int64_t e) { return std::min(2 * b + e, 2 * std::max(b, e)); };  // bytes
    const auto gathered = [](Algorithm algorithm) {
        Case c = stage(2);
        c.zero.param_dtype = c.zero.wire_dtype = DType::bf16;
        c.steps = 1;
        LoopbackHub hub(3);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.algorithms = {.data = algorithm}});
            zero_case::train(mesh, c);
        });
        return hub.device(0).context->memory.peak(DeviceKind::cpu, MemKind::gathered);
    };
    EXPECT_EQ(gathered(Algorithm::ring) - gathered(Algorithm::direct),
              pool(4 * block, 4 * end) - pool(2 * block, 4 * end));
}

// A bucket changes which collective carries a gradient, not who owns it: no bit of any stage. In bytes: less than a
// block, two blocks (11 KiB each), all units.
TEST_P(ZeroRanks, BucketsOfAnySizeGiveTheSameBits) {
    const auto bits = [&](Case base, const MeshOptions& mesh, std::initializer_list<int64_t> buckets) {
        for (int s = mesh.grid.shard_size > 0; s <= 3; ++s) {
            base.zero.stage = s;
            base.zero.bucket_bytes = 0;
            const Result want = run(GetParam(), base, mesh);
            for (const int64_t bytes : buckets) {
                base.zero.bucket_bytes = bytes;
                EXPECT_EQ(run(GetParam(), base, mesh), want) << "stage " << s << ", buckets of " << bytes << " bytes";
            }
        }
    };
    Case one;
    one.steps = 3;
    bits(one, {}, {1000, 30000, 1 << 20});
    one.micro_batches = 2;
    bits(one, {}, {30000, 1 << 20});
    one.zero.accumulate_locally = true, one.zero.overlap = false;
    bits(one, {.algorithms = {.data = Algorithm::direct}}, {1 << 20});
    one.zero.accumulate_locally = false, one.zero.param_dtype = one.zero.grad_dtype = DType::bf16;
    bits(one, {.algorithms = {.data = Algorithm::symmetric}}, {15000});
    if (GetParam() != 4) return;
    bits(one, {.algorithms = {.data = Algorithm::hier}, .ranks_per_node = 2}, {15000});
    bits(one, {.grid = {.shard_size = 2}}, {15000});
}

// Compute stands still from before each collective begins until it is done, so no part of it can lie outside.
TEST(Zero, WithoutOverlapNothingIsHidden) {
    for (int s = 0; s <= 3; ++s) {
        Case c = stage(s);
        c.steps = 2, c.zero.overlap = false;
        LoopbackHub hub(3);
        hub.run([&](int rank) {
            CommMeter meter;
            Mesh mesh(hub, rank, {.collectives = {.meter = &meter}});
            zero_case::train(mesh, c);
            const CommTotals totals = meter.take();
            EXPECT_GT(totals.busy_s, 0) << "stage " << s;
            EXPECT_EQ(totals.overlap_efficiency(), 0) << "stage " << s;
            EXPECT_GE(totals.exposed_s, totals.busy_s) << "stage " << s;
        });
    }
}

// One collective for a step's five units, with the bytes of five.
TEST(Zero, ABucketIsOneCollective) {
    for (int s = 0; s <= 2; ++s) {
        Case c = stage(s);
        c.steps = 2;
        std::vector<int64_t> bytes[2];
        for (const int64_t bucket : {0, 1 << 20}) {
            CommMeter meter;
            c.zero.bucket_bytes = bucket;
            bytes[bucket > 0].resize(3);
            c.bytes_sent = &bytes[bucket > 0];
            run(3, c, {.collectives = {.meter = &meter}});
            const int64_t calls = meter.take().ops[s == 0 ? "all_reduce" : "reduce_scatter"].calls;
            EXPECT_EQ(calls, 3 * 2 * (bucket > 0 ? 1 : 5)) << "stage " << s << ", bucket of " << bucket;
        }
        EXPECT_EQ(bytes[0], bytes[1]) << "stage " << s;
    }
}

// The stochastic rounding of bf16 masters and moments depends only on seed, step and logical offset.
TEST_P(ZeroRanks, StagesAgreeOnStochasticRounding) {
    Case base;
    base.zero.adam_dtype = DType::bf16;
    base.zero.rounding_seed = 7;
    for (DType master : {DType::f32, DType::bf16}) {
        base.zero.master_dtype = master;
        if (master == DType::bf16) base.zero.param_dtype = base.zero.grad_dtype = DType::bf16;
        const Result want = run(GetParam(), base);
        for (int s = 1; s <= 3; ++s) {
            Case c = base;
            c.zero.stage = s;
            EXPECT_EQ(run(GetParam(), c), want) << "stage " << s << ", " << name_of(master) << " masters";
        }
        Case other = base;
        other.zero.rounding_seed = 8;
        EXPECT_NE(run(GetParam(), other), want) << name_of(master) << " masters";
    }
}

// As in PyTorch, where a skipped optimizer.step() leaves the state's step: the run continues as if the bad step
// had not been, its bias correction included.
TEST_P(ZeroRanks, ASkippedUpdateIsAsIfItHadNotBeen) {
    for (const int bad : {1, 4}) {
        Case without = stage(0);
        without.left_out = bad;
        const Result want = run(GetParam(), without);
        EXPECT_EQ(want.updates, 9);
        for (int s = 0; s <= 3; ++s) {
            Case c = stage(s);
            c.bad_step = bad;
            Result got = run(GetParam(), c);
            ASSERT_EQ(got.norms.size(), 10u);
            EXPECT_TRUE(std::isnan(got.norms[size_t(bad - 1)]));
            got.norms.erase(got.norms.begin() + bad - 1);
            EXPECT_EQ(got, want) << "stage " << s << ", step " << bad;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroRanks, testing::Values(3, 4));

TEST(Zero, AccumulatedLocallyAllStagesGiveTheSameBits) {
    Case base = stage(0);
    base.micro_batches = 3;
    const Result want = run(3, base);
    for (int s = 1; s <= 3; ++s) {
        Case c = base;
        c.zero.stage = s;
        c.zero.accumulate_locally = true;
        EXPECT_EQ(run(3, c), want) << "stage " << s;
    }
}

// Relative to the largest weight.
double distance(const Result& a, const Result& b) {
    double worst = 0, scale = 0;
    for (size_t i = 0; i < a.weights.size(); ++i) {
        worst = std::max(worst, std::abs(double(a.weights[i]) - b.weights[i]));
        scale = std::max(scale, std::abs(double(a.weights[i])));
    }
    return worst / scale;
}

// Another order of summation changes a gradient element by a few units of 2^-24 of its largest term. AdamW divides by
// the root of the second moment, so where a gradient is nothing but such noise an update of up to lr = 1e-2 may differ
// in size; where it is not, the relative change stays about 1e-6 and accumulates over 10 steps. The norms are sums over
// all elements and see only the latter. With eps raised to 1e-3 noise of 1e-8 moves an update by at most lr * 1e-5: 10
// steps stay below 1e-5 of weights of order 0.1 with a factor of 10 to spare.
constexpr double kOtherOrder = 1e-4;

Case steady(int s) {
    Case c = stage(s);
    c.clip = 0;
    return c;
}

TEST(Zero, ReducingEveryMicroBatchDiffersOnlyByRounding) {
    Case base = steady(0);
    base.micro_batches = 3;
    const Result want = run(3, base);
    for (int s = 2; s <= 3; ++s) {
        Case c = base;
        c.zero.stage = s;
        const Result got = run(3, c);
        for (size_t i = 0; i < want.norms.size(); ++i)
            EXPECT_NEAR(got.norms[i], want.norms[i], kOtherOrder * want.norms[i]);
        EXPECT_LT(distance(got, want), 10 * kOtherOrder);
    }
}

TEST(Zero, ManyRanksEqualOneWithTheSameGlobalBatch) {
    Case one = steady(0);
    one.B = 12;
    const Result want = run(1, one);
    for (int ranks : {2, 3, 4})
        for (int s : {0, 3}) {
            Case c = steady(s);
            c.B = 12 / ranks;
            const Result got = run(ranks, c);
            for (size_t i = 0; i < want.norms.size(); ++i)
                EXPECT_NEAR(got.norms[i], want.norms[i], kOtherOrder * want.norms[i]);
            EXPECT_LT(distance(got, want), 10 * kOtherOrder) << ranks << " ranks, stage " << s;
        }
}

TEST(Zero, HybridShardingDiffersOnlyByRounding) {
    const Result want = run(4, steady(0));
    for (int s = 1; s <= 3; ++s) {
        const Result got = run(4, steady(s), {.grid = {.shard_size = 2}});
        for (size_t i = 0; i < want.norms.size(); ++i)
            EXPECT_NEAR(got.norms[i], want.norms[i], kOtherOrder * want.norms[i]);
        EXPECT_LT(distance(got, want), 10 * kOtherOrder) << "stage " << s;
        Case accumulated = steady(s);
        accumulated.micro_batches = 2;
        run(4, accumulated, {.grid = {.shard_size = 2}});  // ranks agree
    }
}

TEST(Zero, OneRankRunsEveryStageWithTheSameBits) {
    const Result want = run(1, stage(0));
    for (int s = 1; s <= 3; ++s) EXPECT_EQ(run(1, stage(s)), want) << "stage " << s;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// The ZeRO paper's table 1 (K = 12) with gradients of 2 bytes, and the same with 4: the mean of the ranks' ledgers.
// Each ledger counts its own rank: whole units, or that rank's slices, to the byte.
TEST(Zero, BytesPerParameterAreThePapers) {
    ModelConfig c = zero_case::toy(false);
    c.dim = 128, c.heads = 4, c.kv_heads = 2, c.head_dim = 32, c.ffn = 512, c.vocab = 512;
    c.resolve();
    const ParamTable table(c);
    const double P = double(table.parameters());
    struct Kind {
        int N;
        DType grad, master = DType::f32, adam = DType::f32;
        double K = 12;  // bytes of the optimizer: masters, m and v; bf16 masters are the parameters
    };
    for (const auto& [N, grad_dtype, master, adam, K] : {Kind{2, DType::bf16},
                                                         {4, DType::bf16},
                                                         {4, DType::f32},
                                                         {7, DType::f32},
                                                         {4, DType::bf16, DType::f32, DType::bf16, 8},
                                                         {4, DType::bf16, DType::bf16, DType::bf16, 4}})
        for (int s = 0; s <= 3; ++s) {
            const double g = double(size_of(grad_dtype));
            const double parameters = s >= 3 ? 2.0 / N : 2, gradients = s >= 2 ? g / N : g,
                         optimizer = s >= 1 ? K / N : K;
            LoopbackHub hub(N);
            const ZeroOptions options{.stage = s,
                                      .param_dtype = DType::bf16,
                                      .grad_dtype = grad_dtype,
                                      .wire_dtype = grad_dtype,
                                      .master_dtype = master,
                                      .adam_dtype = adam};
            std::vector<std::array<int64_t, 3>> bytes(static_cast<size_t>(N));
            hub.run([&](int rank) {
                const Device device = hub.device(rank);
                const MemoryLedger& ledger = device.context->memory;
                Mesh mesh(hub, rank);
                Stream compute(device, "compute");
                Zero zero(device, compute, unit_layouts(table), decay_segments(table), options, {}, mesh);
                bytes[size_t(rank)] = {ledger.now(DeviceKind::cpu, MemKind::parameters),
                                       ledger.now(DeviceKind::cpu, MemKind::gradients),
                                       ledger.now(DeviceKind::cpu, MemKind::optimizer)};
                mesh.data().barrier(compute);
                compute.synchronize();
            });
            double measured[3] = {};
            for (int rank = 0; rank < N; ++rank) {
                int64_t whole = 0, slices = 0;
                for (const UnitLayout& u : unit_layouts(table)) {
                    whole += u.padded;
                    slices += u.slice(rank, N).size();
                }
                const std::array<int64_t, 3>& b = bytes[size_t(rank)];
                EXPECT_EQ(b[0], (s >= 3 ? slices : whole) * 2) << "stage " << s << ", rank " << rank << " of " << N;
                EXPECT_EQ(b[1], (s >= 2 ? slices : whole) * size_of(grad_dtype)) << "stage " << s << ", rank " << rank;
                for (int k = 0; k < 3; ++k) measured[k] += double(b[size_t(k)]) / N / P;
            }
            // Padding: a unit of n parameters ends at a multiple of its block (at most 1024 blocks of a multiple of
            // 256), here below 0.1 % of it. The optimizer also knows which elements decay: some 200 bytes per rank.
            EXPECT_NEAR(measured[0], parameters, 0.001 * parameters) << "stage " << s << ", " << N << " ranks";
            EXPECT_NEAR(measured[1], gradients, 0.001 * gradients) << "stage " << s << ", " << N << " ranks";
            EXPECT_NEAR(measured[2], optimizer, 0.001 * optimizer + 500 / P) << "stage " << s << ", " << N << " ranks";
        }
}

// Updates of gradients that are given, with the units shared out among the stages of a pipeline; the model's weights by
// logical offset, and the norms. The gradients' sizes differ by so much that the order of their sums shows.
struct Updated {
    std::vector<float> weights, norms;
    bool operator==(const Updated&) const = default;
};
Updated update_stages(const std::vector<std::vector<int>>& stages, int data, const ZeroOptions& options,
                      int64_t vocab = 37) {
    const ModelConfig config = zero_case::toy(false, 3, vocab);
    const int64_t size = ParamTable(config).size();
    const auto gradient = [](int64_t i, int rank, int step) {
        const uint64_t x =
            uint64_t(i + 7919 * step) * 0x9e3779b97f4a7c15ull + uint64_t(rank + 1) * 0xd1b54a32d192ed03ull;
        return float(int64_t(x >> 40) - (1 << 23)) * std::exp2(float((x >> 8) % 12) - 34);
    };
    LoopbackHub hub(data * int(stages.size()));
    Updated result{.weights = std::vector<float>(size_t(size), 0.0f), .norms = {}};
    std::vector<std::vector<float>> norms(static_cast<size_t>(hub.size()));
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = int(stages.size())}});
        const ParamTable table(config, {.units = stages[size_t(mesh.pp().rank())], .sharers = data});
        Stream compute({DeviceKind::cpu, 0}, "compute");
        compute.enqueue_host([] { omp_set_num_threads(1); });
        AdamWOptions adamw;
        adamw.max_norm = 1e-3f;
        Zero zero({DeviceKind::cpu, 0}, compute, unit_layouts(table), decay_segments(table), options, adamw, mesh);
        initialise_weights(table, 11, compute, zero);
        for (int step = 1; step <= 3; ++step) {
            for (int u = 0; u < int(zero.ownership.units().size()); ++u) {
                const UnitLayout& unit = zero.ownership.units()[size_t(u)];
                float* g = static_cast<float*>(zero.grads.gradients(u));
                compute.synchronize();
                for (int64_t i = 0; i < unit.size; ++i) g[i] += gradient(unit.logical + i, mesh.data().rank(), step);
                zero.grads.reduce(u, /*last=*/true);
            }
            zero.optimizer.gradient_norm();
            zero.optimizer.update(1e-2f, step);
            compute.synchronize();
            norms[size_t(rank)].push_back(*zero.optimizer.norm());
        }
        for (int u = 0; u < int(zero.ownership.units().size()); ++u) {
            const UnitLayout& unit = zero.ownership.units()[size_t(u)];
            zero.params.gather(u);
            const void* p = zero.params.parameters(u);
            compute.synchronize();
            if (mesh.data().rank() == 0)
                with_dtype(options.param_dtype, [&]<class E>() {
                    for (int64_t i = 0; i < unit.size; ++i)
                        result.weights[size_t(unit.logical + i)] = float(static_cast<const E*>(p)[i]);
                });
            zero.params.release(u);
        }
        compute.synchronize();
    });
    for (const auto& n : norms) EXPECT_EQ(n, norms[0]) << "ranks disagree on the norm";
    result.norms = norms[0];
    return result;
}

// Stochastic rounding is drawn from logical offsets and the norm is summed in their order, whoever holds the units.
TEST(Zero, StagesOfAPipelineUpdateToTheSameBits) {
    const ZeroOptions narrow{.param_dtype = DType::bf16,
                             .wire_dtype = DType::f32,
                             .master_dtype = DType::bf16,
                             .adam_dtype = DType::bf16,
                             .rounding_seed = 3};
    for (const ZeroOptions& types : {ZeroOptions{}, narrow}) {
        ZeroOptions options = types;
        const Updated want = update_stages({{0, 1, 2, 3, 4}}, 3, options);
        for (int s = 0; s <= 3; ++s) {
            options.stage = s;
            EXPECT_EQ(update_stages({{0, 1}, {2, 3, 4}}, 3, options), want) << "two stages, ZeRO " << s;
            EXPECT_EQ(update_stages({{0, 4}, {1, 3}, {2}}, 3, options), want) << "both ends on one rank, ZeRO " << s;
        }
        options.stage = 0;
        const Updated equal = update_stages({{0, 1, 2, 3, 4}}, 3, options, zero_case::kEqualVocab);
        for (const int s : {0, 3}) {
            options.stage = s;
            EXPECT_EQ(update_stages({{0, 4}, {1, 3}, {2}}, 3, options, zero_case::kEqualVocab), equal)
                << "equal slices, ZeRO " << s;
        }
    }
}

TEST(Zero, Bf16MastersBeginAsTheRoundedFp32Ones) {
    Case c;
    c.zero.param_dtype = c.zero.grad_dtype = DType::bf16;
    c.steps = 0;
    const Result want = run(3, c);
    c.zero.master_dtype = DType::bf16;
    EXPECT_EQ(run(3, c), want);
}

TEST(Zero, NarrowMastersNeedParametersOfTheirType) {
    Case c;
    c.zero.master_dtype = DType::bf16;
    try {
        run(1, c);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("nearest: master_dtype fp32"), std::string::npos) << e.what();
    }
}

}  // namespace
}  // namespace rz
