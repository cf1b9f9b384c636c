// The planner: what planners of formulas get wrong, each mistake found by a test of its own. That a plan is what a run
// takes, to the byte, is shown on real runs by test/program/plan_grid.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "dev/bench/harness_targets.h"
#include "kernels/attention/attention.h"
#include "kernels/runtime/context.h"
#include "llama/plan/batch_auto.h"
#include "llama/plan/cost.h"
#include "llama/plan/plan.h"
#include "llama/train/trainer.h"
#include "llama/train/batches.h"
#include "test/checks.h"
#include "test/comm/ranks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

TrainOptions options(const std::string& more = "") {
    return train_options(kToyModel + ("--vocab 256 --batch 2 --batch-tokens 128 --out= " + more));
}

ModelConfig config() { return model_config(options(), 0); }

PlannedRank planned(const TrainOptions& o, const PlannedJob& job, int rank = 0) {
    return plan_ranks(o, model_config(o, 0), job, rank)[0];
}
// Rank 0 of so many on the CPU.
PlannedRank planned(const std::string& flags, int ranks = 4) {
    return planned(options(flags), {.kind = DeviceKind::cpu, .ranks = ranks});
}

// Elements of n slots (zero/README.md): embedding and head share one, or all units share n of the largest.
int64_t slots(int64_t n, const ParamTable& table = ParamTable(config())) {
    const std::vector<UnitLayout> u = unit_layouts(table);
    const int64_t block = u[1].padded, end = std::max(u.front().padded, u.back().padded);
    return std::min(n * block + end, n * std::max(block, end));
}

int64_t of(const PlannedRank& r, MemKind kind) { return r.memory.peak[size_t(kind)]; }

std::vector<UnitLayout> units() { return unit_layouts(ParamTable(config())); }

TEST(Plan, EachUnitGatheredAheadTakesASlot) {
    const PlannedRank none = planned("--zero 3 --prefetch 0"), one = planned("--zero 3 --prefetch 1");
    EXPECT_EQ(of(one, MemKind::gathered) - of(none, MemKind::gathered), 4 * (slots(2) - slots(1)));
}

// A slot of parameters and one of gradients that are not reduced yet; beside the latter the slice that arrives.
TEST(Plan, OneUnitAtATimeTakesTheLargestUnitsSlot) {
    int64_t longest = 0;
    for (const UnitLayout& one : units()) longest = std::max(longest, one.slice(0, 4).size());
    EXPECT_EQ(of(planned("--zero 3 --no-overlap --prefetch 0"), MemKind::gathered), 4 * (2 * slots(1) + longest));
}

// ZeRO, table 1: 2 bytes of parameters, 2 of gradients and 12 of optimizer per parameter in bf16, each divided by N
// from the stage on that slices it. By kind, on every rank, to the byte; all three within the padding of the paper's
// figure.
TEST(Plan, EveryRankKeepsWhatThePapersTableSays) {
    for (const int N : {2, 3})
        for (int stage = 0; stage <= 3; ++stage)
            for (int r = 0; r < N; ++r) {
                SCOPED_TRACE(format("--zero %d, rank %d of %d", stage, r, N));
                const TrainOptions o = train_options(
                    format("--device cpu --preset bytes --batch 1 --seq-len 16 --out= --dtype bf16 --grad-dtype bf16 "
                           "--collectives ring --zero %d",
                           stage));
                const PlannedRank plan = planned(o, {.kind = DeviceKind::cpu, .ranks = N}, r);
                const ParamTable params(model_config(o, 0));
                int64_t own = 0, largest = 0;
                for (const UnitLayout& u : unit_layouts(params)) {
                    own += u.slice(r, N).size();
                    largest = std::max(largest, u.slice(r, N).size());
                }
                const int64_t parameters = of(plan, MemKind::parameters), gradients = of(plan, MemKind::gradients),
                              optimizer = of(plan, MemKind::optimizer),
                              states = 12 * (stage >= 1 ? own : params.size());
                EXPECT_EQ(parameters, 2 * (stage >= 3 ? own : params.size()));
                EXPECT_EQ(gradients, 2 * (stage >= 2 ? own : params.size()));
                EXPECT_GE(optimizer, states);
                EXPECT_LE(optimizer, states + 9 * int64_t(params.decay_segments().size()));  // which elements decay
                int64_t gathered = 0;
                if (stage >= 2) gathered += 2 * slots(2, params) + 2 * largest;  // of gradients, and others' slice
                if (stage >= 3) gathered += 2 * slots(2, params);                // --prefetch 1
                EXPECT_EQ(of(plan, MemKind::gathered), gathered);
                // Padding and slices a block longer than others': at most 1/1024 of a unit each, and 256 elements.
                const double table[4] = {16, 4 + 12.0 / N, 2 + 14.0 / N, 16.0 / N};
                EXPECT_NEAR(double(parameters + gradients + optimizer) / double(params.parameters()), table[stage],
                            0.005 * table[stage]);
            }
}

TEST(Plan, RecomputationKeepsTheResidualStreamAlone) {
    const ModelConfig c = config();
    const int64_t kept = of(planned("--recompute none"), MemKind::activations),
                  again = of(planned("--recompute block"), MemKind::activations);
    // Bytes of one of the two blocks: all that a block keeps, but for the stream that enters it.
    const int64_t N = 2 * 16, Q = (c.heads + 2 * c.kv_heads) * c.head_dim, H = c.heads * c.head_dim;
    const int64_t per_row = 3 * c.dim + Q + H + 2 * c.ffn;  // h1, mid, h2; qkv; o; gate_up
    EXPECT_NEAR(double(kept - again), double(4 * N * per_row), 4.0 * double(N) * 8 + 4096) << "lse, rstd, alignment";
}

TEST(Plan, TheHeadHasAGradientOfItsOwnUnlessItIsTied) {
    const ModelConfig c = config();
    const PlannedRank tied = planned("--head tied", 1), untied = planned("--head untied", 1);
    EXPECT_EQ(of(untied, MemKind::gradients) - of(tied, MemKind::gradients), 4 * c.vocab * c.dim);
}

// ZeRO-2 reduces every micro-batch's gradients, the last one's too, and gathers the parameters once: (M + 1) passes.
TEST(Plan, EveryMicroBatchIsReduced) {
    int64_t pass = 0;
    for (const UnitLayout& u : units()) pass += 4 * (u.padded - u.slice(0, 4).size());
    const auto sent = [](const char* tokens) { return planned(std::string("--zero 2 --batch-tokens ") + tokens).sent; };
    const int64_t one = sent("128"), two = sent("256"), many = sent("1280");
    EXPECT_EQ(two - one, pass);
    EXPECT_EQ(many - one, 9 * pass) << "counted from a few micro-batches";
    EXPECT_GE(one, 2 * pass - 4 * 4096);
}

TEST(Plan, PaddingIsCounted) {
    int64_t padded = 0;
    for (const UnitLayout& u : units()) padded += u.padded;
    ASSERT_GT(padded, config().parameter_count());
    EXPECT_EQ(of(planned(""), MemKind::parameters), 4 * padded);
}

// Attention goes twice then, so keys and values come from the other ranks of the cp axis once more, in each block and
// micro-batch. No other rank's numbers are needed: sums of tensors and blocks meet on the host.
TEST(Plan, AStepWithStatisticsSendsKeysOnceMore) {
    const ModelConfig c = config();
    for (const char* exchange : {"gather", "ring"})
        for (const int64_t micro_batches : {1, 2, 9}) {
            const auto with = [&](int every) {
                return planned(format("--cp 2 --cp-exchange %s --out o --stats-every %d --batch-tokens %d", exchange,
                                      every, int(2 * 16 * micro_batches)),
                               2);
            };
            const PlannedRank second = with(2), each = with(1), none = with(0);
            const int64_t keys = 2 * (16 / 2) * 2 * c.kv_heads * c.head_dim * 4;  // B x T / 2 rows of k and v in fp32
            EXPECT_EQ(second.watched_sent - second.sent, micro_batches * c.layers * keys);
            EXPECT_EQ(second.sent, none.sent);
            EXPECT_EQ(second.first_sent, none.first_sent);
            EXPECT_EQ(each.first_sent - none.first_sent, micro_batches * c.layers * keys);
            EXPECT_EQ(none.watched_sent, 0);
        }
}

// One copy of the parameters for the ranks of a host, at the first of them.
TEST(Plan, MappedMemoryIsCountedAtItsFirstRank) {
    const TrainOptions o = options("--zero 2 --collectives symmetric");
    const auto parameters = [&](int rank) {
        return of(planned(o, {.kind = DeviceKind::cpu, .ranks = 4}, rank), MemKind::parameters);
    };
    EXPECT_EQ(parameters(0), of(planned(""), MemKind::parameters));
    EXPECT_EQ(parameters(1), 0);
    // GPUs each have their own, and a staging area beside.
    const TrainOptions direct = options("--zero 2 --collectives direct");
    const auto on_gpus = [&](const TrainOptions& how) {
        return planned(how, {.kind = DeviceKind::cuda, .ranks = 4}, 1);
    };
    EXPECT_EQ(of(on_gpus(o), MemKind::parameters), of(on_gpus(direct), MemKind::parameters));
    EXPECT_GT(of(on_gpus(o), MemKind::comm), 0);
    const PlannedJob two_hosts{.kind = DeviceKind::cpu, .ranks = 4, .ranks_per_node = 2};
    EXPECT_TRUE(says(error_of([&] { planned(o, two_hosts); }), "--collectives hier-symmetric"));
}

// Flags that a target can't train with are found here, not when someone waits for its times.
TEST(Plan, EveryTargetOfTheHarnessCanBePlanned) {
    for (const bool cuda : {false, true})
        for (const BenchTarget& t : bench_targets()) {
            if (t.tool != "train_llama" || (cuda ? t.host : t.gpu)) continue;
            for (const int ranks : {1, 2, 4}) {
                if (ranks % t.needs != 0) continue;
                SCOPED_TRACE(t.name + (cuda ? " on GPUs" : "") + format(", %d ranks", ranks));
                Command command;
                ASSERT_FALSE(
                    parse_command_line(joined_flags(words_of(base_flags(cuda) + " --device " + (cuda ? "cuda" : "cpu")),
                                                    words_of(t.flags)),
                                       command));
                const TrainOptions o = std::get<TrainOptions>(command);
                PlannedJob job{.kind = cuda ? DeviceKind::cuda : DeviceKind::cpu, .ranks = ranks};
                job.alone = true;
                EXPECT_NO_THROW(planned(o, job));
            }
        }
}

// Over the bus in a step: 12 bytes of each parameter both ways for masters and moments in fp32, 8 with moments in
// bf16; for the host's AdamW a gradient and a parameter of 2, and 28 in its own memory; 2 for each element of a
// residual stream.
TEST(Plan, WhatIsOffloadedCrossesTheBusToTheByte) {
    int64_t elements = 0;
    for (const UnitLayout& u : units()) elements += u.padded;
    const auto bus = [](const std::string& flags) {
        const TrainOptions o =
            options(flags + " --device cuda --dtype bf16 --grad-dtype bf16 --zero 3 --recompute block");
        return planned(o, {.kind = DeviceKind::cuda, .ranks = 1}).memory;
    };
    const auto is = [](const PlannedMemory& m, int64_t from, int64_t to, int64_t in) {
        EXPECT_EQ(m.from_host, from);
        EXPECT_EQ(m.to_host, to);
        EXPECT_EQ(m.in_host, in);
        EXPECT_EQ(host_copies_text(m).empty(), from == 0 && to == 0);
    };
    is(bus(""), 0, 0, 0);
    for (const std::string way : {"--offload-optimizer stream", "--offload-optimizer zero-copy"}) {
        is(bus(way), 12 * elements, 12 * elements, 0);
        is(bus(way + " --adam-dtype bf16"), 8 * elements, 8 * elements, 0);
    }
    is(bus("--offload-optimizer cpu"), 2 * elements, 2 * elements, 28 * elements);
    // Four micro-batches of 2 x 16 tokens. Three streams of four blocks go, and two still have a place when they are
    // read.
    const int64_t residual = 4 * 2 * 16 * config().dim * 2;
    is(bus("--offload-activations on --layers 4"), residual, 3 * residual, 0);
}

// A run's time on a machine where only products cost, and nothing else: FLOPs over the rate.
TEST(Plan, ProductsAloneTakeTheirFlops) {
    UnknownOps unknown;
    Machine m;
    m.memory_gbs = 1e9, m.gemm_fp32 = m.gemm_bf16 = 1e-6, m.attention_fp32_share = 1e9;
    for (auto rates : {&Machine::attention_forward_128, &Machine::attention_backward_128,
                       &Machine::attention_forward_64, &Machine::attention_backward_64})
        (m.*rates).assign(4, 1);
    const TrainOptions one = options();
    const PlannedRank r =
        plan_ranks(one, config(), {.kind = DeviceKind::cpu, .ranks = 1, .cost = make_cost(m, unknown)}, 0)[0];
    const double flops = 6.0 * double(config().matmul_parameters()) * 128;  // four micro-batches of 32 tokens
    EXPECT_NEAR(kSecondsPerTick * double(r.step), flops / 1e6, 1e-3 * flops / 1e6);
    EXPECT_TRUE(unknown.names.empty()) << *unknown.names.begin();
}

// 4,096 ranks and 1,024 blocks: every link still passes each block on once.
TEST(Plan, ALargeRingWithFewOwnersTakesAsLongAsWithManyOfTheSameBytes) {
    constexpr Ticks kLatency = 1000;
    constexpr int64_t kMean = 1 << 10;
    constexpr int N = 4096;
    RankContext context;
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device, 0, N, even_link(kLatency, kTicksPerSecond),
              {.algorithms = {Algorithm::ring}, .collectives = {.chunk_bytes = 16 * kMean, .lanes = 1}});
    Stream stream(device, "comm");
    std::vector<int64_t> offsets;
    for (int r = 0; r <= N; ++r) offsets.push_back(std::min(r, 1024) * 4 * kMean);
    const Buffer x(device, 4 * N * kMean, MemKind::data, "x");
    mesh.data().all_gather(stream, all_gather_f32(x.data(), x.data(), offsets));
    EXPECT_EQ(stream.clock(), (N - 1) * (kLatency + 4 * kMean));
}

// On two levels the first exchange is played message by message, and the next one of the same slices is told from it.
TEST(Plan, TheSameExchangeOverTwoLevelsTakesTheSameTimeAgain) {
    Machine m;
    m.ranks_per_node = 8, m.link_gbs = 100, m.link_us = 2, m.card_gbs = 10, m.card_us = 5, m.cards = 8;
    RankContext context;
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device, 0, 512, make_network(m), {.algorithms = {Algorithm::hier}, .ranks_per_node = 8});
    Stream stream(device, "comm");
    const auto offsets = even_offsets(int64_t(1) << 22, 512);
    const Buffer x(device, int64_t(4) << 22, MemKind::data, "x");
    std::vector<Ticks> times;
    std::vector<int64_t> sent;
    for (int i = 0; i < 3; ++i) {
        const Ticks before = stream.clock();
        const int64_t so_far = mesh.bytes_sent();
        mesh.data().all_gather(stream, all_gather_f32(x.data(), x.data(), offsets));
        times.push_back(stream.clock() - before), sent.push_back(mesh.bytes_sent() - so_far);
    }
    EXPECT_EQ(times, std::vector<Ticks>(3, times[0]));
    EXPECT_EQ(sent, std::vector<int64_t>(3, sent[0]));
    // At least what the card needs for this rank's slice to the 63 other nodes.
    EXPECT_GE(kSecondsPerTick * double(times[0]), 63 * 4.0 * double(1 << 22) / 512 / 10e9);
}

// --comm-sms: Hopper's attention has the fewer multiprocessors; kernels that do not stay on theirs have all.
TEST(Plan, AttentionIsSlowerWhereItLeavesMultiprocessorsFree) {
    AttentionForward a;
    a.shape.B = 1, a.shape.Tq = a.shape.Tk = 4096, a.shape.H = a.shape.K = 32, a.shape.D = 128;
    a.shape.dtype = DType::bf16;
    const auto seconds = [&](const char* machine, int reserved_sms) {
        Machine m = load_machine(machine);
        m.op_us = 0;
        a.beside.reserved_sms = reserved_sms;
        OpWork work;
        EXPECT_TRUE(find_work({.type = &typeid(AttentionForward), .args = &a}, work));
        return seconds_of(m, work);
    };
    EXPECT_NEAR(seconds("h100-80g", 33) / seconds("h100-80g", 0), 4.0 / 3, 1e-9);
    EXPECT_EQ(seconds("a100-80g", 33), seconds("a100-80g", 0));
}

// RoPE's backward pass is a part of attention's: forward alone has ops of its own. In fp32 it takes a second kernel.
TEST(Plan, RopesBackwardPassIsAPartOfAttentions) {
    int ropes = 0, forwards = 0, backwards = 0;
    const TrainOptions o = options("--device cuda --dtype fp32");
    PlannedJob job{.kind = DeviceKind::cuda, .ranks = 1};
    job.cost = [&](const OpCall& op, const Stream&) {
        ropes += op.as<Rope>() != nullptr, forwards += op.as<AttentionForward>() != nullptr;
        if (const auto* a = op.as<AttentionBackward>()) {
            ++backwards;
            OpWork work;
            EXPECT_TRUE(find_work(op, work));
            EXPECT_EQ(work.more_bytes, double(2 * a->shape.B * a->shape.Tq * (a->shape.H + a->shape.K) * 8 * 4));
            AttentionBackward tensor_cores = *a;
            tensor_cores.shape.D = 64, tensor_cores.shape.dtype = DType::bf16;
            OpWork less;
            EXPECT_TRUE(find_work({.type = &typeid(tensor_cores), .args = &tensor_cores}, less));
            EXPECT_EQ(less.more_bytes, 0);
        }
        return Ticks(0);
    };
    planned(o, job);
    EXPECT_GT(backwards, 0);
    EXPECT_EQ(ropes, forwards);
}

// Whole sequences, a chunk with all keys up to its end, and a ring's chunk of earlier keys: the time in a window over
// that of a causal mask is what counting the pairs one by one gives.
TEST(Plan, AttentionTakesTheTimeOfThePairsInTheWindow) {
    Machine m = load_machine("h100-80g");
    m.op_us = 0, m.memory_gbs = 1e12;
    UnknownOps unknown;
    Stream stream(Device{DeviceKind::cpu}, "compute");
    for (const auto& [Tq, Tk, at] : {std::tuple<int, int, int>{96, 96, 0}, {32, 96, 64}, {32, 32, 64}})
        for (const int window : {1, 20, 32, 33, 64, 95, 96, 200}) {
            AttentionForward a;
            a.shape.B = a.shape.H = a.shape.K = 4096, a.shape.Tq = Tq, a.shape.Tk = Tk, a.shape.q_at = at;
            a.shape.D = 128, a.shape.dtype = DType::bf16;
            AttentionBackward b;
            b.shape = a.shape;
            int all = 0, seen = 0;
            for (int q = at; q < at + Tq; ++q)
                for (int k = 0; k < std::min(Tk, q + 1); ++k) ++all, seen += k > q - window;
            const auto time = [&](const OpCall& op, int64_t w) { return double(make_cost(m, unknown, w)(op, stream)); };
            for (const OpCall& op : {OpCall{.type = &typeid(a), .args = &a}, OpCall{.type = &typeid(b), .args = &b}})
                EXPECT_NEAR(time(op, window) / time(op, 0), double(seen) / all, 1e-6)
                    << Tq << " " << at << " " << window;
        }
    ModelConfig c = config();
    EXPECT_EQ(attention_flops_per_token(c, 64), 6.0 * 2 * 16 * 64);
    c.window = 16;  // 64 x 64 / 2 without the 48 x 48 / 2 before the window
    EXPECT_EQ(attention_flops_per_token(c, 64), 6.0 * 2 * 16 * (64 * 64 - 48 * 48) / 64);
    EXPECT_EQ(attention_flops_per_token(c, 16), 6.0 * 2 * 16 * 16);
}

// A ring of two has ten causal pairs of chunks, of which rank 0, with the first and the last chunk, has five.
TEST(Plan, ARingLeavesOutChunksBeforeTheWindow) {
    const auto calls = [](const char* window) {
        const TrainOptions o = options(std::string("--seq-len 32 --cp 2 --cp-exchange ring --window ") + window);
        PlannedJob job{.kind = DeviceKind::cpu, .ranks = 2};
        int64_t n = 0;
        job.cost = [&n](const OpCall& op, const Stream&) {
            return n += op.as<AttentionForward>() != nullptr, Ticks(0);
        };
        job.alone = true;
        planned(o, job);
        return n;
    };
    const int64_t each = calls("0") / 5;
    EXPECT_GT(each, 0);
    for (const auto& [window, want] : {std::pair("18", 5), {"17", 4}, {"10", 4}, {"9", 3}, {"2", 3}, {"1", 2}})
        EXPECT_EQ(calls(window), want * each) << window;
}

// In tp 2 x pp 2 one rank of each stage is planned, and stands for its peer.
TEST(Plan, ARankStandsForItsPeersOnTheTensorAxis) {
    Machine m;
    m.ranks_per_node = 8, m.link_gbs = 0.1, m.link_us = 2, m.card_gbs = 10, m.card_us = 5;
    m.memory_gbs = 1, m.gemm_fp32 = m.gemm_bf16 = 1e-3, m.op_us = 1;
    for (auto rates : {&Machine::attention_forward_128, &Machine::attention_backward_128,
                       &Machine::attention_forward_64, &Machine::attention_backward_64})
        (m.*rates).assign(4, 1e-3);
    const TrainOptions o = options("--tp 2 --pp 2 --zero 1");
    ModelConfig c = config();
    c.kv_heads = 2, c.layers = 4;
    UnknownOps unknown;
    PlannedJob job{.kind = DeviceKind::cpu, .ranks = 8, .ranks_per_node = 8};
    job.network = make_network(m), job.cost = make_cost(m, unknown);
    std::vector<PlannedRank> all = plan_ranks(o, c, job, 0);
    job.alone = true;
    const std::vector<PlannedRank> some = plan_ranks(o, c, job, 0);
    ASSERT_EQ(all.size(), 4u);
    ASSERT_EQ(some.size(), 2u);
    for (const PlannedRank& one : some) {
        const auto same = std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.rank == one.rank; });
        ASSERT_NE(same, all.end());
        // But for sums of the norm's blocks, 12 bytes each: a tp peer's slice may begin and end within others of them.
        constexpr size_t kWorkspace = size_t(MemKind::workspace);
        auto alone = one.memory.peak, together = same->memory.peak;
        EXPECT_NEAR(double(alone[kWorkspace]), double(together[kWorkspace]), 1e-4 * double(together[kWorkspace]));
        EXPECT_EQ((alone[kWorkspace] - together[kWorkspace]) % 12, 0) << one.rank;
        EXPECT_EQ(one.memory.total - alone[kWorkspace], same->memory.total - together[kWorkspace]) << one.rank;
        alone[kWorkspace] = together[kWorkspace];
        EXPECT_EQ(alone, together) << one.rank;
        EXPECT_EQ(one.sent, same->sent) << one.rank;
        EXPECT_NEAR(double(one.step), double(same->step), 0.02 * double(same->step)) << one.rank;
    }
}

// The plans of all ranks of a host, each with its margin, fit into the host's memory, and no larger micro-batch would.
TEST(BatchAuto, TheRanksOfAHostShareItsMemory) {
    constexpr int64_t kMiB = 1 << 20, kFree = 1024 * kMiB;
    for (const int ranks : {1, 2, 4}) {
        const TrainOptions asked =
            train_options(kToyModel + std::string("--seq-len 128 --data synthetic --batch auto --out="));
        std::vector<TrainOptions> chosen(size_t(ranks), asked);
        std::vector<std::string> lines(chosen.size());
        run_processes(ranks, [&](Process& process) {
            const size_t rank = size_t(process.rank());
            MeteredMesh mesh;
            lines[rank] = choose_batch(chosen[rank], process, mesh, FreeMemory{kFree, kFree});
        });
        const int64_t margin = kFree / ranks / 20 + (ranks > 1 ? 128 : 64) * kMiB;
        const auto together = [&](int64_t batch) {
            TrainOptions o = asked;
            o.batch = batch;
            const PlannedJob job{.kind = DeviceKind::cpu, .ranks = ranks, .ranks_per_node = ranks};
            return ranks * (plan_ranks(o, model_config(o, find_data(o).vocab), job, 0)[0].memory.total + margin);
        };
        SCOPED_TRACE(format("%d ranks, %lld sequences", ranks, (long long)chosen[0].batch));
        for (const TrainOptions& o : chosen) EXPECT_EQ(o.batch, chosen[0].batch);
        EXPECT_TRUE(says(lines[0], human_bytes(kFree / ranks) + " free"));
        EXPECT_LE(together(chosen[0].batch), kFree);
        EXPECT_GT(together(chosen[0].batch + std::max<int64_t>(1, chosen[0].batch / 8)), kFree) << "the next it tries";
    }
}

// A pair that met in a step alone would take NCCL's memory there. Every message of a planned step is between two that
// step_peers() has; where only this rank is planned, so that what it receives is seen too, it has no other.
TEST(Plan, AStepSendsToItsPeersAlone) {
    const auto layouts = std::to_array<std::pair<int, const char*>>({
        {4, "--zero 3"},
        {4, "--zero 2 --collectives direct"},
        {4, "--zero 3 --collectives symmetric"},
        {4, "--zero 3 --collectives library"},
        {8, "--zero 3"},
        {8, "--zero 3 --collectives ring"},
        {8, "--zero 3 --shard-size 4"},
        {8, "--zero 3 --collectives hier-symmetric"},
        {8, "--tp 2 --heads 4 --kv-heads 2 --zero 3"},
        {4, "--tp 4 --heads 4 --kv-heads 4 --collectives tp=ring"},
        {4, "--tp 4 --heads 4 --kv-heads 4 --tp-overlap on"},
        {8, "--cp 2 --zero 1"},
        {4, "--zero 3 --optimizer muon"},
        {8, "--zero 3 --optimizer muon"},
        {4, "--tp 4 --heads 4 --kv-heads 4 --collectives tp=ring --optimizer muon"},
        {4, "--pp 4 --pp-schedule dualpipe --layers 4 --head untied"},
        {8, "--pp 2 --zero 3 --layers 4 --head untied"},
        {8, "--pp 4 --pp-schedule 1f1b --layers 4 --zero 1"},
    });
    for (const auto& [ranks, flags] : layouts) {
        SCOPED_TRACE(format("%d ranks %s", ranks, flags));
        TrainOptions o = options(flags);
        o.batch_tokens = 0, o.grad_accum = o.pp == 4 ? 8 : 4;
        using Sets = std::pair<std::set<int>, std::set<int>>;  // to, from
        std::map<std::string, Sets> met, expected;
        std::mutex mutex;
        const auto watch = [&](const GroupKind& group, const std::vector<int>&, bool) -> PlannedLink {
            return [&, name = group.name()](int from, int to, int64_t, Ticks ready) {
                const std::lock_guard lock(mutex);
                if (from == 0) met[name].first.insert(to);
                if (to == 0) met[name].second.insert(from);
                return ready;
            };
        };
        planned(o, {.kind = DeviceKind::cuda, .ranks = ranks, .ranks_per_node = 4, .network = watch});
        GridOptions how = grid_options(o);
        for (int r = 0; r < ranks; ++r) how.nodes.push_back(r / 4);
        how.by_columns = is_two_level(o.collectives.data_on(Grid(ranks, how).nodes_of_state(), /*gpus=*/true));
        for (const GroupPeers& group : step_peers(Grid(ranks, how), o.collectives, step_messages(o), 0, 132, 0)) {
            expected[group.kind.name()].first.insert(group.to.begin(), group.to.end());
            expected[group.kind.name()].second.insert(group.from.begin(), group.from.end());
        }
        EXPECT_FALSE(met.empty());
        for (auto& [group, sets] : met) {
            EXPECT_TRUE(std::ranges::includes(expected[group].first, sets.first)) << group;
            EXPECT_TRUE(std::ranges::includes(expected[group].second, sets.second)) << group;
        }
        for (auto& [group, sets] : expected)
            if (o.pp == 1 && o.optimizer == Optimizer::adamw) {
                EXPECT_EQ(sets, met[group]) << group;
            }
    }
}

// Two nodes of four: a ring over all is as slow as the one card that each node uses; four rings across, each from its
// own rank, share what cards there are.
TEST(Plan, ARingIsAsFastAsItsSlowestLink) {
    Machine m;
    m.ranks_per_node = 4, m.link_gbs = 100, m.card_gbs = 10, m.cards = 4;
    const PlannedNetwork network = make_network(m);
    const auto ticks = [&](const std::vector<int>& members, int from, int to) {
        return network({Axis::data}, members, /*alone=*/true)(from, to, 1'000'000, 0);
    };
    const Ticks microsecond = kTicksPerSecond / 1'000'000;
    EXPECT_EQ(ticks({0, 1, 2, 3}, 1, 2), 10 * microsecond) << "inside a node";
    EXPECT_EQ(ticks({0, 1, 2, 3, 4, 5, 6, 7}, 1, 2), 100 * microsecond) << "each rank waits for the one that sends out";
    EXPECT_EQ(ticks({1, 5}, 1, 5), 100 * microsecond) << "four cards for four rings";
    m.cards = 1;
    EXPECT_EQ(make_network(m)({Axis::data}, {1, 5}, true)(1, 5, 1'000'000, 0), 400 * microsecond)
        << "one card for four rings";
}

// A pair's channels carry its messages one after the other; those to several peers go out side by side.
TEST(Plan, AMessageIsNotFasterThanItsChannels) {
    Machine m;
    m.ranks_per_node = 3, m.link_gbs = 100, m.card_gbs = 50, m.cards = 3;
    const auto channels = [](const GroupKind& group) -> std::optional<NcclChannels> {
        if (group.axis == Axis::tp) return std::nullopt;
        return NcclChannels{.max_ctas = 2};
    };
    const Ticks microsecond = kTicksPerSecond / 1'000'000;
    const std::vector<int> members = {0, 1, 2};
    EXPECT_EQ(make_network(m, channels)({Axis::data}, members, true)(0, 1, 1'000'000, 0), 10 * microsecond)
        << "the machine has no rate of a channel";
    m.link_channel_gbs = 10, m.card_channel_gbs = 20;
    const PlannedLink link = make_network(m, channels)({Axis::data}, members, true);
    EXPECT_EQ(link(0, 1, 1'000'000, 0), 100 * microsecond) << "one channel of two: three ranks share them";
    EXPECT_EQ(link(0, 2, 1'000'000, 0), 100 * microsecond);
    EXPECT_EQ(link(0, 1, 1'000'000, 0), 200 * microsecond);
    EXPECT_EQ(link(0, 1, 20'000'000, 0), 1200 * microsecond) << "above 16 MiB both";
    EXPECT_EQ(make_network(m, channels)({Axis::tp}, members, true)(0, 1, 1'000'000, 0), 10 * microsecond)
        << "nothing is said of this group";
    EXPECT_EQ(make_network(m, channels)({Axis::data}, {0, 3}, true)(0, 3, 1'000'000, 0), 25 * microsecond)
        << "over the network both: 128 KiB fill one";
}

}  // namespace
}  // namespace rz
