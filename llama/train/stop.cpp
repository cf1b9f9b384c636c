#include "llama/train/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "comm/exit_codes.h"
#include "kernels/runtime/check.h"
#include "llama/base/clock.h"

namespace rz {

namespace {

std::atomic<int32_t> asked = 0;           // StopCause
std::atomic<int64_t> interrupted_ms = 0;  // when the first SIGINT came
static_assert(std::atomic<int32_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t now_ms() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000 + t.tv_nsec / 1000000;
}

void say(const char* text) {
    if (write(2, text, std::strlen(text)) < 0) return;  // the terminal is gone
}

void take(StopCause cause) {
    int32_t none = 0;
    asked.compare_exchange_strong(none, int32_t(cause));
}

void handle(int signal) {
    if (signal == SIGTERM) take(StopCause::terminate);
    if (signal == SIGUSR1) take(StopCause::usr1);
    if (signal == SIGHUP) take(StopCause::hangup);
    if (signal != SIGINT) return;
    take(StopCause::interrupt);
    int64_t first = 0;
    const int64_t now = now_ms();
    if (interrupted_ms.compare_exchange_strong(first, now)) return;
    if (now - first < 300) return;
    say("interrupted twice: ends without saving; the last checkpoint is whole\n");
    _exit(kExitInterrupted);
}

}  // namespace

void install_stop_signals() {
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int s : {SIGTERM, SIGUSR1, SIGINT}) sigaction(s, &action, nullptr);
    struct sigaction before {};
    if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
    action.sa_handler = SIG_IGN;
    for (int s : {SIGXFSZ, SIGPIPE}) sigaction(s, &action, nullptr);
}

StopCause stop_signal() { return StopCause(asked.load()); }

void forget_stop_signal() {
    asked = 0;
    interrupted_ms = 0;
}

std::string describe_stop(StopCause cause, int rank) {
    const bool is_signal = cause != StopCause::none && cause != StopCause::time_limit;
    return name_of(cause) + (is_signal ? format(" on rank %d", rank) : "");
}

TimeLimit::TimeLimit(double seconds, double started, double wall) {
    if (seconds > 0) end_ = started + seconds;
    if (const char* slurm = std::getenv("SLURM_JOB_END_TIME")) {
        const double at = std::strtod(slurm, nullptr), end = started + (at - wall);
        if (at > 0 && (end_ == 0 || end < end_)) end_ = end;
    }
}

bool TimeLimit::reached(double save_seconds, double step_seconds, double now) const {
    return end_ != 0 && now + step_seconds + 2 * save_seconds >= end_;
}

bool TimeLimit::reached(double save_seconds, double step_seconds) const {
    return reached(save_seconds, step_seconds, monotonic_clock());
}

}  // namespace rz
