// Which launcher started a process, from its environment alone; and Slurm's lists of nodes.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "comm/launch.h"
#include "kernels/runtime/request.h"
#include "test/checks.h"

namespace rz {
namespace {

using Variables = std::map<std::string, std::string>;
constexpr char kMpich[] = "MPICH Version: 4.0.2", kOpenMpi[] = "Open MPI v4.1.4", kNoMpi[] = "";

Launch launch_of(const Variables& variables, const std::string& mpi = kMpich) {
    return find_launch(
        [&](const char* name) {
            const auto it = variables.find(name);
            return it == variables.end() ? nullptr : it->second.c_str();
        },
        mpi);
}

std::string refusal_of(const Variables& variables, const std::string& mpi = kMpich) {
    return error_of<RequestError>([&] { launch_of(variables, mpi); });
}

TEST(Launch, NobodyIsOneProcess) {
    for (const char* mpi : {kMpich, kNoMpi}) {
        EXPECT_EQ(launch_of({}, mpi).how, Launch::How::alone);
        EXPECT_EQ(launch_of({{"WORLD_SIZE", "1"}}, mpi).how, Launch::How::alone);
        EXPECT_EQ(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}}, mpi).how,
                  Launch::How::alone);
        EXPECT_EQ(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}, mpi).how, Launch::How::alone)
            << "a batch script's own step";
    }
    EXPECT_EQ(launch_of({{"PMI_SIZE", "1"}}, kNoMpi).how, Launch::How::alone);
}

TEST(Launch, MpirunIsMpis) {
    const Launch pmi = launch_of({{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "9"}});
    EXPECT_EQ(pmi.how, Launch::How::mpi);
    EXPECT_EQ(pmi.size, 4);
    EXPECT_EQ(launch_of({{"OMPI_COMM_WORLD_SIZE", "3"}}, kOpenMpi).how, Launch::How::mpi);
    EXPECT_EQ(launch_of({{"PMIX_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}}).how,
              Launch::How::mpi);
    EXPECT_TRUE(says(refusal_of({{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}}, kNoMpi), "--ranks 4"));
}

TEST(Launch, Torchrun) {
    const Variables torchrun = {{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"MASTER_ADDR", "node7"},
                                {"MASTER_PORT", "29400"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
    const Launch l = launch_of(torchrun);
    EXPECT_EQ(l.how, Launch::How::tcp);
    EXPECT_EQ(l.rank, 5);
    EXPECT_EQ(l.size, 8);
    EXPECT_EQ(l.address, "node7");
    EXPECT_EQ(l.port, 29401) << "the agent's store has the other one";
    EXPECT_FALSE(l.one_host);
    EXPECT_TRUE(l.secret_is_open);

    Variables other = torchrun;
    other["TORCHELASTIC_USE_AGENT_STORE"] = "False";
    EXPECT_EQ(launch_of(other).port, 29400);
    other["RINGZERO_PORT"] = "7000";
    EXPECT_EQ(launch_of(other).port, 7000);
    other["LOCAL_WORLD_SIZE"] = "8";
    EXPECT_TRUE(launch_of(other).one_host);
    EXPECT_EQ(launch_of(other).address, "127.0.0.1");
    other["RINGZERO_TOKEN"] = "0123456789abcdef";
    EXPECT_EQ(launch_of(other).secret, "0123456789abcdef");
    EXPECT_FALSE(launch_of(other).secret_is_open);
    other["RINGZERO_TOKEN"] = "short";
    EXPECT_TRUE(says(refusal_of(other), "16 or more"));
    other = torchrun;
    other.erase("MASTER_ADDR");
    EXPECT_TRUE(says(refusal_of(other), "set MASTER_ADDR"));
    for (const char* bad : {"-1", "8", "x", "99999999999999999999", "1 "}) {
        other = torchrun;
        other["RANK"] = bad;
        EXPECT_NE(refusal_of(other), "") << bad;
    }
}

TEST(Launch, SlurmWithoutPmi) {
    const Variables srun = {
        {"SLURM_PROCID", "3"},  {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_JOB_NODELIST", "b[09-10],a1"},
        {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"},        {"SLURM_NTASKS", "8"}};
    for (const char* mpi : {kMpich, kNoMpi}) {
        const Launch l = launch_of(srun, mpi);
        EXPECT_EQ(l.how, Launch::How::tcp);
        EXPECT_EQ(l.rank, 3);
        EXPECT_EQ(l.address, "b09");
        EXPECT_FALSE(l.one_host);
        EXPECT_GE(l.port, 20000);
        EXPECT_LT(l.port, 30000);
    }
    Variables one = srun;
    one["SLURM_STEP_NODELIST"] = "b09";
    EXPECT_TRUE(launch_of(one).one_host);
    one["SLURM_STEP_ID"] = "1";
    EXPECT_NE(launch_of(one).port, launch_of(srun).port) << "two steps of an allocation";
    Variables hydra = srun;  // mpirun's daemons are tasks of srun
    hydra["PMI_SIZE"] = "64", hydra["PMI_RANK"] = "3";
    EXPECT_TRUE(says(refusal_of(hydra, kNoMpi), "mpirun started 64 ranks"));
    EXPECT_EQ(launch_of(hydra).how, Launch::How::mpi);
}

TEST(Launch, OtherMpisNumbersAreEnough) {
    const Variables open_mpi = {
        {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
    for (const char* mpi : {kMpich, kNoMpi}) {
        const Launch l = launch_of(open_mpi, mpi);
        EXPECT_EQ(l.how, Launch::How::tcp);
        EXPECT_EQ(l.rank, 2);
        EXPECT_TRUE(l.one_host);
    }
    Variables hosts = open_mpi;
    hosts["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
    EXPECT_TRUE(says(refusal_of(hosts, kNoMpi), "MASTER_ADDR"));
    hosts["MASTER_ADDR"] = "::1";
    EXPECT_EQ(launch_of(hosts).address, "::1");
    const Launch pals = launch_of({{"PALS_RANKID", "1"}, {"PMI_SIZE", "4"}, {"MASTER_ADDR", "n"}}, kNoMpi);
    EXPECT_EQ(pals.rank, 1);
    EXPECT_EQ(pals.size, 4);
    EXPECT_EQ(pals.by, "PALS");
}

TEST(Launch, TheTokenMayStandInAFile) {
    const TempFolder folder;
    const std::string path = folder / "token";
    const Variables v = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"RINGZERO_TOKEN_FILE", path}};
    std::ofstream(path) << "0123456789abcdef0123\n";
    EXPECT_EQ(launch_of(v).secret, "0123456789abcdef0123");
    std::ofstream(path) << "\n";
    EXPECT_TRUE(says(refusal_of(v), "is empty"));
    std::ofstream(path) << std::string(5000, 'x');
    EXPECT_TRUE(says(refusal_of(v), "at most are read"));
    std::filesystem::remove(path);
    EXPECT_TRUE(says(refusal_of(v), "No such file"));
}

TEST(Nodelist, IsExpandedAsByScontrol) {
    using Names = std::vector<std::string>;
    EXPECT_EQ(expand_nodelist("a[01-03,7]"), (Names{"a01", "a02", "a03", "a7"}));
    EXPECT_EQ(expand_nodelist("a"), (Names{"a"}));
    EXPECT_EQ(expand_nodelist("a,b-c.d_e[9-11],f"), (Names{"a", "b-c.d_e9", "b-c.d_e10", "b-c.d_e11", "f"}));
    EXPECT_EQ(expand_nodelist("r[1-2]n[01-02]x"), (Names{"r1n01x", "r1n02x", "r2n01x", "r2n02x"}));
    EXPECT_EQ(expand_nodelist(""), Names{});
    for (const char* bad : {"a[", "a[1", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a,,b", ",a", "a,", "a b", "a;b",
                            "a[1-99999999]", "a[1-60000]b[1-60000]", "a[1234567890]", "a[-1]", "a/b"})
        EXPECT_THROW(expand_nodelist(bad), RequestError) << bad;
}

}  // namespace
}  // namespace rz
