#pragma once
// Faults on request, to prove that a run survives them. Nothing happens, at the cost of one load, unless the
// environment has FAULT.
//
//   FAULT=point[:rank][:nth][:action][,...]
//
//   point    one of the table in fault.cpp
//   rank     the one rank that fails; * (default): every rank
//   nth      the how manieth time that a rank comes by, from 1 (default); 3+: the third and every later time; *: always
//   action   kill (default), stop, term, usr1, int   a signal to the own process: SIGKILL, SIGSTOP, ...
//            sleep=SECONDS                           waits
//            error                                   throws
//            eio, enospc, efbig, eacces, estale      the system call at this point fails so, without being made
//            nan, inf, flip, spike                   a number at this point goes bad
//
//   FAULT=checkpoint.rename:1:2:kill     rank 1 dies before its second rename

#include <cstdint>
#include <string>
#include <vector>

namespace rz {

enum class FaultAction {
    none,
    kill,
    stop,
    term,
    usr1,
    interrupt,
    sleep,
    error,
    eio,
    enospc,
    efbig,
    eacces,
    estale,
    nan,
    inf,
    flip,
    spike
};

struct FaultSpec {
    std::string point;
    int rank = -1;                // -1: every rank
    int64_t first = 1, last = 1;  // hits at which it happens
    FaultAction action = FaultAction::kill;
    double seconds = 0;  // of sleep
};

// Throws naming the part that can't be read; an unknown point or action is answered with the nearest.
std::vector<FaultSpec> parse_faults(const std::string& text);

// The points and what happens there, one line each.
std::string fault_table();

namespace detail {
extern bool faults_armed;
FaultAction fault_hit(const char* point);
int fault_errno_hit(const char* point);
}  // namespace detail

// Reads FAULT. Before this call no fault happens; ranks that it does not name never get one.
void arm_faults(int rank);
// The same from text; "" disarms.
void arm_faults(int rank, const std::string& text);

// Passes a point. Signals, sleep and error happen here; what only the caller can do is returned (nan, inf, flip,
// spike).
inline FaultAction fault_point(const char* point) {
    return detail::faults_armed ? detail::fault_hit(point) : FaultAction::none;
}

// Passes a point that stands before a system call: 0, or the error number with which the call is to fail unmade.
//
//   if ((errno = fault_errno("file.fsync")) != 0 || fsync(fd) != 0) fail_errno(...);
inline int fault_errno(const char* point) { return detail::faults_armed ? detail::fault_errno_hit(point) : 0; }

}  // namespace rz
