#include "llama/parallel/schedule_command.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "llama/parallel/draw.h"
#include "llama/train/options.h"
#include "test/checks.h"
#include "test/llama/toy_run.h"

namespace rz {
namespace {

// The command's output. The arguments stand as a user would write them.
std::string printed(const std::string& line) {
    Command command;
    testing::internal::CaptureStderr();
    const std::optional<int> code = parse_command_line(words_of("schedule " + line), command);
    const std::string said = testing::internal::GetCapturedStderr();
    if (code) return said;  // refused
    testing::internal::CaptureStdout();
    try {
        EXPECT_EQ(schedule_command(std::get<ScheduleStudy>(command)), 0);
    } catch (const std::exception& e) {
        return testing::internal::GetCapturedStdout() + e.what();
    }
    return testing::internal::GetCapturedStdout();
}

TEST(ScheduleStudy, DrawsAndTimesOneSchedule) {
    const std::string got = printed("--pp 2 --micro-batches 3 --pp-schedule 1f1b --columns 36");
    EXPECT_TRUE(says(got, "1f1b: 2 ranks, 2 stages, 3 micro-batches"));
    EXPECT_TRUE(says(got, "makespan 12  utilisation 75.0 % of the step"));
    EXPECT_TRUE(says(got, "   0 F0 F1 ......B0    F2 B1    ...B2    \n"));
    EXPECT_TRUE(says(got, "   1 ...F0 B0    F1 B1    F2 B2    ......\n"));
}

TEST(ScheduleStudy, UpperStagesAreSmallLettersAndNumbersGoWhereThereIsNoRoom) {
    const PipelineSchedule s = make_pipeline(PipelineKind::zb_v, {1, 1});
    const PipelineRun run = simulate(s, PipelineCosts::even(s, 2, 2, 2));
    EXPECT_EQ(draw_text(s, run, 12, false), "   0 F0f0i0w0I0W0\n");
    EXPECT_EQ(draw_text(s, run, 10, false).size(), 16u);
    EXPECT_EQ(legend_text(s, false),
              "     F forward   I input gradient   W weight gradient   small letter: the rank's upper stages   "
              "number: micro-batch   .: idle\n");
    EXPECT_TRUE(says(draw_text(s, run, 12, true), "\x1b["));
    EXPECT_THROW(draw_text(s, run, 9, false), Error);
}

TEST(ScheduleStudy, SvgHasATaskForEachTaskAndTheSameBytesTwice) {
    const PipelineSchedule s = make_pipeline(PipelineKind::dualpipev, {4, 8});
    const PipelineRun run = simulate(s, PipelineCosts::even(s, 4, 4, 4, 1));
    const std::string svg = draw_svg(s, run, {.title = "a < b", .note = "c & d", .ticks_per_unit = 4});
    EXPECT_EQ(svg, draw_svg(s, run, {.title = "a < b", .note = "c & d", .ticks_per_unit = 4}));
    size_t tasks = 0, titles = 0;
    for (const auto& cells : s.order)
        for (const Cell& c : cells) tasks += c.with ? 2 : 1;
    for (size_t at = 0; (at = svg.find("<title>", at)) != std::string::npos; ++at) ++titles;
    EXPECT_EQ(titles, tasks);
    EXPECT_TRUE(says(svg, "a &lt; b"));
    EXPECT_TRUE(says(svg, "c &amp; d"));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(ScheduleStudy, WritesPyTorchsTextAndReadsItBack) {
    EXPECT_EQ(printed("--pp 2 --micro-batches 2 --pp-schedule gpipe --csv -"), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    const std::string path = testing::TempDir() + "schedule_study.csv";
    printed("--pp 3 --micro-batches 6 --pp-schedule dualpipev --csv " + path);
    const std::string got = printed("--pp-schedule " + path);
    EXPECT_TRUE(says(got, "3 ranks, 6 stages, 6 micro-batches"));
    EXPECT_TRUE(says(got, "makespan 20 "));
    EXPECT_TRUE(says(printed("--pp 4 --pp-schedule " + path), "nearest: pp 3"));
    EXPECT_TRUE(says(printed("--micro-batches 4 --pp-schedule " + path), "nearest: 6 micro-batches"));
    std::ofstream(path) << "0F0,0B0,0B0\n";
    EXPECT_TRUE(says(printed("--pp-schedule " + path), "rank 0, position 2 (0B0)"));
    std::remove(path.c_str());
}

TEST(ScheduleStudy, ComparesAllSchedules) {
    const std::string got = printed("--pp 4 --micro-batches 8 --compare");
    for (const char* row : {"gpipe               4        33       9    72.7    84.2            8          0",
                            "1f1b                4        33       9    72.7    84.2            4          0",
                            "interleaved 4      16     26.25    2.25    91.4    95.5         4.75          0",
                            "zb-h1               4        27       3    88.9    94.1        5.037          4",
                            "zb-v                8      25.5     1.5    94.1   100.0        4.407          7",
                            "dualpipe            4        26       2    92.3    94.1            5          2",
                            "dualpipev           8        27       3    88.9    91.4          4.5          4"})
        EXPECT_TRUE(says(got, row));
    EXPECT_TRUE(says(printed("--pp 3 --micro-batches 6 --compare"), "pp 3 is odd"));
}

// As the papers count a fused cell, and as a run executes it (dev/results/pipelines.md has that column too).
TEST(ScheduleStudy, FusedCellsAreTimedBothWays) {
    const std::string got = printed("--pp 4 --micro-batches 8 --pp-schedule dualpipe");
    EXPECT_TRUE(says(got, "makespan 26  utilisation 92.3 % of the step"));
    EXPECT_TRUE(says(got, "makespan 25  utilisation 96.0 % of the step in a run"));
    EXPECT_EQ(printed("--pp 4 --micro-batches 8 --pp-schedule zb-v").find("in a run"), std::string::npos);
    EXPECT_TRUE(says(printed("--pp 4 --micro-batches 8 --compare"),
                     "dualpipev in a run, where the tasks of a fused cell "
                     "follow each other: makespan 25.5, 94.1 %"));
}

TEST(ScheduleStudy, FewestMicroBatchesForAUtilisation) {
    // 1f1b: M / (M + P - 1) >= 0.9 from M = 9 (P - 1). zb-h1 loses P - 1 of 3 M + P - 1.
    EXPECT_EQ(micro_batches_for(PipelineKind::f1b1, 4, 0, 0.9), 27);
    EXPECT_EQ(micro_batches_for(PipelineKind::zb_h1, 4, 0, 0.9), 9);
    EXPECT_EQ(micro_batches_for(PipelineKind::f1b1, 1, 0, 0.9), 1);
    EXPECT_EQ(micro_batches_for(PipelineKind::f1b1, 4, 0, 1.0), 0);
}

TEST(ScheduleStudy, RefusesWhatItCannotDo) {
    EXPECT_TRUE(says(printed("--micro-batches 4"), "--pp is not given"));
    EXPECT_TRUE(says(printed("--pp 4 --cost 1,1"), "'1,1' must be three numbers"));
    EXPECT_TRUE(says(printed("--pp 4 --cost 1,0,1"), "above 0"));
    EXPECT_TRUE(says(printed("--pp 4 --cost 1,1,1,1"), "three numbers"));
    EXPECT_TRUE(says(printed("--pp 4 --pp-schedule zbv"), "neither a file nor a schedule; nearest: zb-v"));
    EXPECT_TRUE(says(printed("--pp 4 --compare --csv -"), "leave one out"));
}

}  // namespace
}  // namespace rz
