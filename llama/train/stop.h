#pragma once
// Being asked to stop. A request on any rank travels with the numbers that the ranks exchange after every step, so all
// of them stop after the same step, save, and end with exit code 75.
//
//   SIGTERM, SIGUSR1, SIGHUP, the first SIGINT   stop after the current step
//   a further SIGINT                     ends this process at once with exit code 130; what was saved is whole
//   SIGXFSZ, SIGPIPE                     ignored: the write fails instead, and says so
//   --time-limit, SLURM_JOB_END_TIME     as a signal, early enough to save
//
// A SIGHUP that is ignored (nohup) stays ignored. MPICH's mpirun does not pass it on. SIGUSR2 is the
// flight recorder's (comm/watch.h).

#include <cstdint>
#include <string>

#include "kernels/runtime/names.h"

namespace rz {

enum class StopCause : int32_t { none = 0, terminate, usr1, interrupt, time_limit, hangup };
template <>
inline constexpr auto kNames<StopCause> = std::to_array<Named<StopCause>>({{StopCause::none, "nothing"},
                                                                           {StopCause::terminate, "SIGTERM"},
                                                                           {StopCause::usr1, "SIGUSR1"},
                                                                           {StopCause::interrupt, "SIGINT"},
                                                                           {StopCause::time_limit, "the time limit"},
                                                                           {StopCause::hangup, "SIGHUP"}});

// Installs the handlers. A second SIGINT counts only 0.3 s after the first: a terminal sends Ctrl-C to mpirun, which
// passes it on, and to the ranks.
void install_stop_signals();

// This rank's request by signal, and forgetting it (tests).
StopCause stop_signal();
void forget_stop_signal();

// "SIGTERM on rank 2", "the time limit"
std::string describe_stop(StopCause cause, int rank);

// When a run has to end. 0: no limit.
class TimeLimit {
   public:
    // `seconds` from `started` on, by monotonic_clock(); also the end of the Slurm job, if the environment has it,
    // which is a time of day: what is left until then is measured once, at `wall`. Setting the clock changes neither.
    TimeLimit(double seconds, double started, double wall);

    // True: saving has to begin after this step: the next step and twice the last save must still fit.
    bool reached(double save_seconds, double step_seconds) const;
    bool reached(double save_seconds, double step_seconds, double now) const;
    double end() const { return end_; }  // 0: none

   private:
    double end_ = 0;
};

}  // namespace rz
