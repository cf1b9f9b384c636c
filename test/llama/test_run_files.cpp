// The lock on an output folder, its run_status.json, and file errors on the way to the disk.

#include <gtest/gtest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/host.h"
#include "llama/base/atomic_file.h"
#include "llama/base/fault.h"
#include "llama/base/json.h"
#include "llama/report/console.h"
#include "llama/report/eta.h"
#include "llama/train/run_lock.h"
#include "llama/train/run_status.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

namespace fs = std::filesystem;

std::string refusal_of_lock(const std::string& folder, double lease = 10) {
    return error_of([&] { RunLock(folder, 0.1, lease); });
}

// Runs body in a child; returns once it says that it is ready. The child then waits to be killed.
pid_t child_that(const std::function<void()>& body) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    const pid_t child = fork();
    if (child == 0) {
        body();
        if (write(ends[1], "x", 1) == 1) pause();
        _exit(1);
    }
    close(ends[1]);
    char ready;
    EXPECT_EQ(read(ends[0], &ready, 1), 1);
    close(ends[0]);
    return child;
}

void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

// The number of a process that was.
pid_t dead_process() {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
    return child;
}

// How many of some processes that all begin together get the lock of a folder. One that has it holds it until all
// others have tried.
int winners(const std::string& folder, int processes, double lease = 10) {
    void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(shared != MAP_FAILED, "no shared memory: %m");
    std::atomic<int>& lost = *new (shared) std::atomic<int>(0);
    int ends[2];
    require(pipe(ends) == 0, "no pipe: %m");
    std::vector<pid_t> children;
    for (int i = 0; i < processes; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            close(ends[1]);
            char go;
            if (read(ends[0], &go, 1) != 0) _exit(9);  // all begin when the other end is closed
            try {
                RunLock lock(folder, 0.0, lease);
                for (int k = 0; k < 6000 && lost < processes - 1; ++k) usleep(10000);
                _exit(lock.held() ? 7 : 6);
            } catch (const Error&) {
                ++lost;
                _exit(8);
            }
        }
        children.push_back(child);
    }
    close(ends[0]);
    close(ends[1]);
    int won = 0;
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        won += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    munmap(shared, 4096);
    return won;
}

using LockTestMode = RunLock::LockTestMode;
struct Pretending {
    explicit Pretending(LockTestMode what) { RunLock::pretend(what); }
    ~Pretending() { RunLock::pretend(LockTestMode::nothing); }
};
class RunLockTest : public testing::TestWithParam<bool> {
    const Pretending pretending_{GetParam() ? LockTestMode::no_flock : LockTestMode::nothing};
};

// The owner's file as a dead process of this host left it.
void leave_owner(const std::string& folder, pid_t dead) {
    write_file_atomically(folder + "/run.lock.owner",
                          format("pid %d on host %s since then\n", int(dead), host_name().c_str()));
}

TEST_P(RunLockTest, SecondRunIsRefusedAndToldWho) {
    TempFolder folder;
    const pid_t child = child_that([&] { new RunLock(folder.path); });
    const std::string text = refusal_of_lock(folder.path);
    EXPECT_TRUE(says(text, format("pid %d on host ", int(child))));
    EXPECT_TRUE(says(text, "another run writes there"));
    EXPECT_TRUE(says(text, folder.path));
    end(child);
    EXPECT_EQ(refusal_of_lock(folder.path), "") << "the lock of a dead process";
    EXPECT_EQ(refusal_of_lock(folder.path), "") << "and after that one has gone";
}

TEST_P(RunLockTest, OneOfManyWins) {
    TempFolder folder;
    EXPECT_EQ(winners(folder.path, 8), 1);
}

INSTANTIATE_TEST_SUITE_P(FlockOrNot, RunLockTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "file" : "flock"; });

// One that is left by a dead process is broken by one of those that find it, however many come at once.
TEST(RunLock, DeadOwnersFileGoesToOneOfMany) {
    const Pretending pretending(LockTestMode::no_flock);
    const pid_t dead = dead_process();
    for (int round = 0; round < 30; ++round) {
        TempFolder folder;
        leave_owner(folder.path, dead);
        ASSERT_EQ(winners(folder.path, 8), 1) << "round " << round;
    }
}

// A start that was killed while it replaced a dead owner's file left its claim.
TEST(RunLock, AClaimThatWasLeftDelaysTheNextStartOnly) {
    TempFolder folder;
    const Pretending pretending(LockTestMode::no_flock);
    leave_owner(folder.path, dead_process());
    fs::create_hard_link(folder / "run.lock.owner", folder / "run.lock.owner.tmp-dead");
    EXPECT_EQ(refusal_of_lock(folder.path), "");
    EXPECT_FALSE(fs::exists(folder / "run.lock.owner.tmp-dead"));
}

TEST(RunLock, HostsWithAndWithoutLocksRefuseEachOther) {
    for (const LockTestMode here : {LockTestMode::nothing, LockTestMode::no_flock}) {
        TempFolder folder;
        write_file_atomically(folder / "run.lock.owner", "pid 1 on host elsewhere since then\n");
        const Pretending pretending(here);
        const std::string text = refusal_of_lock(folder.path);
        EXPECT_TRUE(says(text, "host elsewhere"));
        EXPECT_TRUE(says(text, "delete " + folder.path + "/run.lock.owner"));
    }
}

// Each process has a flock and a host of its own, as where the mount keeps flock to a host.
TEST(RunLock, AHostWhoseFlockSeesNoOtherIsRefusedWhileTheOwnerCounts) {
    TempFolder folder;
    const Pretending pretending(LockTestMode::own_host);
    const pid_t child = child_that([&] { new RunLock(folder.path); });
    EXPECT_TRUE(says(refusal_of_lock(folder.path, 20), format("pid %d on host", int(child))));
    end(child);
    EXPECT_EQ(refusal_of_lock(folder.path, 3), "") << "it has stood still";
    EXPECT_EQ(refusal_of_lock(folder.path, 20), "") << "nothing is left";
}

TEST(RunLock, OfManyHostsThatFindADeadOwnerOneGoesOn) {
    const Pretending pretending(LockTestMode::own_host);
    TempFolder folder;
    end(child_that([&] { new RunLock(folder.path); }));
    EXPECT_EQ(winners(folder.path, 6, /*lease=*/4), 1);
}

TEST(RunLock, AFileRemovedWhileHeldIsMadeAgain) {
    TempFolder folder;
    const auto next_second = [] { usleep(1100000); };
    RunLock lock(folder.path);
    EXPECT_TRUE(lock.held());
    fs::remove(folder.path + "/run.lock");
    EXPECT_NE(refusal_of_lock(folder.path), "") << "the owner's file says so";
    fs::remove(folder.path + "/run.lock.owner");
    next_second();
    EXPECT_TRUE(lock.held());
    EXPECT_NE(refusal_of_lock(folder.path), "") << "it was made again";
    fs::remove(folder.path + "/run.lock");
    fs::remove(folder.path + "/run.lock.owner");
    const RunLock other(folder.path);
    next_second();
    EXPECT_FALSE(lock.held());
    EXPECT_TRUE(says(lock.lost(), "another run has taken the folder"));
}

TEST(RunLock, LinksAreNotFollowed) {
    TempFolder folder;
    const std::string target = folder.path + "/precious";
    write_file_atomically(target, "untouched");
    fs::create_symlink(target, folder.path + "/run.lock");
    EXPECT_TRUE(says(refusal_of_lock(folder.path), "is a link"));
    fs::remove(folder.path + "/run.lock");
    fs::create_symlink(target, folder.path + "/run_status.json.tmp-0");
    RunStatus(folder.path, 0, 1, 10).running(1);
    EXPECT_EQ(read_file(target), "untouched");
}

// A full disk takes a part of a line: it is taken back, so that the next line begins a line.
TEST(AtomicFile, AnAppendThatDoesNotFitLeavesNothing) {
    TempFolder folder;
    const std::string path = folder.path + "/lines";
    const int fd = open_to_append(path, /*empties=*/true);
    ASSERT_GE(fd, 0);
    ASSERT_TRUE(append_whole(fd, "first\n"));
    {
        const FileSizeLimit limit(10);
        EXPECT_FALSE(append_whole(fd, "second\n"));
        EXPECT_EQ(errno, EFBIG);
    }
    EXPECT_TRUE(append_whole(fd, "third\n"));
    ::close(fd);
    EXPECT_EQ(read_file(path), "first\nthird\n");
    ASSERT_EQ(mkfifo((folder.path + "/fifo").c_str(), 0600), 0);
    for (const char* name : {"/fifo", ""}) EXPECT_EQ(open_to_append(folder.path + name, false), -1) << name;
}

TEST(FolderTest, OnlyWhatIsNotThereIsMissing) {
    TempFolder folder;
    EXPECT_TRUE(names_in(folder.path + "/none").empty());
    EXPECT_FALSE(path_exists(folder.path + "/none"));
    write_file_atomically(folder.path + "/file", "");
    EXPECT_EQ(names_in(folder.path), std::vector<std::string>{"file"});
    EXPECT_THROW(names_in(folder.path + "/file"), Error);
    fs::create_symlink("loop", folder.path + "/loop");
    EXPECT_THROW(names_in(folder.path + "/loop"), Error);
    EXPECT_THROW(path_exists(folder.path + "/loop/below"), Error);
    for (const std::string& none :
         std::vector<std::string>{"/none", "/loop", "/file/below", "/" + std::string(300, 'x')}) {
        EXPECT_FALSE(is_file(folder.path + none)) << none;
        EXPECT_FALSE(is_folder(folder.path + none)) << none;
    }
    fs::create_symlink("file", folder.path + "/link");
    EXPECT_TRUE(is_file(folder.path + "/link"));
    EXPECT_FALSE(is_folder(folder.path + "/link"));
    EXPECT_TRUE(is_folder(folder.path));
    EXPECT_FALSE(is_file(folder.path));
}

TEST(RunLock, WaitsForOneThatIsEnding) {
    TempFolder folder;
    const pid_t child = child_that([&] { new RunLock(folder.path); });
    if (fork() == 0) {
        usleep(200000);
        kill(child, SIGKILL);
        _exit(0);
    }
    EXPECT_NO_THROW(RunLock(folder.path, 5.0));
    while (waitpid(-1, nullptr, 0) > 0) {
    }
}

TEST(RunLock, AFolderThatCannotBeIsRefusedWithTheReason) {
    TempFolder folder;
    write_file_atomically(folder.path + "/file", "x");
    EXPECT_TRUE(says(refusal_of_lock(folder.path + "/file"), "is not a folder"));
    EXPECT_NE(refusal_of_lock(folder.path + "/file/below"), "");
    EXPECT_NE(refusal_of_lock("/proc/ringzero"), "");
    EXPECT_EQ(refusal_of_lock(folder.path + "/new/and/deeper"), "");
}

Json status_in(const std::string& folder) { return read_json(folder + "/run_status.json"); }

TEST(RunStatus, StatusFollowsTheRun) {
    TempFolder folder;
    RunStatus s(folder.path, 0, 4, 1000);
    s.running(1);
    EXPECT_EQ(status_in(folder.path)["state"], "running");
    EXPECT_EQ(status_in(folder.path)["pid"], int(getpid()));
    s.running(2);  // within a second: not written
    EXPECT_EQ(status_in(folder.path)["step"], 1);
    s.saved(2);
    EXPECT_EQ(status_in(folder.path)["saved_step"], 2);
    EXPECT_EQ(status_in(folder.path)["step"], 2);
    s.stopped(3, 75, "SIGTERM on rank 2");
    const Json j = status_in(folder.path);
    EXPECT_EQ(j["state"], "stopped");
    EXPECT_EQ(j["exit_code"], 75);
    EXPECT_EQ(j["reason"], "SIGTERM on rank 2");
    EXPECT_EQ(j["step"], 3);
    EXPECT_EQ(j["steps"], 1000);
    s.running(4);
    s.failed(70, "too late");
    EXPECT_EQ(status_in(folder.path), j) << "an end is final";
    for (const auto& entry : fs::directory_iterator(folder.path)) EXPECT_EQ(entry.path().filename(), "run_status.json");
}

TEST(RunStatus, KeepsWhatAnEarlierStartHasSaved) {
    TempFolder folder;
    RunStatus(folder.path, 0, 1, 10).saved(4);
    RunStatus next(folder.path, 0, 1, 10);
    EXPECT_EQ(next.saved_step(), 4);
    next.failed(70, "no disk");
    EXPECT_EQ(status_in(folder.path)["saved_step"], 4);
    EXPECT_EQ(RunStatus(folder.path, 1, 2, 10).saved_step(), -1) << "only rank 0 tells of it";
}

TEST(RunStatus, OtherRanksOnlyReportTheirFailure) {
    TempFolder folder;
    RunStatus s(folder.path, 3, 4, 10);
    s.running(1);
    s.saved(1);
    EXPECT_FALSE(fs::exists(folder.path + "/run_status.json"));
    s.failed(70, "line one\nline \"two\" \xff");
    const Json j = status_in(folder.path);
    EXPECT_EQ(j["rank"], 3);
    EXPECT_EQ(j["state"], "failed");
    EXPECT_EQ(std::string(j["reason"]).substr(0, 20), "line one\nline \"two\" ");
}

TEST(RunStatus, AnotherRanksEndIsNotCoveredByRankZero) {
    TempFolder folder;
    RunStatus(folder.path, 0, 2, 10).saved(2);
    RunStatus(folder.path, 1, 2, 10).failed(70, "of an earlier start");
    RunStatus zero(folder.path, 0, 2, 10), one(folder.path, 1, 2, 10);
    zero.running(3);
    EXPECT_EQ(status_in(folder.path)["state"], "running");
    one.failed(70, "no memory");
    zero.saved(4);  // was under way
    const Json j = status_in(folder.path);
    EXPECT_EQ(j["state"], "failed");
    EXPECT_EQ(j["rank"], 1);
    EXPECT_EQ(j["reason"], "no memory");
    EXPECT_EQ(j["saved_step"], 4);
}

TEST(RunStatus, WithoutAFolderNothingHappensAndAFullDiskIsNoError) {
    RunStatus none("", 0, 1, 10);
    none.running(1);
    none.failed(70, "x");
    RunStatus broken("/proc/nowhere", 0, 1, 10);
    testing::internal::CaptureStderr();
    broken.running(1);
    broken.saved(1);
    broken.failed(70, "x");
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(says(said, "can't write /proc/nowhere/run_status.json"));
    EXPECT_EQ(said.find("can't write"), said.rfind("can't write")) << "one warning";
}

std::string write_error(const char* fault, const std::string& path) {
    const FaultScope armed(Faults(0, fault));
    testing::internal::CaptureStderr();
    const std::string error = error_of([&] { write_file_atomically(path, "new"); });
    testing::internal::GetCapturedStderr();
    return error;
}

TEST(FileFaults, EveryFailedCallIsSeenAndLeavesTheOldFile) {
    TempFolder folder;
    const std::string path = folder.path + "/file";
    write_file_atomically(path, "old");
    for (const char* call : {"open", "write", "fsync", "close", "rename"})
        for (const char* action : {"enospc", "eio", "efbig"}) {
            const std::string error = write_error(format("file.%s:0:*:%s", call, action).c_str(), path);
            EXPECT_TRUE(says(error, std::string(call) + " failed")) << call << " " << action;
            EXPECT_EQ(read_file(path), "old") << call << " " << action;
            EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), {}), 1) << "what was begun is removed";
        }
    EXPECT_TRUE(says(write_error("file.write:0:1:enospc", path), "free some space"));
}

// A server that restarts answers EIO or a stale handle for a while.
TEST(FileFaults, PassingErrorsOfANetworkFileSystemAreTriedAgain) {
    TempFolder folder;
    const std::string path = folder.path + "/file";
    EXPECT_EQ(write_error("file.write:0:1:eio", path), "");
    EXPECT_EQ(write_error("file.write:0:1:estale,file.write:0:2:eio", path), "");
    EXPECT_EQ(read_file(path), "new");
    EXPECT_NE(write_error("file.fsync:0:1:eio", path), "") << "a second fsync would succeed without the lost pages";
    {
        const FaultScope armed(Faults(0, "file.read:0:1:eio"));
        EXPECT_EQ(read_file(path), "new");
    }
    const FaultScope armed(Faults(0, "file.read:0:*:eio"));
    EXPECT_THROW(read_file(path), Error);
}

// In a container every start has the same process id.
TEST(AtomicFile, WhatAProcessOfTheSameIdLeftIsNotInTheWay) {
    TempFolder folder;
    for (int i = 0; i < 300; ++i) std::ofstream(folder / format("a.tmp-%d-%d", int(getpid()), i)) << "half";
    write_file_atomically(folder / "a", "whole");
    EXPECT_EQ(read_file(folder / "a"), "whole");
}

TEST(AtomicFile, TemporaryFilesOfKilledProcessesGoAndThoseInUseStay) {
    TempFolder folder;
    const pid_t child = child_that([&] {
        auto* file = new AtomicFile(folder / "model.safetensors");
        file->append("x", 1);
    });
    for (const char* left : {"a.tmp-12-3", "run_status.json.tmp-2", "b.tmp-0123456789abcdef"})
        std::ofstream(folder / left) << "half";
    fs::create_symlink("/dev/zero", folder / "c.tmp-4");
    for (const char* stays : {"a", "notes.tmp-draft", "x.tmp-", ".tmp-step_000000001-ab"})
        std::ofstream(folder / stays) << "whole";
    remove_left_temporaries(folder.path);
    const std::vector<std::string> names = names_in(folder.path);
    ASSERT_EQ(names.size(), 5u);
    EXPECT_EQ(names[0], ".tmp-step_000000001-ab");
    EXPECT_EQ(names[2].rfind("model.safetensors.tmp-", 0), 0u) << "the child writes it";
    end(child);
    remove_left_temporaries(folder.path);
    EXPECT_EQ(names_in(folder.path),
              (std::vector<std::string>{".tmp-step_000000001-ab", "a", "notes.tmp-draft", "x.tmp-"}));
}

// ---- standard output ----

TEST(Console, APipeThatNobodyReadsHoldsNothingUp) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::string text;
    std::atomic<size_t> taken = 0;
    std::thread reader;
    {
        Console console(ends[1]);
        const std::string line(99, 'x');
        for (int i = 0; i < 20000; ++i) console.line(line);  // 2 MB, and the pipe takes 64 KiB
        reader = std::thread([&] {
            char piece[4096];
            for (ssize_t n; (n = read(ends[0], piece, sizeof piece)) > 0;)
                text.append(piece, size_t(n)), taken = text.size();
        });
        while (taken < 8192) usleep(1000);  // there is room again
        for (int i = 0; i < 3; ++i) console.line(line);
    }
    close(ends[1]);
    reader.join();
    close(ends[0]);
    const size_t at = text.find("lines are left out: standard output was not read)\n");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(text.size(), Console::kMost);
    for (size_t i = 99; i < Console::kMost / 2; i += 100) ASSERT_EQ(text[i], '\n') << "whole lines in order";
}

TEST(Console, TheStatusStandsBelowTheLinesOfATerminal) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_GE(terminal, 0);
    ASSERT_TRUE(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    ASSERT_GE(side, 0);
    setenv("TERM", "xterm", 1);
    {
        Console console(side);
        EXPECT_TRUE(console.is_terminal());
        console.status("1%");
        console.line("one");
        console.line("two");
        console.status("2%");
        console.status("");
        console.status("");
        console.status("3%");
    }
    const std::string clear = "\r\033[K";
    const std::string want = clear + "1%" + clear + "one\r\ntwo\r\n" + clear + "2%" + clear + clear + "3%" + clear;
    std::string text;
    pollfd more{terminal, POLLIN, 0};
    while (text.size() < want.size() && poll(&more, 1, /*ms=*/5000) > 0) {  // it comes in parts
        char piece[256];
        text.append(piece, size_t(std::max<ssize_t>(0, read(terminal, piece, sizeof piece))));
    }
    EXPECT_EQ(text, want);
    setenv("TERM", "dumb", 1);
    EXPECT_FALSE(Console(side).is_terminal());
    close(side);
    close(terminal);
}

// The time that a run of equal steps and stops really takes is the oracle.
TEST(Eta, CountsValidationsAndSavesToTheEnd) {
    const int64_t steps = 95, val_every = 10, save_every = 25;
    const auto stop_after = [&](int64_t s) {  // seconds
        return (s % val_every == 0 || s == steps ? 3.0 : 0) + (s % save_every == 0 || s == steps ? 3.0 : 0);
    };
    double whole = 0;
    for (int64_t s = 1; s <= steps; ++s) whole += 1 + stop_after(s);
    Eta eta(steps, {val_every, save_every, 0});
    EXPECT_LT(eta.left(0), 0);
    double now = 0;
    for (int64_t s = 1; s <= steps; ++s) {
        now += 1;
        eta.step(s, 1, now);
        now += stop_after(s);
        if (s == 2) {
            EXPECT_DOUBLE_EQ(eta.left(s), 93) << "no stop is known yet";
        }
        if (s > val_every) {
            EXPECT_NEAR(eta.left(s), whole - (now - stop_after(s)), 3.5) << s;
        }
    }
    Eta plain(1000, {0});
    plain.step(11, 9, 9), plain.step(12, 2, 11);
    EXPECT_DOUBLE_EQ(plain.left(12), 988 * 2);
}

TEST(Console, AReaderWhoHasGoneIsNoError) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const auto handler = std::signal(SIGPIPE, SIG_IGN);
    close(ends[0]);
    {
        Console console(ends[1]);
        for (int i = 0; i < 1000; ++i) console.line("x");
    }
    std::signal(SIGPIPE, handler);
    close(ends[1]);
}

}  // namespace
}  // namespace rz
