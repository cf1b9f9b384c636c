#include <gtest/gtest.h>

#include <future>

#include "comm/loopback.h"
#include "test/llama/virtual_time.h"

namespace rz {
namespace {

int64_t makespan_on_threads(const PipelineSchedule& s, const PipelineCosts& costs, bool one_lane = false) {
    const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
    LoopbackHub hub(s.ranks, /*timeout_s=*/20);
    std::vector<int64_t> clocks(size_t(s.ranks));
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = s.ranks}, .one_lane = one_lane});
        clocks[size_t(rank)] = virtual_clock(programs, costs, mesh, 1);
    });
    return *std::max_element(clocks.begin(), clocks.end());
}

TEST(PipelineExecutor, EndsAtTheSimulatorsMakespan) {
    for (const PipelineKind kind : pipeline_kinds())
        for (const auto& [P, M] : {std::pair{1, 3}, {2, 4}, {3, 6}, {4, 8}, {8, 16}}) {
            if (!find_pipeline_refusal(kind, {P, M}).empty()) continue;
            const PipelineSchedule s = make_pipeline(kind, {P, M});
            for (const int64_t message : {0, 3}) {
                const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6, message);
                ASSERT_EQ(makespan_on_threads(s, costs), simulate(unfused(s), costs).makespan)
                    << name_of(kind) << ", " << P << " ranks, message " << message;
            }
        }
}

TEST(PipelineExecutor, OneLaneComesToItsEndWithTheRightTensors) {
    for (const PipelineKind kind : pipeline_kinds()) {
        if (!find_pipeline_refusal(kind, {4, 8}).empty()) continue;
        const PipelineSchedule s = make_pipeline(kind, {4, 8});
        PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6);
        costs.one_lane = true;
        EXPECT_GT(makespan_on_threads(s, costs, /*one_lane=*/true), 0);
    }
}

TEST(PipelineExecutor, StepsRunOneAfterAnother) {
    const PipelineSchedule s = make_pipeline(PipelineKind::zb_v, {3, 6});
    const PipelineCosts costs = PipelineCosts::even(s, 4, 4, 4, 1);
    const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
    LoopbackHub hub(3);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = 3}});
        EXPECT_GE(virtual_clock(programs, costs, mesh, 3), 3 * 6 * 12);
    });
}

// Nothing waits on the host: a rank enqueues its whole step before any other has begun.
TEST(PipelineExecutor, EnqueuesAStepThatNobodyMeetsYet) {
    constexpr int kRanks = 4;
    for (const PipelineKind kind : pipeline_kinds()) {
        const PipelineSchedule s = make_pipeline(kind, {kRanks, 8});
        const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6, 3);
        const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
        LoopbackHub hub(kRanks, /*timeout_s=*/20);
        std::vector<std::promise<void>> turn(kRanks + 1);
        turn[0].set_value();
        std::vector<int64_t> clocks(kRanks);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.grid = {.pp = kRanks}});
            turn[size_t(rank)].get_future().wait();
            clocks[size_t(rank)] = virtual_clock(programs, costs, mesh, 1, [&] { turn[size_t(rank) + 1].set_value(); });
        });
        EXPECT_EQ(*std::max_element(clocks.begin(), clocks.end()), simulate(unfused(s), costs).makespan)
            << name_of(kind);
    }
}

TEST(PipelineExecutor, MessagesNeedAMesh) {
    const PipelineSchedule s = make_pipeline(PipelineKind::f1b1, {2, 2});
    const auto programs = pipeline_programs(s, PipelineCosts::even(s, 1, 1, 1), two_blocks_a_stage(s));
    Stream compute({DeviceKind::cpu, 0}, "compute");
    VirtualTime host(programs[0], PipelineCosts::even(s, 1, 1, 1), compute);
    Executor alone(compute);
    EXPECT_THROW(alone.run(programs[0], host), Error);
}

}  // namespace
}  // namespace rz
