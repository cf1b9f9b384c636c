// Jobs that go wrong under mpirun: a rank hangs, is stopped or killed, throws, exits, or calls something else. The job
// must end by itself, with the documented code, and the reason file must name the rank. This binary starts itself under
// mpirun: the ranks run the disabled test CommFaultRank.Body.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "comm/collectives.h"
#include "comm/mesh.h"
#include "comm/mpi_transport.h"
#include "comm/process.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

// In place of the library's, which is then PMPI_Finalize.
#ifdef RZ_HAVE_MPI
#include <mpi.h>
extern "C" int MPI_Finalize() {
    const char* fault = std::getenv("RZ_FAULT");
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (fault && (fault == std::string("finalize-all") || (fault == std::string("finalize") && rank == 1)))
        std::this_thread::sleep_for(std::chrono::hours(1));
    return PMPI_Finalize();
}
// The first one makes the control plane; then the run directory is agreed upon.
extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
    static bool first = true;
    const int result = PMPI_Comm_split(comm, color, key, made);
    const char* fault = std::getenv("RZ_FAULT");
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (first && rank == 1 && fault && fault == std::string("stop-start")) raise(SIGSTOP);
    first = false;
    return result;
}
#endif

namespace rz {
namespace {

// Seconds. Where the deadline is not what ends a job, it is long, and the job's time shows that nobody waited for it.
constexpr double kDeadline = 2, kLongDeadline = 50;
constexpr int kRanks = 3, kBadRank = 1, kBadStep = 4;

void misbehave(const std::string& fault) {
    if (fault == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault == "stop") raise(SIGSTOP);
    if (fault == "kill") raise(SIGKILL);
    if (fault == "throw") fail("the disk of this rank is full");
    if (fault == "exit") std::exit(0);
}

// A rank of a job of six steps.
int train(Process& process, const std::string& fault) {
    const Device cpu{DeviceKind::cpu, 0};
    auto transport = process.make_transport(TransportKind::mpi, cpu, 0, process.rank(), "world");
    auto ring = make_collectives(Algorithm::ring, *transport, {.chunk_bytes = 4096, .lanes = 2, .meter = nullptr});
    Stream stream(cpu, "comm");
    std::vector<float> x(10000, 1.0f);
    const auto offsets = even_offsets(int64_t(x.size()), process.size());
    for (int step = 0; step < 6; ++step) {
        process.set_step(step);
        const bool bad = process.rank() == kBadRank && step == kBadStep;
        if (bad) misbehave(fault);
        if (step == kBadStep && fault == "stop-files") {
            Process::DiskWork files(process);
            if (bad) raise(SIGSTOP);
            files.join();
        }
        if (bad && fault == "mismatch")
            ring->all_gather(stream, all_gather_f32(x.data(), x.data() + offsets[kBadRank], offsets));
        ring->all_reduce(stream, sum_in_place(x.data(), offsets));
        stream.synchronize();
    }
    return fault == "requeue" ? int(kExitRequeue) : 0;
}

// Each rank is a stage: numbers go up the pipeline and come back. The first stage hangs in a step.
int pipeline(Process& process) {
    Mesh mesh(process, {DeviceKind::cpu, 0}, {.grid = {.pp = process.size()}});
    const int own = mesh.pp().rank(), last = mesh.pp().size() - 1;
    for (int step = 0; step < 6; ++step) {
        process.set_step(step);
        if (own == 0 && step == kBadStep) misbehave("hang");
        int up = 1, down = 1;
        const auto pass = [&](Link& link, bool sends, int& x) {
            sends ? link.send(&x, sizeof x) : link.recv(&x, sizeof x);
            link.stream().synchronize();
        };
        if (own > 0) pass(mesh.link_from(own - 1), false, up);
        if (own < last) pass(mesh.link_to(own + 1), true, up);
        if (own < last) pass(mesh.link_from(own + 1), false, down);
        if (own > 0) pass(mesh.link_to(own - 1), true, down);
    }
    return 0;
}

TEST(CommFaultRank, DISABLED_Body) {
    const char* fault = std::getenv("RZ_FAULT");
    if (!fault) GTEST_SKIP() << "run by the tests below";
    const bool ends_at_once = fault == std::string("kill") || fault == std::string("throw");
    Process process({.timeout_s = ends_at_once ? kLongDeadline : kDeadline,
                     .start_s = fault == std::string("stop-start") ? kDeadline : kLongDeadline,
                     .finalize_s = kDeadline,
                     .run_directory = std::getenv("RZ_RUN_DIR")});
    const int code =
        process.run([&] { return fault == std::string("stage") ? pipeline(process) : train(process, fault); });
    std::fflush(nullptr);
    _exit(code);
}

struct Outcome {
    int code = -1;
    double seconds = 0;
    std::string reason, output;
};

Outcome run_job(const std::string& fault) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    const TempFolder folder;
    const std::string command = format(
        "OMP_NUM_THREADS=1 RZ_FAULT=%s RZ_RUN_DIR=%s MPIEXEC_TIMEOUT=60 mpirun -n %d %s --gtest_brief=1 "
        "--gtest_also_run_disabled_tests --gtest_filter=CommFaultRank.DISABLED_Body > %s/output 2>&1",
        fault.c_str(), folder.path.c_str(), kRanks, self.c_str(), folder.path.c_str());
    Outcome outcome;
    const auto began = std::chrono::steady_clock::now();
    const int status = std::system(command.c_str());
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.reason = text_in(folder / "failure.txt");
    outcome.output = text_in(folder / "output");
    return outcome;
}

class CommFaults : public testing::Test {
   protected:
    void SetUp() override {
        if (!built_with_mpi()) GTEST_SKIP() << "built without MPI";
        if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
    }
};

TEST_F(CommFaults, AGoodJobLeavesNoReason) {
    const Outcome good = run_job("none");
    EXPECT_EQ(good.code, 0) << good.output;
    EXPECT_EQ(good.reason, "");
    const Outcome stopped = run_job("requeue");
    EXPECT_EQ(stopped.code, kExitRequeue) << stopped.output;
}

void expect_deadline(const std::string& fault, const std::vector<std::string>& reason) {
    const Outcome job = run_job(fault);
    EXPECT_EQ(job.code, kExitDeadline) << job.output;
    for (const std::string& part : reason) EXPECT_TRUE(says(job.reason, part));
}

// Every rank reports; the table names the culprit.
TEST_F(CommFaults, AHungRankIsNamedAtTheDeadline) {
    expect_deadline("hang", {"step 4: waited", "all_reduce", "rank 0 of 3", "rank 1 of 3", "rank 2 of 3",
                             "verdict: a host that does not come on: rank 1 (",
                             "has not issued [all_reduce #5 of group world (step 4, "});
}

// The deadline of rank 1, which waits for it, or that of rank 2, which waits for rank 1, ends first.
TEST_F(CommFaults, AHungStageIsNamedWithItsLink) {
    expect_deadline("stage", {"step 4: waited", "[recv of 4 bytes from rank ",
                              " of group pp 0>1 (step 4, 4 B): running, hop 1, from rank 0",
                              "verdict: a host that does not come on: rank 0 ("});
}

TEST_F(CommFaults, AStoppedRankIsNamedAtTheDeadline) { expect_deadline("stop", {"the process is stopped or dead"}); }

// Its neighbours see that it does not move: they wait as long as for a message, not as long as for files.
TEST_F(CommFaults, AStoppedRankIsNamedWhileRanksWorkWithFiles) {
    expect_deadline("stop-files", {"rank 1 (pid ", "while the ranks work with files: the process is stopped or dead"});
}

TEST_F(CommFaults, AStoppedRankInMpiStartUpEndsTheJob) {
    const Outcome job = run_job("stop-start");
    EXPECT_NE(job.code, 0) << job.output;  // Hydra's choice: 71, or 9 of the rank that it kills
    EXPECT_TRUE(says(job.output, "MPI's start-up did not end within 2 s: not all ranks came up"));
}

TEST_F(CommFaults, OperationsOutOfStepAreNamed) {
    const Outcome job = run_job("mismatch");
    // MPI may notice that sizes disagree before the deadline does.
    EXPECT_TRUE(job.code == kExitDeadline || job.code == kExitError) << job.code << "\n" << job.output;
    EXPECT_TRUE(says(job.reason, "verdict: extra call: rank 1 issued [all_gather #5 of group world (step 4, "));
}

TEST_F(CommFaults, AKilledRankEndsTheJobAtOnce) {
    const Outcome job = run_job("kill");
    EXPECT_NE(job.code, 0) << job.output;
    EXPECT_LT(job.seconds, kLongDeadline) << "the deadline should not have been needed";
}

TEST_F(CommFaults, AnErrorOnOneRankEndsTheJobWithItsText) {
    const Outcome job = run_job("throw");
    EXPECT_EQ(job.code, kExitError) << job.output;
    EXPECT_TRUE(says(job.reason, "rank 1 of 3: the disk of this rank is full"));
    EXPECT_LT(job.seconds, kLongDeadline);
}

// All ranks have passed the last barrier: what they did counts, whatever the library does then.
TEST_F(CommFaults, AFinalizeThatHangsChangesNoResult) {
    for (const char* who : {"finalize", "finalize-all"}) {
        const Outcome job = run_job(who);
        EXPECT_EQ(job.code, 0) << job.output;
        EXPECT_TRUE(says(job.output, "MPI_Finalize did not end within 2 s: all ranks are done"));
        EXPECT_EQ(job.reason, "");
    }
}

TEST_F(CommFaults, LeavingEarlyIsNotSuccess) {
    const Outcome job = run_job("exit");
    EXPECT_EQ(job.code, kExitError) << job.output;
    EXPECT_TRUE(says(job.reason, "rank 1 of 3: a library called exit()"));
}

}  // namespace
}  // namespace rz
