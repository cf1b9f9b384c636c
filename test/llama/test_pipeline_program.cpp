#include "llama/parallel/pipeline_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "llama/model/stage_cut.h"
#include "test/llama/virtual_time.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

using Kind = PipelineKind;

template <class F>
void for_each_schedule(const F& f) {
    for (Kind kind : pipeline_kinds())
        for (int P : {1, 2, 3, 4, 8})
            for (int M : {1, 2, 4, 6, 8, 16})
                if (find_pipeline_refusal(kind, {P, M}).empty()) f(kind, make_pipeline(kind, {P, M}));
}

std::string name_of_case(Kind kind, const PipelineSchedule& s) {
    return format("%s, %d ranks, %d micro-batches", name_of(kind), s.ranks, s.micro_batches);
}

// Their time is measured on ranks (test_pipeline_executor.cpp).
TEST(PipelineProgram, ComesToItsEndWhateverTheCosts) {
    for_each_schedule([&](Kind kind, const PipelineSchedule& s) {
        for (const int64_t message : {0, 1, 3})
            for (const bool one_lane : {false, true}) {
                PipelineCosts costs = PipelineCosts::even(s, 4, 6, 2, message);
                costs.one_lane = one_lane;
                const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
                ASSERT_EQ(find_rendezvous_error(programs, one_lane), "")
                    << name_of_case(kind, s) << ", message " << message << (one_lane ? ", one lane" : "");
            }
    });
}

// The tasks of a fused cell one after the other, as programs run them: no rank ends later than with the cell as one
// task, whose outputs leave when both are done. A cell pays only where the two together take less time than apart.
TEST(PipelineProgram, FusedCellsRunOneTaskAfterTheOtherAndNeverLater) {
    int sooner = 0;
    for (const PipelineKind kind : {PipelineKind::dualpipe, PipelineKind::dualpipev})
        for (int P = 1; P <= 8; ++P)
            for (const int M : {2 * P, 2 * P + 2, 4 * P})
                for (const auto& [F, I, W] : {std::tuple(8, 8, 8), {8, 16, 8}, {16, 8, 24}, {8, 10, 6}})
                    for (const int64_t message : {0, 3}) {
                        if (!find_pipeline_refusal(kind, {P, M}).empty()) continue;
                        const PipelineSchedule s = make_pipeline(kind, {P, M});
                        const PipelineCosts costs = PipelineCosts::even(s, F, I, W, message);
                        const PipelineRun fused = simulate(s, costs), parted = simulate(unfused(s), costs);
                        for (int r = 0; r < P; ++r)
                            ASSERT_LE(parted.ranks[size_t(r)].last_end, fused.ranks[size_t(r)].last_end)
                                << name_of(kind) << " " << P << "," << M << " message " << message;
                        sooner += parted.makespan < fused.makespan;
                    }
    EXPECT_GT(sooner, 100);
}

TEST(PipelineProgram, OneRankIsTheSingleStageProgramInGroups) {
    const PipelineSchedule s = make_pipeline(Kind::f1b1, {1, 3});
    const auto o = two_blocks_a_stage(s);
    const auto programs = pipeline_programs(s, PipelineCosts::even(s, 1, 1, 1), o);
    ASSERT_EQ(programs.size(), 1u);
    // The same passes over the same units, but whole stages where nothing is reduced.
    std::string got;
    for (const Instr& i : programs[0].program.code) {
        EXPECT_NE(i.what, Do::send);
        EXPECT_NE(i.what, Do::recv);
        got += format("%s%d-%d.%d ", name_of(i.what), i.first_unit, i.last_unit, i.micro_batch);
    }
    EXPECT_EQ(
        got,
        "forward0-3.0 backward0-3.0 forward0-3.1 backward0-3.1 forward0-3.2 backward3-3.2 reduce3-3.2 backward2-2.2 "
        "reduce2-2.2 backward1-1.2 reduce1-1.2 backward0-0.2 reduce0-0.2 ");
    EXPECT_EQ(programs[0].program.slots, (std::vector<StageSlots>{{0, 1, 0}}));
}

TEST(PipelineProgram, SlotsAreThoseTheSimulationHolds) {
    for_each_schedule([&](Kind kind, const PipelineSchedule& s) {
        const PipelineCosts costs = PipelineCosts::even(s, 4, 4, 4);
        const PipelineRun run = simulate(unfused(s), costs);
        const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
        for (int r = 0; r < s.ranks; ++r)
            for (const StageSlots& slots : programs[size_t(r)].program.slots) {
                int held = 0, pending = 0, most = 0, most_pending = 0;
                for (const Cell& c : s.order[size_t(r)])
                    for (const Task* t : {&c.a, c.with ? &*c.with : nullptr}) {
                        if (!t || t->stage != slots.stage) continue;
                        held += t->op == Op::F ? 1 : t->op == Op::W ? 0 : -1;
                        pending += t->op == Op::I ? 1 : t->op == Op::W ? -1 : 0;
                        most = std::max(most, held), most_pending = std::max(most_pending, pending);
                    }
                // Beyond what is in flight: what was received and waits.
                EXPECT_GE(slots.forward, most) << name_of_case(kind, s) << " rank " << r;
                EXPECT_LE(slots.forward, most + 1 + run.ranks[size_t(r)].peak_queue_forward) << name_of_case(kind, s);
                EXPECT_EQ(slots.weight, most_pending) << name_of_case(kind, s) << " rank " << r;
            }
    });
    const PipelineSchedule s = make_pipeline(Kind::f1b1, {4, 8});
    const auto programs = pipeline_programs(s, PipelineCosts::even(s, 4, 4, 4), two_blocks_a_stage(s));
    std::vector<int> slots;
    for (const auto& p : programs) slots.push_back(p.program.slots[0].forward);
    EXPECT_EQ(slots, (std::vector<int>{4, 4, 3, 2})) << "one more than in flight where inputs are received early";
}

// ---- ZeRO -----------------------------------------------------------------------------------------------------------

TEST(PipelineProgram, EveryPolicyGivesProgramsThatRun) {
    for_each_schedule([&](Kind kind, const PipelineSchedule& s) {
        if (s.ranks > 4) return;
        for (const bool each : {false, true})
            for (const GatherFor gather : {GatherFor::step, GatherFor::window, GatherFor::op})
                for (const bool tied : {false, true}) {
                    if (tied && kind != Kind::zb_v && kind != Kind::dualpipev) continue;
                    auto o = two_blocks_a_stage(s);
                    o.tied = tied;
                    o.gather = gather;
                    o.shard = {.sharded_parameters = true,
                               .reduce_each = each,
                               .prefetch = 2,
                               .prefetch_next_micro_batch = true};
                    const auto programs = pipeline_programs(s, PipelineCosts::even(s, 2, 2, 2), o);
                    ASSERT_EQ(find_rendezvous_error(programs), "") << name_of_case(kind, s);
                }
    });
}

// Gathers of a stage and step, of blocks, against a cache that evicts what is used farthest in the future.
TEST(PipelineProgram, WindowsGatherAsOftenAsPublished) {
    struct Row {
        Kind kind;
        int V;
        double gathers[3];  // of windows of 1, 2, 3 stages
    };
    for (const Row& row : {Row{Kind::interleaved, 2, {14.0, 1.0, 1.0}}, Row{Kind::interleaved, 4, {20.0, 4.5, 2.75}},
                           Row{Kind::zb_v, 2, {16.5, 1.0, 1.0}}, Row{Kind::dualpipev, 2, {17.5, 1.0, 1.0}}}) {
        const PipelineSchedule s = make_pipeline(row.kind, {4, 16, row.V});
        for (int window = 1; window <= 3; ++window) {
            auto o = two_blocks_a_stage(s);
            o.shard.sharded_parameters = true;
            o.gather = GatherFor::window;
            o.window = window;
            int gathers = 0;
            for (const auto& rank : pipeline_programs(s, PipelineCosts::even(s, 4, 4, 4), o))
                for (const Instr& i : rank.program.code)
                    gathers += i.what == Do::gather && i.first_unit > 0 && i.first_unit <= 2 * s.stages;
            EXPECT_EQ(double(gathers) / 2 / s.stages, row.gathers[window - 1]) << name_of(row.kind) << " " << window;
        }
    }
}

TEST(PipelineProgram, GathersForTheStepAndForEachUse) {
    const PipelineSchedule s = make_pipeline(Kind::zb_v, {2, 8});
    auto o = two_blocks_a_stage(s);
    o.shard = {.sharded_parameters = true, .prefetch = 1, .prefetch_next_micro_batch = true};
    for (const GatherFor gather : {GatherFor::step, GatherFor::op}) {
        o.gather = gather;
        std::vector<int> gathers(o.unit_bytes.size());
        for (const auto& rank : pipeline_programs(s, PipelineCosts::even(s, 2, 2, 2), o))
            for (const Instr& i : rank.program.code) gathers[size_t(i.first_unit)] += i.what == Do::gather;
        const bool op = gather == GatherFor::op;
        EXPECT_EQ(gathers.front(), op ? 8 : 1) << "its backward pass reads nothing";
        for (size_t u = 1; u + 1 < gathers.size(); ++u) {
            EXPECT_LE(gathers[u], op ? 16 : 1);
            EXPECT_GE(gathers[u], op ? 8 : 1);  // kept where the next task reads it too
        }
    }
}

// ---- mutants of programs that run together --------------------------------------------------------------------------

TEST(PipelineProgram, RendezvousRefusesOddMessagesAndDeadlocks) {
    const PipelineSchedule s = make_pipeline(Kind::f1b1, {3, 6});
    const auto good = pipeline_programs(s, PipelineCosts::even(s, 1, 1, 1), two_blocks_a_stage(s));
    EXPECT_EQ(find_rendezvous_error(good), "");
    const auto positions = [&](int rank, Do what) {
        std::vector<size_t> out;
        const auto& code = good[size_t(rank)].program.code;
        for (size_t k = 0; k < code.size(); ++k)
            if (code[k].what == what) out.push_back(k);
        return out;
    };
    int mutants = 0;
    for (int r = 0; r < 3; ++r)
        for (const Do what : {Do::send, Do::recv}) {
            const auto all = positions(r, what);
            for (size_t n = 0; n < all.size(); ++n) {
                auto bad = good;
                auto& code = bad[size_t(r)].program.code;
                code.erase(code.begin() + long(all[n]));
                EXPECT_NE(find_rendezvous_error(bad), "")
                    << "without " << describe(good[size_t(r)].program.code[all[n]]);
                ++mutants;
                // The next message of the same lane first: the k-th send is not the k-th recv.
                for (size_t next = n + 1; next < all.size(); ++next) {
                    bad = good;
                    auto& swapped = bad[size_t(r)].program.code;
                    if (swapped[all[n]].lane != swapped[all[next]].lane) continue;
                    std::swap(swapped[all[n]], swapped[all[next]]);
                    EXPECT_NE(find_rendezvous_error(bad), "");
                    ++mutants;
                    break;
                }
            }
        }
    EXPECT_GT(mutants, 40);
}

TEST(PipelineProgram, OneLaneInTheOrderOfEachRanksOwnCellsDeadlocks) {
    // Each rank's messages in the order in which its cells need and make them, and nothing else between the ranks.
    const auto in_cell_order = [](Kind kind) {
        const PipelineSchedule s = make_pipeline(kind, {3, 6});
        auto programs = pipeline_programs(s, PipelineCosts::even(s, 2, 2, 2), two_blocks_a_stage(s));
        for (auto& rank : programs) {
            std::vector<Instr> messages, out;
            for (const Instr& i : rank.program.code)
                if (i.what == Do::recv) messages.push_back(i);
            for (const Instr& i : rank.program.code) {
                if (i.what == Do::recv) continue;
                for (auto m = messages.begin(); m != messages.end();) {
                    const bool up = m->last_unit > m->first_unit;
                    const bool reads = i.computes() && i.stage == m->stage && i.micro_batch == m->micro_batch &&
                                       (up ? i.what == Do::forward : i.what != Do::forward);
                    if (reads) out.push_back(*m);
                    m = reads ? messages.erase(m) : m + 1;
                }
                out.push_back(i);
            }
            rank.program.code = out;
        }
        return find_rendezvous_error(programs, /*one_lane=*/true);
    };
    EXPECT_EQ(in_cell_order(Kind::gpipe), "");
    for (const Kind kind : {Kind::f1b1, Kind::zb_h1, Kind::zb_v, Kind::dualpipev})
        EXPECT_TRUE(says(in_cell_order(kind), "deadlock")) << name_of(kind);
}

TEST(PipelineProgram, TooFewSlotsAreRefused) {
    const PipelineSchedule s = make_pipeline(Kind::zb_v, {4, 8});
    for (const auto& rank : pipeline_programs(s, PipelineCosts::even(s, 2, 2, 2), two_blocks_a_stage(s)))
        for (size_t k = 0; k < rank.program.slots.size(); ++k)
            for (const bool weight : {false, true}) {
                Program fewer = rank.program;
                int& n = weight ? fewer.slots[k].weight : fewer.slots[k].forward;
                --n;
                EXPECT_NE(find_program_error(fewer, rank.shape, 0), "");
            }
}

TEST(PipelineProgram, DualPipesRanksSeeHalfOfTheMicroBatches) {
    const PipelineSchedule s = make_pipeline(Kind::dualpipe, {4, 8});
    const auto programs = pipeline_programs(s, PipelineCosts::even(s, 2, 2, 2), two_blocks_a_stage(s));
    ASSERT_EQ(programs[1].shape.stages.size(), 2u);
    EXPECT_EQ(programs[1].shape.stages[0].stage, 1);
    EXPECT_EQ(programs[1].shape.stages[0].first_micro_batch, 0);
    EXPECT_EQ(programs[1].shape.stages[0].micro_batches, 4);
    EXPECT_EQ(programs[1].shape.stages[1].stage, 2);
    EXPECT_EQ(programs[1].shape.stages[1].first_micro_batch, 4);
}

// ---- the cut --------------------------------------------------------------------------------------------------------

int64_t largest(const std::vector<StageUnits>& cut, const std::vector<UnitFlops>& units) {
    int64_t most = 0;
    for (const StageUnits& s : cut) {
        int64_t sum = 0;
        for (int u = s.first_unit; u <= s.last_unit; ++u) sum += units[size_t(u)].total();
        most = std::max(most, sum);
    }
    return most;
}

TEST(StageCut, NoOtherCutHasACheaperLargestStage) {
    const std::vector<std::vector<int>> costs = {
        {0, 3, 3, 3, 3, 5}, {0, 1, 9, 1, 1, 1, 1, 4}, {5, 5, 5}, {0, 2, 2, 2, 0}};
    for (const auto& list : costs) {
        std::vector<UnitFlops> units;
        for (int c : list) units.push_back({c, 0, 0});
        const int blocks = int(units.size()) - 2;
        for (int stages = 1; stages <= blocks; ++stages) {
            const auto cut = cut_stages(units, stages);
            // Every other cut: bits between blocks.
            int64_t best = INT64_MAX;
            for (int bits = 0; bits < 1 << (blocks - 1); ++bits) {
                if (__builtin_popcount(unsigned(bits)) != stages - 1) continue;
                std::vector<StageUnits> other = {{0, 0, 1}};
                for (int b = 1; b < blocks; ++b)
                    if (bits >> (b - 1) & 1)
                        other.push_back({int(other.size()), b + 1, b + 1});
                    else
                        other.back().last_unit = b + 1;
                other.back().last_unit = blocks + 1;
                best = std::min(best, largest(other, units));
            }
            EXPECT_EQ(largest(cut, units), best) << blocks << " blocks, " << stages << " stages";
            ASSERT_EQ(int(cut.size()), stages);
            for (int s = 0; s < stages; ++s) {
                EXPECT_EQ(cut[size_t(s)].stage, s);
                EXPECT_EQ(cut[size_t(s)].first_unit, s == 0 ? 0 : cut[size_t(s) - 1].last_unit + 1);
                EXPECT_LE(cut[size_t(s)].first_unit, cut[size_t(s)].last_unit);
            }
            EXPECT_EQ(cut.back().last_unit, blocks + 1);
        }
        EXPECT_THROW(cut_stages(units, blocks + 1), Error);
    }
}

TEST(StageCut, FlopsAreThoseOfTheWholeModel) {
    for (const char* preset : {"bytes", "small"}) {
        const ModelConfig c = resolved_preset(preset);
        const auto total = [&](Recompute recompute) {
            int64_t sum = 0;
            for (const UnitFlops& u : unit_flops(c, 256, recompute)) sum += u.total();
            return sum;
        };
        // 6 for each matrix parameter, and the causal half of attention.
        const int64_t once = total(Recompute::none);
        EXPECT_EQ(once, 6 * c.matmul_parameters() + 6 * c.layers * c.q_rows() * 256);
        EXPECT_EQ(total(Recompute::norms), once);
        EXPECT_EQ(total(Recompute::attention) - once, 2 * c.layers * (c.qkv_rows() * c.dim + c.q_rows() * 256));
        EXPECT_EQ(total(Recompute::mlp) - once, 2 * c.layers * 2 * c.ffn * c.dim);
        EXPECT_EQ(total(Recompute::block) - once,
                  2 * (c.matmul_parameters() - c.vocab * c.dim) + 2 * c.layers * c.q_rows() * 256);
    }
}

TEST(StageCut, ACutByHandHasAllBlocksAndNoEmptyStage) {
    const auto cut = cut_stages(std::vector<int64_t>{1, 3, 3, 1}, 8, 4);
    EXPECT_EQ(cut, (std::vector<StageUnits>{{0, 0, 1}, {1, 2, 4}, {2, 5, 7}, {3, 8, 9}}));
    EXPECT_EQ(text_of(cut, 8), "1,3,3,1");
    EXPECT_EQ(text_of(cut_stages(std::vector<int64_t>{8}, 8, 1), 8), "8");
    for (const std::vector<int64_t>& bad : std::vector<std::vector<int64_t>>{{4}, {5, 4}, {4, -4, 8}, {9, -1}, {8, 0}})
        EXPECT_THROW(cut_stages(bad, 8, 2), Error);
    EXPECT_THROW(cut_stages(std::vector<int64_t>{4, 0, 4}, 8, 3), Error) << "each stage needs a block";
}

// The numbers of stage_cut.h: half a stage's forward more on the last stage.
TEST(StageCut, ADearerLastStageCostsAllOfThem) {
    const auto makespan = [](Kind kind, bool dearer) {
        const PipelineSchedule s = make_pipeline(kind, {4, 16});
        PipelineCosts costs = PipelineCosts::even(s, 4, 4, 4);
        if (dearer)
            for (auto* cost : {&costs.forward, &costs.input, &costs.weight}) cost->back() += 2;
        return double(simulate(s, costs).makespan) / 4;
    };
    EXPECT_EQ(makespan(Kind::f1b1, false), 57);
    EXPECT_EQ(makespan(Kind::f1b1, true), 81);
    EXPECT_EQ(makespan(Kind::zb_v, false), 49.5);
    EXPECT_EQ(makespan(Kind::zb_v, true), 72.5);
}

}  // namespace
}  // namespace rz
