#include "llama/base/fault.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <regex>
#include <set>
#include <thread>
#include <vector>

#include "test/checks.h"

namespace rz {
namespace {

std::string refusal_of_faults(const std::string& text) {
    return error_of([&] { parse_faults(text); });
}

TEST(Fault, EveryFormOfTextIsRead) {
    auto one = [](const char* text) { return parse_faults(text).at(0); };
    EXPECT_EQ(one("step").action, FaultAction::signal);
    EXPECT_EQ(one("step").number, SIGKILL);
    EXPECT_EQ(one("step").rank, -1);
    EXPECT_EQ(one("step").first, 1);
    EXPECT_EQ(one("step:2").rank, 2);
    EXPECT_EQ(one("step:*:7").first, 7);
    EXPECT_EQ(one("step:*:7").last, 7);
    EXPECT_EQ(one("step:0:7+:stop").last, INT64_MAX);
    EXPECT_EQ(one("step:0:*:stop").first, 1);
    EXPECT_EQ(one("step:0:*:stop").last, INT64_MAX);
    EXPECT_EQ(one("step:stop").number, SIGSTOP);
    EXPECT_DOUBLE_EQ(one("step:1:sleep=2.5").seconds, 2.5);
    EXPECT_EQ(parse_faults("step:1:2:nan,checkpoint.gc").size(), 2u);
    EXPECT_TRUE(parse_faults("").empty());
}

TEST(Fault, RefusesWithTheNearest) {
    EXPECT_TRUE(says(refusal_of_faults("stap"), "nearest: step"));
    EXPECT_TRUE(says(refusal_of_faults("step:1:1:kil"), "nearest: kill"));
    for (const char* text : {"step:1:2:3", "step:kill:1", "step:1:0", "step:sleep", "step:sleep=", "step:kill=3",
                             "step:1+", "step,", "step:1:2:kill:stop"})
        EXPECT_NE(refusal_of_faults(text), "") << text;
}

TEST(Fault, HappensOnTheNthTimeOnItsRankOnly) {
    const FaultScope armed(Faults(1, "weights:1:2:flip,gradient:*:2+:nan,file.write:0:1:eio,file.fsync:1:1:enospc"));
    EXPECT_EQ(fault_point("weights"), FaultAction::none);
    EXPECT_EQ(fault_point("weights"), FaultAction::flip);
    EXPECT_EQ(fault_point("weights"), FaultAction::none);
    EXPECT_EQ(fault_point("gradient"), FaultAction::none);
    EXPECT_EQ(fault_point("gradient"), FaultAction::nan);
    EXPECT_EQ(fault_point("gradient"), FaultAction::nan);
    EXPECT_EQ(fault_errno("file.write"), 0);  // rank 0's
    EXPECT_EQ(fault_errno("file.fsync"), ENOSPC);
    EXPECT_EQ(fault_errno("file.fsync"), 0);
    {
        const FaultScope inner(Faults(1, "step:error"));
        EXPECT_THROW(fault_point("step"), Error);
    }
    {
        const FaultScope inner(Faults(0, "step:1:error"));
        EXPECT_NO_THROW(fault_point("step"));
    }
    EXPECT_EQ(fault_point("gradient"), FaultAction::nan) << "the outer scope's faults are back";
}

// Ranks as threads: each has its own faults and counts its own hits; a thread that a rank starts shares the rank's.
TEST(Fault, RanksInOneProcessHaveTheirOwn) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank)
        ranks.emplace_back([rank] {
            EXPECT_EQ(fault_point("weights"), FaultAction::none) << "no scope, no fault";
            const FaultScope armed(Faults(rank, "weights:2:3:flip,loss:*:2:spike"));
            fault_point("weights"), fault_point("loss");
            std::thread([rank, faults = Faults::here()] {
                const FaultScope same(faults);
                EXPECT_EQ(fault_point("weights"), FaultAction::none);
                EXPECT_EQ(fault_point("loss"), FaultAction::spike);
            }).join();
            EXPECT_EQ(fault_point("weights"), rank == 2 ? FaultAction::flip : FaultAction::none);
        });
    for (std::thread& rank : ranks) rank.join();
}

// A point that the table lacks could never be asked for; one that the code lacks would be a fault that never happens.
TEST(Fault, TableAndCodeHaveTheSamePoints) {
    if (!std::filesystem::exists("llama/base/fault.cpp")) GTEST_SKIP() << "run from the repository's root";
    std::set<std::string> used;
    const std::regex call("fault_(?:point|errno)\\(\"([a-z.]+)\"");
    std::vector<std::filesystem::path> files = {"train_llama.cu"};
    for (const auto& entry : std::filesystem::recursive_directory_iterator("llama")) files.push_back(entry.path());
    for (const auto& path : files) {
        if (path.filename() == "fault.h" || !path.has_extension()) continue;
        const std::string text = text_in(path);
        for (std::sregex_iterator it(text.begin(), text.end(), call), end; it != end; ++it) used.insert((*it)[1]);
    }
    EXPECT_GT(used.size(), 20u);
    for (const std::string& point : used) EXPECT_NO_THROW(parse_faults(point)) << point;
}

}  // namespace
}  // namespace rz
