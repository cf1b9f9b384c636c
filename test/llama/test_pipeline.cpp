#include "llama/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "llama/parallel/simulate.h"
#include "test/checks.h"

namespace rz {
namespace {

using Kind = PipelineKind;

constexpr int64_t kUnit = 16;  // ticks of a full stage's F, so that 4 stages a rank divide it

std::vector<int64_t> idle_of(const PipelineRun& run) {
    std::vector<int64_t> idle;
    for (const auto& r : run.ranks) idle.push_back(run.makespan - r.busy);
    return idle;
}

PipelineRun run_of(Kind kind, int P, int M, int V = 0, int64_t F = kUnit, int64_t I = kUnit, int64_t W = kUnit) {
    const PipelineSchedule s = make_pipeline(kind, {P, M, V});
    return simulate(s, PipelineCosts::even(s, F, I, W));
}

// ---- published numbers ----------------------------------------------------------------------------------------------

TEST(Pipeline, MakespanAndIdleAreThePublishedOnes) {
    struct Row {
        int P, M;
        double makespan[8];  // gpipe, 1f1b, interleaved 2 and 4, zb-h1, zb-v, dualpipe, dualpipev; 0: there is none
    };
    const Row rows[] = {
        {2, 4, {15, 15, 13.5, 12.75, 13, 12.5, 12, 13}},  {3, 6, {24, 24, 21, 19.5, 20, 19, 0, 20}},
        {4, 8, {33, 33, 28.5, 26.25, 27, 25.5, 26, 27}},  {4, 16, {57, 57, 52.5, 50.25, 51, 49.5, 50, 51}},
        {8, 16, {69, 69, 58.5, 53.25, 55, 51.5, 54, 55}}, {8, 32, {117, 117, 106.5, 101.25, 103, 99.5, 102, 103}},
        {8, 20, {81, 81, 0, 0, 67, 63.5, 66, 67}},
    };
    const std::pair<Kind, int> columns[] = {{Kind::gpipe, 0},       {Kind::f1b1, 0},     {Kind::interleaved, 2},
                                            {Kind::interleaved, 4}, {Kind::zb_h1, 0},    {Kind::zb_v, 0},
                                            {Kind::dualpipe, 0},    {Kind::dualpipev, 0}};
    for (const Row& row : rows)
        for (int c = 0; c < 8; ++c) {
            const auto [kind, V] = columns[c];
            if (row.makespan[c] == 0) {
                EXPECT_NE(find_pipeline_refusal(kind, {row.P, row.M, V}), "");
                continue;
            }
            const PipelineRun run = run_of(kind, row.P, row.M, V);
            EXPECT_EQ(double(run.makespan) / kUnit, row.makespan[c]) << name_of(kind) << row.P << "," << row.M;
            // The same work on every rank, so the same idle time.
            for (int64_t idle : idle_of(run)) EXPECT_EQ(idle, run.makespan - 3 * kUnit * row.M) << name_of(kind);
        }
}

TEST(Pipeline, PeaksAndIdleWithinTheSpanAreThePublishedOnes) {
    struct Row {
        Kind kind;
        int V;
        std::vector<int> forward, weight;
        std::vector<double> span_idle;
    };
    const std::vector<int> none = {0, 0, 0, 0};
    const Row rows[] = {
        {Kind::gpipe, 0, {8, 8, 8, 8}, none, {9, 6, 3, 0}},
        {Kind::f1b1, 0, {4, 3, 2, 1}, none, {9, 6, 3, 0}},
        {Kind::interleaved, 2, {11, 9, 7, 5}, none, {4.5, 3, 1.5, 0}},
        {Kind::interleaved, 4, {19, 17, 15, 13}, none, {2.25, 1.5, 0.75, 0}},
        {Kind::zb_h1, 0, {4, 4, 4, 4}, {1, 2, 3, 4}, {3, 2, 1, 0}},
        {Kind::zb_v, 0, {8, 8, 8, 8}, {1, 3, 5, 7}, {0, 0, 0, 0}},
        {Kind::dualpipe, 0, {5, 5, 5, 5}, {1, 2, 2, 1}, {2, 1, 1, 2}},
        {Kind::dualpipev, 0, {9, 9, 9, 9}, {1, 2, 3, 4}, {3, 2.5, 2, 1.5}},
    };
    for (const Row& row : rows) {
        const PipelineRun run = run_of(row.kind, 4, 8, row.V);
        for (int r = 0; r < 4; ++r) {
            const auto& rank = run.ranks[size_t(r)];
            EXPECT_EQ(rank.peak_forward, row.forward[size_t(r)]) << name_of(row.kind) << " rank " << r;
            EXPECT_EQ(rank.peak_weight, row.weight[size_t(r)]) << name_of(row.kind) << " rank " << r;
            EXPECT_EQ(double(rank.span_idle()) / kUnit, row.span_idle[size_t(r)]) << name_of(row.kind) << " rank " << r;
            EXPECT_EQ(rank.warm_up + rank.steady + rank.drain, run.makespan - rank.busy) << name_of(row.kind);
        }
    }
}

TEST(Pipeline, LanesOneLaneAndUnequalCostsAreThePublishedOnes) {
    struct Row {
        Kind kind;
        double lanes, one_lane, unequal;  // a message takes 1/4 F; F, I, W = 1, 1.2, 0.87
    };
    for (const Row& row : {Row{Kind::f1b1, 79, 79, 70.61}, Row{Kind::interleaved, 66, 74, 59.865},
                           Row{Kind::zb_h1, 62, 62, 58.43}, Row{Kind::zb_v, 59.75, 63.75, 53.32},
                           Row{Kind::dualpipe, 61.75, 63.75, 56.11}, Row{Kind::dualpipev, 72.75, 73.5, 57.475}}) {
        const PipelineSchedule s = make_pipeline(row.kind, {8, 16});
        PipelineCosts costs = PipelineCosts::even(s, kUnit, kUnit, kUnit, kUnit / 4);
        EXPECT_EQ(double(simulate(s, costs).makespan) / kUnit, row.lanes) << name_of(row.kind);
        costs.one_lane = true;
        EXPECT_EQ(double(simulate(s, costs).makespan) / kUnit, row.one_lane) << name_of(row.kind);
        const PipelineRun run = simulate(s, PipelineCosts::even(s, 1000, 1200, 870));
        EXPECT_EQ(double(run.makespan) / 1000, row.unequal) << name_of(row.kind);
    }
    const PipelineSchedule s = make_pipeline(Kind::interleaved, {8, 32});
    PipelineCosts costs = PipelineCosts::even(s, kUnit, kUnit, kUnit, kUnit / 4);
    EXPECT_EQ(simulate(s, costs).makespan, 114 * kUnit);
    costs.one_lane = true;
    EXPECT_EQ(simulate(s, costs).makespan, 136.5 * kUnit);
}

TEST(Pipeline, QueuesAreAsDeepAsPublished) {
    const auto deepest = [](Kind kind, int P, int M) {
        int most = 0;
        for (const auto& r : run_of(kind, P, M).ranks)
            most = std::max({most, r.peak_queue_forward, r.peak_queue_backward});
        return most;
    };
    for (const auto& [kind, depth] : {std::pair{Kind::gpipe, 1},
                                      {Kind::f1b1, 1},
                                      {Kind::zb_h1, 1},
                                      {Kind::zb_v, 2},
                                      {Kind::dualpipe, 2},
                                      {Kind::dualpipev, 2},
                                      {Kind::interleaved, 3}})
        EXPECT_EQ(deepest(kind, 8, 16), depth) << name_of(kind);
}

// Bubble per rank, where the papers' formulas hold; outside of that, test/golden/pipeline_times.txt.
TEST(Pipeline, BubblesAreTheFormulas) {
    int compared = 0;
    const auto expect_idle = [&](Kind kind, int P, int M, int V, int64_t F, int64_t I, int64_t W, int64_t want) {
        for (int64_t idle : idle_of(run_of(kind, P, M, V, F, I, W)))
            ASSERT_EQ(idle, want) << format("%s P=%d M=%d F,I,W=%lld,%lld,%lld", name_of(kind), P, M, (long long)F,
                                            (long long)I, (long long)W);
        ++compared;
    };
    for (int P = 1; P <= 8; ++P)
        for (int M : {2 * P, 4 * P})
            for (int64_t f = 1; f <= 4; ++f)
                for (int64_t i = 1; i <= 4; ++i)
                    for (int64_t w = 1; w <= 4; ++w) {
                        const int64_t F = f * kUnit, I = i * kUnit, W = w * kUnit, full = (P - 1) * (F + I + W);
                        expect_idle(Kind::gpipe, P, M, 0, F, I, W, full);
                        expect_idle(Kind::f1b1, P, M, 0, F, I, W, full);
                        expect_idle(Kind::interleaved, P, M, 2, F, I, W, full / 2);
                        if (w <= std::min(f, i)) expect_idle(Kind::zb_h1, P, M, 0, F, I, W, (P - 1) * (F + I - W));
                        if (f == i && i == w) expect_idle(Kind::zb_v, P, M, 0, F, I, W, (P - 1) * F / 2);
                        if (f != i || w > f) continue;
                        expect_idle(Kind::dualpipev, P, M, 0, F, I, W, (P - 1) * (F + 2 * I - W) / 2);
                        if (P % 2 == 0) expect_idle(Kind::dualpipe, P, M, 0, F, I, W, (P / 2 - 1) * (F + 2 * I - W));
                    }
    EXPECT_GT(compared, 3000);
}

// ---- oracles from elsewhere -----------------------------------------------------------------------------------------

TEST(Pipeline, OrdersArePyTorchs) {
    std::ifstream file("test/golden/pipelines.txt");
    ASSERT_TRUE(file) << "test/golden/pipelines.txt";
    int compared = 0;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream fields(line);
        std::string name, hash;
        int P = 0, M = 0, V = 0;
        fields >> name >> P >> M >> V >> hash;
        PipelineSchedule s = make_pipeline(parse_name<Kind>("schedule", name), {P, M, V});
        if (name == "1f1b") s.order.pop_back();  // dev/golden/make_schedule_golden.py says why
        EXPECT_EQ(format("%016llx", (unsigned long long)text_hash(s)), hash) << line;
        ++compared;
    }
    EXPECT_EQ(compared, 70);
}

TEST(Pipeline, TheTextOfDualPipeStaysTheSame) {
    const auto hash = [](Kind kind, int P, int M) { return text_hash(make_pipeline(kind, {P, M})); };
    EXPECT_EQ(csv_of(make_pipeline(Kind::dualpipe, {2, 4})),
              "0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1\n0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3\n");
    EXPECT_EQ(hash(Kind::dualpipe, 4, 8), 0x5b49f69a8c967f1full);
    EXPECT_EQ(hash(Kind::dualpipe, 8, 16), 0x8f8416de85298058ull);
}

TEST(Pipeline, TimesAreThoseOfTheOtherSimulator) {
    std::ifstream file("test/golden/pipeline_times.txt");
    ASSERT_TRUE(file) << "test/golden/pipeline_times.txt";
    int compared = 0;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream fields(line);
        std::string name;
        int P = 0, M = 0, V = 0;
        int64_t F = 0, I = 0, W = 0, message = 0, makespan = 0;
        fields >> name >> P >> M >> V >> F >> I >> W >> message >> makespan;
        std::vector<int64_t> idle;
        for (int64_t x = 0; fields >> x;) idle.push_back(x);
        const PipelineSchedule s = make_pipeline(parse_name<Kind>("schedule", name), {P, M, V});
        const int64_t v = s.stages_per_rank();
        const PipelineRun run = simulate(s, PipelineCosts::even(s, F * v, I * v, W * v, message));
        ASSERT_EQ(run.makespan, makespan) << line;
        ASSERT_EQ(idle_of(run), idle) << line;
        ++compared;
    }
    EXPECT_GT(compared, 500);
}

// ---- every shape, text, refusals ------------------------------------------------------------------------------------

template <class F>
void for_each_shape(const F& f) {
    for (Kind kind : pipeline_kinds())
        for (int P = 1; P <= 8; ++P)
            for (int M : {1, 2, 3, 4, 6, 8, 12, 16, 32})
                for (int V : kind == Kind::interleaved ? std::vector<int>{2, 3, 4} : std::vector<int>{0})
                    if (find_pipeline_refusal(kind, {P, M, V}).empty()) f(kind, make_pipeline(kind, {P, M, V}));
}

TEST(Pipeline, EveryScheduleIsRightAndReadsBackFromItsText) {
    int made = 0;
    for_each_shape([&](Kind kind, const PipelineSchedule& s) {
        ASSERT_EQ(find_pipeline_error(s), "") << name_of(kind) << s.ranks << "," << s.micro_batches;
        ASSERT_EQ(parse_pipeline_csv(csv_of(s)), s) << name_of(kind);
        ++made;
    });
    EXPECT_GT(made, 300);
}

TEST(Pipeline, RanksHoldTheStagesTheyRun) {
    EXPECT_EQ(make_pipeline(Kind::interleaved, {4, 8}).stages_of(1), (std::vector<int>{1, 5}));
    EXPECT_EQ(make_pipeline(Kind::zb_v, {4, 8}).stages_of(1), (std::vector<int>{1, 6}));
    EXPECT_EQ(make_pipeline(Kind::dualpipe, {4, 8}).stages_of(1), (std::vector<int>{1, 2}));
}

TEST(Pipeline, TextWithIdleFieldsQuotesAndWindowsLineEnds) {
    EXPECT_EQ(csv_of(parse_pipeline_csv("0F0,,0B0,\r\n,\"1F0\" , 1B0\r\n\r\n")), "0F0,0B0\n1F0,1B0\n");
}

TEST(Pipeline, TextThatIsNoScheduleIsRefusedByRankAndField) {
    const auto refused = [](const char* text, const char* why) {
        EXPECT_TRUE(says(error_of([&] { parse_pipeline_csv(text); }), why)) << text;
    };
    refused("", "empty");
    refused("0F0,0SEND_F0\n", "rank 0, field 1: \"0SEND_F0\" is not a task");
    refused("0F0,0B0\n1X0\n", "rank 1, field 0");
    refused("0F0,F0\n", "field 1");
    refused("0F0,0F\n", "field 1");
    refused("0F0,0F0x\n", "field 1");
    refused("0F-1\n", "field 0");
    refused("(0F0;0F1)OVERLAP_F_B\n", "field 0");
    refused("(0F0;0B0)\n", "field 0");
    refused("0F99999999\n", "too large");
    refused("0F99999999999999\n", "field 0");
    refused("0F0,0B0,1F1,1B1\n", "tasks of only 2 of these 4 pairs");
    refused("0F0,0B0,1F0,1B0\n2F0,2B0\n", "equally many");
}

TEST(Pipeline, RefusalsNameTheNearestShape) {
    const auto refused = [](Kind kind, PipelineShape shape, std::vector<const char*> parts) {
        const std::string why = find_pipeline_refusal(kind, shape);
        for (const char* part : parts) EXPECT_TRUE(says(why, part));
        EXPECT_THROW(make_pipeline(kind, shape), Error);
    };
    refused(Kind::interleaved, {8, 20}, {"20 micro-batches on 8 ranks", "groups of 8", "16 or 24", "zb-v"});
    refused(Kind::interleaved, {8, 6}, {"nearest: 8 micro-batches"});
    refused(Kind::interleaved, {8, 16, 1}, {"2 stages on each rank", "1f1b"});
    refused(Kind::dualpipe, {3, 8}, {"pp 3 is odd", "pp 4", "dualpipev"});
    refused(Kind::dualpipe, {4, 9}, {"9 micro-batches are odd", "8 or 10"});
    refused(Kind::dualpipe, {4, 6}, {"needs at least 2 x pp = 8 micro-batches, there are 6", "zb-v"});
    refused(Kind::dualpipev, {4, 6}, {"needs at least 2 x pp = 8 micro-batches, there are 6"});
    refused(Kind::zb_v, {4, 8, 3}, {"3 stages on each rank", "it has 2"});
    refused(Kind::gpipe, {4, 8, 2}, {"interleaved"});
    refused(Kind::f1b1, {0, 8}, {"nearest: pp 1"});
    refused(Kind::f1b1, {2, 0}, {"nearest: 1 micro-batch"});
}

TEST(Pipeline, AWindowLimitsWhatIsInFlight) {
    for_each_shape([&](Kind kind, const PipelineSchedule& s) {
        if (s.ranks > 4 || s.micro_batches > 8) return;
        const int64_t v = s.stages_per_rank();
        for (const int most : {1, 2, 3}) {
            const PipelineSchedule w = limit_in_flight(s, most);
            ASSERT_EQ(find_pipeline_error(w), "") << name_of(kind) << " window " << most << "\n" << csv_of(w);
            const PipelineRun run = simulate(w, PipelineCosts::even(w, v, v, v));
            // One at a time: every task of every stage after the other.
            if (most == 1 && (kind == Kind::gpipe || kind == Kind::f1b1)) {
                ASSERT_EQ(run.makespan, 3 * s.stages * s.micro_batches) << name_of(kind);
            }
            if (kind == Kind::gpipe || kind == Kind::f1b1) {
                ASSERT_LE(run.ranks[0].peak_forward, most);
            }
        }
    });
    const PipelineSchedule s = make_pipeline(Kind::f1b1, {4, 8});
    const auto makespan = [](const PipelineSchedule& w) {
        return simulate(w, PipelineCosts::even(w, 1, 1, 1)).makespan;
    };
    EXPECT_EQ(makespan(limit_in_flight(s, 4)), 33) << "as many as it has anyway";
    EXPECT_GT(makespan(limit_in_flight(s, 3)), 33);
    EXPECT_THROW(limit_in_flight(s, 0), Error);
}

// ---- the checker ----------------------------------------------------------------------------------------------------

TEST(Pipeline, CheckerRefusesEveryDroppedTask) {
    int mutants = 0;
    for_each_shape([&](Kind kind, const PipelineSchedule& good) {
        if (good.ranks > 4 || good.micro_batches > 12) return;
        for (int r = 0; r < good.ranks; ++r)
            for (size_t at = 0; at < good.order[size_t(r)].size(); ++at)
                for (int half = 0; half < (good.order[size_t(r)][at].with ? 2 : 1); ++half) {
                    PipelineSchedule bad = good;
                    auto& cells = bad.order[size_t(r)];
                    if (!cells[at].with)
                        cells.erase(cells.begin() + long(at));
                    else
                        cells[at] = half ? Cell{cells[at].a} : Cell{*cells[at].with};
                    ASSERT_NE(find_pipeline_error(bad), "") << name_of(kind) << " rank " << r << " at " << at;
                    ++mutants;
                }
    });
    EXPECT_GT(mutants, 3000);
}

TEST(Pipeline, CheckerRefusesEverySwapOfNeighbouringMicroBatches) {
    int mutants = 0;
    for_each_shape([&](Kind kind, const PipelineSchedule& good) {
        if (good.ranks > 4 || good.micro_batches > 8) return;
        for (int r = 0; r < good.ranks; ++r) {
            std::vector<Task*> tasks;
            PipelineSchedule bad = good;
            for (Cell& c : bad.order[size_t(r)]) {
                tasks.push_back(&c.a);
                if (c.with) tasks.push_back(&*c.with);
            }
            for (Task* a : tasks)
                for (Task* b : tasks)
                    if (a->op == b->op && a->stage == b->stage && a->micro_batch + 1 == b->micro_batch) {
                        std::swap(a->micro_batch, b->micro_batch);
                        ASSERT_NE(find_pipeline_error(bad), "") << name_of(kind) << " " << text_of(*b);
                        std::swap(a->micro_batch, b->micro_batch);
                        ++mutants;
                    }
        }
    });
    EXPECT_GT(mutants, 2000);
}

TEST(Pipeline, CheckerNamesRankPositionAndTask) {
    const auto error = [](const char* text) { return find_pipeline_error(parse_pipeline_csv(text)); };
    EXPECT_EQ(error("0F0,0B0,0B0\n"), "rank 0, position 2 (0B0): 0B0 was run before, or its I was");
    EXPECT_EQ(error("0F0,0F0,0B0\n"), "rank 0, position 1 (0F0): 0F0 was run before");
    EXPECT_EQ(error("0B0,0F0\n"), "rank 0, position 0 (0B0): 0B0 comes before its F");
    EXPECT_EQ(error("0F0,0W0,0I0\n"), "rank 0, position 1 (0W0): 0W0 comes before its I");
    EXPECT_EQ(error("0F0,0I0\n"), "rank 0: 0W0 is missing");
    EXPECT_EQ(error("0F0,0B0\n1F0\n"), "rank 1: 1I0 is missing");
    EXPECT_EQ(error("0F1,0F0,0B0,0B1\n"),
              "rank 0, position 1 (0F0): 0F0 comes after micro-batch 1: gradients are summed in ascending order");
    EXPECT_EQ(error("0F0,1F0,0B0\n1B0\n"), "rank 1, position 0 (1B0): 1B0 belongs on rank 0");
    EXPECT_EQ(error("1F0,0F0,1B0,0B0\n"), "rank 0, position 0 (1F0): deadlock: it waits for 0F0, which never runs");
}

}  // namespace
}  // namespace rz
