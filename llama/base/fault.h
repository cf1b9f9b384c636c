#pragma once
// Faults on request, to prove that a run survives them. They are a rank's, and happen in the threads that work for it:
// those with a FaultScope. Elsewhere a point costs one load.
//
//   FAULT=point[:rank][:nth][:action][,...]
//
//   point    one of the table in fault.cpp
//   rank     the one rank that fails; * (default): every rank
//   nth      which time that a rank passes it, from 1 (default); 3+: the third and every later time; *: always
//   action   kill (default), stop, term, usr1, int   a signal to this process: SIGKILL, SIGSTOP, ...
//            sleep=SECONDS                           waits
//            error                                   throws
//            eio, enospc, efbig, eacces, estale      the system call at this point fails so, without being made
//            nan, inf, flip, spike                   a number at this point goes bad
//
//   FAULT=checkpoint.rename:1:2:kill     rank 1 dies before its second rename

#include <signal.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rz {

enum class FaultAction { none, signal, sleep, error, system_call, nan, inf, flip, spike };

struct FaultSpec {
    std::string point;
    int rank = -1;                // -1: every rank
    int64_t first = 1, last = 1;  // hits at which it happens
    FaultAction action = FaultAction::signal;
    int number = SIGKILL;  // of the signal, or the errno
    double seconds = 0;    // of sleep
};

// Throws naming the part that can't be read; an unknown point or action is answered with the nearest.
std::vector<FaultSpec> parse_faults(const std::string& text);

namespace detail {
class FaultState;
inline constinit thread_local FaultState* faults = nullptr;
FaultAction fault_hit(const char* point);
int fault_errno_hit(const char* point);
}  // namespace detail

// The faults of one rank, and how often it has passed each point. Copies share them.
class Faults {
   public:
    Faults() = default;                         // none
    explicit Faults(int rank);                  // as the environment's FAULT says
    Faults(int rank, const std::string& text);  // as `text` says
    static Faults here();                       // of the calling thread, for a thread that it starts

   private:
    friend class FaultScope;
    std::shared_ptr<detail::FaultState> state_;
};

// While it lives, these faults happen in the thread that made it, in place of those before.
class FaultScope {
   public:
    explicit FaultScope(Faults faults);
    ~FaultScope();
    FaultScope(const FaultScope&) = delete;
    FaultScope& operator=(const FaultScope&) = delete;

   private:
    Faults faults_;
    detail::FaultState* before_;
};

// Passes a point. Signals, sleep and error happen here; what only the caller can do is returned (nan, inf, flip,
// spike).
inline FaultAction fault_point(const char* point) {
    return detail::faults ? detail::fault_hit(point) : FaultAction::none;
}

// Passes a point that stands before a system call: 0, or the error number with which the call is to fail unmade.
//
//   if ((errno = fault_errno("file.fsync")) != 0 || fsync(fd) != 0) fail_errno(...);
inline int fault_errno(const char* point) { return detail::faults ? detail::fault_errno_hit(point) : 0; }

}  // namespace rz
