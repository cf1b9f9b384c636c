#include "llama/train/stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "kernels/runtime/check.h"
#include "llama/base/clock.h"

namespace rz {
namespace {

TEST(Stop, EachSignalIsRemembered) {
    struct sigaction before[3];
    const int signals[] = {SIGTERM, SIGUSR1, SIGINT};
    const StopCause causes[] = {StopCause::terminate, StopCause::usr1, StopCause::interrupt};
    for (int i = 0; i < 3; ++i) sigaction(signals[i], nullptr, &before[i]);
    install_stop_signals();
    for (int i = 0; i < 3; ++i) {
        forget_stop_signal();
        EXPECT_EQ(stop_signal(), StopCause::none);
        raise(signals[i]);
        EXPECT_EQ(stop_signal(), causes[i]);
        raise(SIGTERM);
        EXPECT_EQ(stop_signal(), causes[i]) << "the first one is the reason";
    }
    forget_stop_signal();
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &before[i], nullptr);
}

int status_of(void (*body)()) {
    const pid_t child = fork();
    if (child == 0) {
        install_stop_signals();
        body();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

TEST(Stop, SecondInterruptEndsAtOnce) {
    const int status = status_of([] {
        raise(SIGINT);
        usleep(350000);
        raise(SIGINT);
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(Stop, OneCtrlCThatArrivesTwiceIsOne) {
    const int status = status_of([] {
        raise(SIGINT);
        raise(SIGINT);
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Stop, FileSizeAndPipeSignalsAreErrorsOfTheWrite) {
    const int status = status_of([] {
        int ends[2];
        if (pipe(ends) != 0) _exit(2);
        close(ends[0]);
        if (write(ends[1], "x", 1) >= 0 || errno != EPIPE) _exit(1);
        raise(SIGXFSZ);
    });
    ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Duration, ReadsWhatPeopleAndSlurmWrite) {
    EXPECT_EQ(parse_duration("90"), 90);
    EXPECT_EQ(parse_duration("1.5"), 1.5);
    EXPECT_EQ(parse_duration("90s"), 90);
    EXPECT_EQ(parse_duration("90m"), 5400);
    EXPECT_EQ(parse_duration("3h30m"), 12600);
    EXPECT_EQ(parse_duration("2d12h"), 216000);
    EXPECT_EQ(parse_duration("1:30:00"), 5400);
    EXPECT_EQ(parse_duration("10:05"), 605);
    EXPECT_EQ(parse_duration("0"), 0);
    for (const char* bad : {"", "x", "-5", "3x", "30m3h", "5m5m", "1:", ":1", "1:2:3:4", "1:60:00", "1h ", " 1h", "1e3",
                            "1..5", "99999999999999", "h", "nan"})
        EXPECT_THROW(parse_duration(bad), Error) << bad;
}

TEST(TimeLimit, LeavesTimeForTheNextStepAndTwoSaves) {
    unsetenv("SLURM_JOB_END_TIME");
    const TimeLimit none(0, 1000, 0);
    EXPECT_FALSE(none.reached(1e9, 1e9, 1e12));
    const TimeLimit limit(100, 1000, 0);
    EXPECT_FALSE(limit.reached(10, 5, 1074));
    EXPECT_TRUE(limit.reached(10, 5, 1075));
    setenv("SLURM_JOB_END_TIME", "70050", 1);  // the time of day is 70000 when the machine has run for 1000 s
    EXPECT_EQ(TimeLimit(100, 1000, 70000).end(), 1050);
    EXPECT_EQ(TimeLimit(0, 1000, 70000).end(), 1050);
    EXPECT_EQ(TimeLimit(20, 1000, 70000).end(), 1020);
    setenv("SLURM_JOB_END_TIME", "junk", 1);
    EXPECT_EQ(TimeLimit(0, 1000, 70000).end(), 0);
    unsetenv("SLURM_JOB_END_TIME");
}

}  // namespace
}  // namespace rz
