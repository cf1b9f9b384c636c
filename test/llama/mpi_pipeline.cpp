// The executor over MPI: virtual time between processes.

#include <algorithm>

#include "test/comm/mpi_main.h"
#include "test/llama/virtual_time.h"

namespace rz {
namespace {

TEST(PipelineExecutorOverMpi, EndsAtTheSimulatorsMakespan) {
    Process& process = test_process();
    const int P = process.size();
    Mesh mesh(process, {DeviceKind::cpu, 0}, {.grid = {.pp = P}});
    for (const PipelineKind kind : pipeline_kinds()) {
        if (!find_pipeline_refusal(kind, {P, 2 * P}).empty()) continue;
        const PipelineSchedule s = make_pipeline(kind, {P, 2 * P});
        for (const int64_t message : {0, 3}) {
            const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6, message);
            const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
            const int64_t clock = virtual_clock(programs, costs, mesh, 1);
            std::vector<int64_t> clocks(static_cast<size_t>(P));
            process.all_gather(&clock, sizeof clock, clocks.data());
            EXPECT_EQ(*std::max_element(clocks.begin(), clocks.end()), simulate(unfused(s), costs).makespan)
                << name_of(kind) << ", message " << message;
        }
    }
}

// Nothing waits on the host: a rank enqueues its whole step before the next one has begun.
TEST(PipelineExecutorOverMpi, EnqueuesAStepThatNobodyMeetsYet) {
    Process& process = test_process();
    const int P = process.size();
    Mesh mesh(process, {DeviceKind::cpu, 0}, {.grid = {.pp = P}});
    const PipelineSchedule s = make_pipeline(PipelineKind::zb_v, {P, 2 * P});
    const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6, 3);
    const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
    for (int r = 0; r < process.rank(); ++r) process.barrier();
    const int64_t clock = virtual_clock(programs, costs, mesh, 1, [&] {
        for (int r = process.rank(); r < P; ++r) process.barrier();
    });
    std::vector<int64_t> clocks(static_cast<size_t>(P));
    process.all_gather(&clock, sizeof clock, clocks.data());
    EXPECT_EQ(*std::max_element(clocks.begin(), clocks.end()), simulate(s, costs).makespan);
}

}  // namespace
}  // namespace rz
