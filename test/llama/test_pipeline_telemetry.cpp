#include "llama/parallel/telemetry.h"

#include <gtest/gtest.h>

#include "llama/parallel/simulate.h"
#include "test/checks.h"

namespace rz {
namespace {

// A simulated schedule as if it had been measured: a tick is a second.
std::vector<TaskTime> as_measured(const PipelineSchedule& s, const PipelineRun& run, int rank) {
    std::vector<TaskTime> out;
    for (size_t k = 0; k < s.order[size_t(rank)].size(); ++k) {
        const Task t = s.order[size_t(rank)][k].a;
        const Do what = t.op == Op::F   ? Do::forward
                        : t.op == Op::I ? Do::input_grad
                        : t.op == Op::W ? Do::weight_grad
                                        : Do::backward;
        const auto& span = run.spans[size_t(rank)][k];
        TaskTime time{what, t.stage, t.micro_batch, 0, double(span.start), double(span.end), 0};
        for (const auto& m : run.messages)
            if (m.to == rank && m.made_by.micro_batch == t.micro_batch && t.op != Op::W &&
                m.made_by.stage == t.stage + (t.op == Op::F ? -1 : 1) && (m.made_by.op == Op::F) == (t.op == Op::F))
                time.ready = double(m.arrived), time.queue = 1;
        out.push_back(time);
    }
    return out;
}

TEST(PipelineTelemetry, NumbersAreTheSimulators) {
    for (const PipelineKind kind : {PipelineKind::f1b1, PipelineKind::zb_h1, PipelineKind::zb_v}) {
        const PipelineSchedule s = make_pipeline(kind, {4, 8});
        const PipelineRun run = simulate(s, PipelineCosts::even(s, 4, 4, 4, 1));
        std::vector<PipelineNumbers> all;
        std::vector<int> pp;
        for (int r = 0; r < 4; ++r) {
            const PipelineNumbers n = pipeline_numbers(as_measured(s, run, r));
            const auto& want = run.ranks[size_t(r)];
            EXPECT_EQ(n.busy, double(want.busy));
            EXPECT_EQ(n.span, double(want.last_end - want.first_start));
            EXPECT_EQ(n.length, double(want.last_end));
            EXPECT_EQ(n.warm_up, double(want.warm_up));
            EXPECT_EQ(n.steady, double(want.steady));
            EXPECT_EQ(n.drain, double(want.drain - (run.makespan - want.last_end)));
            EXPECT_EQ(n.waiting, n.warm_up + n.steady + n.drain)
                << "work takes exactly its cost: all idle time is waiting";
            EXPECT_EQ(n.in_flight, want.peak_forward);
            EXPECT_EQ(n.pending_weight, want.peak_weight);
            all.push_back(n);
            pp.push_back(r);
        }
        const PipelineSummary summary = summarise(all, pp);
        EXPECT_DOUBLE_EQ(summary.util_step, run.util_step());
        EXPECT_DOUBLE_EQ(summary.util_span, run.util_span());
        const std::string line = stages_line(all);
        double idle[4] = {};
        int queues[2] = {}, in_flight = 0;
        const size_t at = std::min(line.find("idle "), line.size());
        ASSERT_EQ(
            std::sscanf(line.c_str() + at,
                        "idle %lf %% warm-up, %lf %% steady, %lf %% drain; %lf %% waiting for messages | queues %d "
                        "forward, %d backward | %d in flight",
                        &idle[0], &idle[1], &idle[2], &idle[3], &queues[0], &queues[1], &in_flight),
            7)
            << line;
        EXPECT_NEAR(idle[0] + idle[1] + idle[2], 100 * (1 - run.util_step()), 0.16) << "three numbers, rounded";
        EXPECT_EQ(in_flight, all[0].in_flight);
    }
}

TEST(PipelineTelemetry, HostGapsAreNotWaiting) {
    const std::vector<TaskTime> tasks = {{Do::forward, 0, 0, 0, 1, 2, 0}, {Do::backward, 0, 0, 4, 5, 7, 2}};
    const PipelineNumbers n = pipeline_numbers(tasks);
    EXPECT_EQ(n.busy, 3);
    EXPECT_EQ(n.warm_up, 4) << "1 before the first task, 3 before the second";
    EXPECT_EQ(n.waiting, 2) << "from 2 to 4 for the message, then a second for something else";
    EXPECT_EQ(n.queue_backward, 2);
    EXPECT_EQ(n.queue_forward, 0);
}

TEST(PipelineTelemetry, ListsAreByPlaceOfTheFirstDataRank) {
    std::vector<PipelineNumbers> ranks(4);
    for (int r = 0; r < 4; ++r) ranks[size_t(r)] = {.busy = double(r + 1), .length = 10, .span = 8, .in_flight = r};
    const PipelineSummary s = summarise(ranks, {0, 0, 1, 1});
    EXPECT_DOUBLE_EQ(s.util_step, 0.25);
    EXPECT_DOUBLE_EQ(s.util_span, 10.0 / 32);
    EXPECT_TRUE(says(s.json, "\"busy\":[1.000000,3.000000]"));
    EXPECT_TRUE(says(s.json, "\"util_step_by_rank\":[0.1000,0.3000],\"util_span_by_rank\":[0.1250,0.3750]"));
    EXPECT_TRUE(says(s.json, "\"in_flight\":[0,2]"));
    const std::string line = stages_line(ranks);
    EXPECT_EQ(line.find("stages   busy 25.0 % of the step, 31.2 % of their spans | idle "), 0u) << line;
    EXPECT_TRUE(says(line, "| queues 0 forward, 0 backward | 3 in flight"));
    ranks[0].queue_forward = 2, ranks[2].queue_backward = 1, ranks[2].waiting = 4, ranks[2].length = 9;
    ranks[0].warm_up = 1, ranks[0].steady = 2, ranks[2].drain = 3;
    EXPECT_EQ(stages_by_rank_line(ranks, {0, 0, 1, 1}),
              "         by rank: busy 10/30 % of the step, 12/38 % of its span | idle 10/0 % warm-up, 20/0 % steady, "
              "0/40 % drain; 0/40 % waiting | queues 2/0 forward, 0/1 backward | 0/2 in flight");
}

TEST(PipelineTelemetry, ATaskIsOneLineOfJson) {
    EXPECT_EQ(json_line({Do::input_grad, 3, 7, 0.5, 1, 2, 1}, 12, 4),
              "{\"step\":12,\"rank\":4,\"op\":\"input_grad\",\"stage\":3,\"mb\":7,\"ready\":0.500000,\"t0\":1.000000,"
              "\"t1\":2.000000,\"queue\":1}\n");
}

}  // namespace
}  // namespace rz
