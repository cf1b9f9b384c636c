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
#include "test/llama/layout_runs.h"
#include "test/checks.h"

namespace rz {
namespace {

using namespace layout_runs;

class ZeroRanks : public testing::TestWithParam<int> {
   protected:
    const Layout base_ = data_ranks(GetParam());
};

TEST_P(ZeroRanks, AllStagesAndSchedulesGiveTheSameBits) {
    const Outcome want = train(base_);
    expect_rows(kSlicing, base_, has_the_bits_of(want));
    expect_rows(each(kStages, {"--overlap off", "--ring-chunk 512"}), base_, has_the_bits_of(want));
    expect_rows(each({"--zero 3"}, {"--prefetch 0", "--prefetch 3", "--recompute mlp", "--recompute block"}), base_,
                has_the_bits_of(want));
    EXPECT_NE(train(with(base_, "--steps 9")).weights, want.weights);
}

// Units with padding for equal slices; the loss and the logits are those of the vocabulary without it.
TEST_P(ZeroRanks, EqualSlicesGiveTheSameBitsInEveryStage) {
    expect_same_bits(each(kSlicing, {"", "--bucket-bytes 400000"}),
                     with(data_ranks(GetParam(), toy24(false, 3, kEqualVocab)), "--steps 4"));
}

TEST_P(ZeroRanks, TiedHeadsGiveTheSameBitsInEveryStage) {
    expect_same_bits(kSlicing, data_ranks(GetParam(), toy24(/*tied=*/true)));
}

TEST_P(ZeroRanks, DirectGivesTheSameBitsInEveryStage) {
    // With symmetric, stages 1 and 2 hold one copy of the parameters, which all ranks read.
    expect_same_bits(kSlicing, with(base_, "--collectives direct"));
    expect_rows(each({"--collectives symmetric"}, kStages), base_,
                has_the_bits_of(train(with(base_, "--collectives direct"))));
}

TEST_P(ZeroRanks, Bf16StagesAgree) { expect_same_bits(kSlicing, with(base_, "--dtype bf16 --grad-dtype bf16")); }

// Stage 1 sums in fp32 and rounds to the wire's type on the way; where that rounds all values first, stages 2 and 3
// have the blocks' gradients in that type. Heads, in several chunks of logits, and tied units are added in fp32.
TEST_P(ZeroRanks, GradientsInTheWiresTypeGiveTheBitsOfThoseThatAreRoundedOnTheWay) {
    for (const char* algorithm : {"ring", "direct", "symmetric"})
        for (const bool tied : {false, true}) {
            const std::string settings =
                std::string("--zero 1 --dtype bf16 --wire-dtype bf16 --collectives ") + algorithm;
            expect_same_bits({"--zero 2", "--zero 3"}, with(data_ranks(GetParam(), toy24(tied)), settings));
        }
}

TEST(Zero, WhereAllValuesAreRoundedFirstGradientsOfBlocksTakeHalfTheMemory) {
    const std::vector<UnitLayout> units = unit_layouts(ParamTable(toy24(), {.sharers = 3}));
    const int64_t block = units[1].padded, end = std::max(units.front().padded, units.back().padded);
    const auto pool = [](int64_t b, int64_t e) { return std::min(2 * b + e, 2 * std::max(b, e)); };  // bytes
    const auto gathered = [](const char* collectives) {
        LoopbackHub hub(3);
        train(with(data_ranks(3), std::string("--zero 2 --dtype bf16 --wire-dtype bf16 --steps 1 ") + collectives),
              hub);
        return hub.device(0).context->memory.peak(DeviceKind::cpu, MemKind::gathered);
    };
    EXPECT_EQ(gathered("--collectives ring") - gathered("--collectives direct"),
              pool(4 * block, 4 * end) - pool(2 * block, 4 * end));
}

// A bucket changes which collective carries a gradient, not who owns it: no bit of any stage. In bytes: less than a
// block, two blocks (11 KiB each), all units.
TEST_P(ZeroRanks, BucketsOfAnySizeGiveTheSameBits) {
    struct Case {
        const char* settings;
        Rows stages;
        Rows buckets;
        int ranks = 0;  // 0: any
    };
    for (const Case& c :
         {Case{"", kStages, {"1000", "30000", "1048576"}}, Case{"--micro-batches 2", kStages, {"30000", "1048576"}},
          Case{"--micro-batches 2 --accumulate-locally on --overlap off --collectives direct", kStages, {"1048576"}},
          Case{"--micro-batches 2 --overlap off --dtype bf16 --grad-dtype bf16 --collectives symmetric",
               kStages,
               {"15000"}},
          Case{"--micro-batches 2 --overlap off --dtype bf16 --grad-dtype bf16 --collectives hier --ranks-per-node 2",
               kStages,
               {"15000"},
               4},
          Case{"--micro-batches 2 --overlap off --dtype bf16 --grad-dtype bf16 --shard-size 2",
               kSlicing,
               {"15000"},
               4}}) {
        if (c.ranks > 0 && c.ranks != GetParam()) continue;
        SCOPED_TRACE(c.settings);
        for (const std::string& stage : c.stages) {
            SCOPED_TRACE(stage);
            expect_same_bits(each({"--bucket-bytes"}, c.buckets), with(base_, c.settings + (" --steps 3 " + stage)));
        }
    }
}

// Compute stands still from before each collective begins until it is done, so no part of it can lie outside.
TEST(Zero, WithoutOverlapNothingIsHidden) {
    for (const std::string& stage : kStages) {
        SCOPED_TRACE(stage);
        const Layout how = with(data_ranks(3), stage + " --overlap off --steps 2");
        LayoutRun run(how);
        LoopbackHub hub(3);
        hub.run([&](int rank) {
            CommMeter meter;
            Mesh mesh(hub, rank, {.collectives = {.meter = &meter}});
            run.on(mesh);
            const CommTotals totals = meter.take();
            EXPECT_GT(totals.busy_s, 0);
            EXPECT_EQ(totals.overlap_efficiency(), 0);
            EXPECT_GE(totals.exposed_s, totals.busy_s);
        });
    }
}

// One collective for a step's five units, with the bytes of five.
TEST(Zero, ABucketIsOneCollective) {
    for (int s = 0; s <= 2; ++s)
        for (const int64_t bucket : {0, 1 << 20}) {
            Layout how = data_ranks(3);
            CommMeter meter;
            how.steps = 2, how.zero.stage = s, how.zero.bucket_bytes = bucket, how.meter = &meter;
            const Outcome got = train(how);
            EXPECT_EQ(got.sent, got.expected) << "stage " << s;
            const int64_t calls = meter.take().ops[s == 0 ? "all_reduce" : "reduce_scatter"].calls;
            EXPECT_EQ(calls, 3 * 2 * (bucket > 0 ? 1 : 5)) << "stage " << s << ", bucket of " << bucket;
        }
}

// The stochastic rounding of bf16 masters and moments depends only on seed, step and logical offset.
TEST_P(ZeroRanks, StagesAgreeOnStochasticRounding) {
    Layout base = base_;
    base.zero.adam_dtype = DType::bf16;
    base.zero.rounding_seed = 7;
    for (DType master : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(name_of(master));
        base.zero.master_dtype = base.zero.param_dtype = base.zero.grad_dtype = master;
        const Outcome want = train(base);
        expect_rows(kSlicing, base, has_the_bits_of(want));
        Layout other = base;
        other.zero.rounding_seed = 8;
        EXPECT_NE(train(other).weights, want.weights);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroRanks, testing::Values(3, 4));

// As in PyTorch, where a skipped optimizer.step() leaves the state's step: the run continues as if the bad step
// had not been, its bias correction included.
TEST(Zero, ASkippedUpdateIsAsIfItHadNotBeen) {
    for (const int ranks : {1, 3, 4})
        for (const auto& [bad, algorithm] : {std::pair(1, "ring"), {4, "ring"}, {4, "symmetric"}}) {
            const Layout base = with(data_ranks(ranks), std::string("--collectives ") + algorithm);
            Layout without = base, skips = base;
            without.omitted = bad, skips.bad_step = bad;
            const Outcome want = train(without);
            EXPECT_EQ(want.updates, 9);
            expect_rows(kStages, skips, [&, bad = bad](Outcome got) {
                for (auto& norms : got.norms) {
                    ASSERT_EQ(norms.size(), 10u);
                    EXPECT_TRUE(std::isnan(norms[size_t(bad - 1)]));
                    norms.erase(norms.begin() + bad - 1);
                }
                EXPECT_EQ(got.norms, want.norms);
                EXPECT_EQ(got.weights, want.weights);
                EXPECT_EQ(got.updates, want.updates);
                EXPECT_EQ(got.unequal, 0);
            });
        }
}

TEST(Zero, AccumulatedLocallyAllStagesGiveTheSameBits) {
    expect_same_bits(each(kSlicing, {"--accumulate-locally on"}), with(data_ranks(3), "--micro-batches 3"));
}

// Sums in another order, at rates that is_close_to() has its bounds for.
Layout steady(int ranks) {
    Layout how = data_ranks(ranks);
    how.rate = 1e-3f;
    return how;
}

TEST(Zero, ReducingEveryMicroBatchDiffersOnlyByRounding) {
    const Layout base = with(steady(3), "--micro-batches 3");
    expect_rows({"--zero 2", "--zero 3"}, base, is_close_to(train(base), how_far(base)));
}

TEST(Zero, ManyRanksEqualOneWithTheSameGlobalBatch) {
    const Layout one = with(steady(1), "--batch 12");
    expect_rows(each(each({"--dp"}, {"2", "3", "4"}), {"--zero 0", "--zero 3"}), one,
                is_close_to(train(one), how_far(one)));
}

TEST(Zero, HybridShardingDiffersOnlyByRounding) {
    for (const char* settings : {"", "--micro-batches 2"}) {
        const Layout base = with(steady(4), settings);
        expect_rows(each(kSlicing, {"--shard-size 2"}), base, is_close_to(train(base), how_far(base)));
    }
}

TEST(Zero, OneRankRunsEveryStageWithTheSameBits) { expect_same_bits(kSlicing, data_ranks(1)); }

// ---- memory ---------------------------------------------------------------------------------------------------------

// The ZeRO paper's table 1 (K = 12) with gradients of 2 bytes, and the same with 4: the mean of the ranks' ledgers.
// Each ledger counts its own rank: whole units, or that rank's slices, to the byte.
TEST(Zero, BytesPerParameterAreThePapers) {
    ModelConfig c = toy24();
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
    const ModelConfig config = toy24(false, 3, vocab);
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
                for (int64_t i = 0; i < unit.size; ++i)
                    g[i] += gradient(unit.global_offset + i, mesh.data().rank(), step);
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
                        result.weights[size_t(unit.global_offset + i)] = float(static_cast<const E*>(p)[i]);
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
        const Updated equal = update_stages({{0, 1, 2, 3, 4}}, 3, options, kEqualVocab);
        for (const int s : {0, 3}) {
            options.stage = s;
            EXPECT_EQ(update_stages({{0, 4}, {1, 3}, {2}}, 3, options, kEqualVocab), equal)
                << "equal slices, ZeRO " << s;
        }
    }
}

TEST(Zero, Bf16MastersBeginAsTheRoundedFp32Ones) {
    expect_same_bits({"--master-dtype bf16"}, with(data_ranks(3), "--dtype bf16 --grad-dtype bf16 --steps 0"));
}

TEST(Zero, NarrowMastersNeedParametersOfTheirType) {
    EXPECT_TRUE(
        says(error_of([] { train(with(data_ranks(1), "--master-dtype bf16")); }), "nearest: master_dtype fp32"));
}

}  // namespace
}  // namespace rz
