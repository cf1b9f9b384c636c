// Which GPU and which cores a rank gets, on machines that are made up.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "comm/placement.h"
#include "test/checks.h"

namespace rz {
namespace {

using Visible = std::vector<std::vector<std::string>>;

std::vector<std::string> gpus_of(const Visible& visible) {
    std::vector<std::string> gpus;
    const std::vector<int> chosen = assign_gpus(visible);
    for (size_t r = 0; r < visible.size(); ++r)
        gpus.push_back(chosen[r] < 0 ? "none" : visible[r].at(size_t(chosen[r])));
    return gpus;
}

TEST(AssignGpus, ARankThatSeesAllTakesTheOneOfItsPlace) {
    EXPECT_EQ(assign_gpus(Visible(4, {"A", "B", "C", "D"})), (std::vector<int>{0, 1, 2, 3}));
}

TEST(AssignGpus, ARankThatSeesOneTakesThatOne) {
    EXPECT_EQ(assign_gpus({{"A"}, {"B"}, {"C"}}), (std::vector<int>{0, 0, 0}));
}

// Slurm's --gpu-bind=closest: each rank sees the GPUs of its socket. By place modulo count ranks 0 and 2 would both
// take A, and ranks 1 and 3 both take B.
TEST(AssignGpus, SubsetsBySocketDoNotCollide) {
    const auto gpus = gpus_of({{"A", "B"}, {"C", "D"}, {"A", "B"}, {"C", "D"}});
    EXPECT_EQ(std::set<std::string>(gpus.begin(), gpus.end()).size(), 4u);
}

TEST(AssignGpus, AnEarlierRankMovesWhereALaterOneHasNoChoice) {
    EXPECT_EQ(gpus_of({{"A", "B"}, {"A"}}), (std::vector<std::string>{"B", "A"}));
    EXPECT_EQ(gpus_of({{"A", "B"}, {"B", "C"}, {"B"}, {"A"}}).size(), 4u);
    EXPECT_EQ(gpus_of({{"A", "B"}, {"C", "B"}, {"B"}}), (std::vector<std::string>{"A", "C", "B"}));
}

TEST(AssignGpus, RanksShareOnlyWhereThereAreTooFew) {
    const auto gpus = gpus_of(Visible(5, {"A", "B"}));
    EXPECT_LE(std::count(gpus.begin(), gpus.end(), "A"), 3);
    EXPECT_LE(std::count(gpus.begin(), gpus.end(), "B"), 3);
    EXPECT_EQ(gpus_of({{}, {"A"}}), (std::vector<std::string>{"none", "A"}));
}

TEST(Placement, CpuListsAreReadAndDamagedOnesAreEmpty) {
    EXPECT_EQ(parse_cpu_list("0-2,8"), (std::vector<int>{0, 1, 2, 8}));
    EXPECT_EQ(parse_cpu_list("5"), std::vector<int>{5});
    for (const char* text : {"", "x", "3-1", "1,,2", "0-99999999", "1-", "0x2"})
        EXPECT_TRUE(parse_cpu_list(text).empty()) << text;
}

TEST(Placement, CoresNearAGpuAreThoseOfItsNumaNode) {
    const TempFolder folder;
    const std::string sys = folder.path;
    const auto write = [&](const char* path, const std::string& text) { write_text(sys + path, text + "\n"); };
    write("/bus/pci/devices/0000:1b:00.0/numa_node", "1");
    write("/bus/pci/devices/0000:2b:00.0/numa_node", "-1");
    write("/devices/system/node/online", "0-1");
    write("/devices/system/node/node1/cpulist", "4-7");
    EXPECT_EQ(cores_near("00000000:1B:00.0", sys), (std::vector<int>{4, 5, 6, 7}));
    EXPECT_EQ(cores_near("0000:1b:00.0", sys), (std::vector<int>{4, 5, 6, 7}));
    EXPECT_TRUE(cores_near("0000:2B:00.0", sys).empty());
    EXPECT_TRUE(cores_near("0000:ff:00.0", sys).empty());
    write("/devices/system/node/online", "0");
    EXPECT_TRUE(cores_near("0000:1B:00.0", sys).empty()) << "one node: nothing to choose";
}

TEST(Placement, TooFewCoresAreSaidWithWhatTheLauncherCallsThem) {
    EXPECT_TRUE(says(too_few_cores(1, 64, 8, true, true), "srun --cpus-per-task=8"));
    EXPECT_TRUE(says(too_few_cores(1, 64, 8, true, false), "-bind-to none"));
    EXPECT_EQ(too_few_cores(4, 64, 8, true, true), "");
    EXPECT_EQ(too_few_cores(1, 2, 4, true, false), "") << "there are no more";
    EXPECT_EQ(too_few_cores(1, 64, 8, false, false), "");
}

TEST(Placement, TheHostIsItsBootIdNotItsName) {
    const TempFolder proc;
    write_text(proc / "sys/kernel/random/boot_id", "4a1f\n");
    EXPECT_EQ(host_id(proc.path), "4a1f");
    EXPECT_NE(host_id(proc / "none"), "");
}

}  // namespace
}  // namespace rz
