#pragma once
// train_llama --ranks N: this process starts itself N times on this machine, and ends with them.

#include <cstdint>
#include <optional>

namespace rz {

class Process;

// Starts the ranks, passes signals on to them and waits. None: it is one of several already. Where one
// fails the others are ended, and its exit code is this process's: that of its error; of a rank that a signal has
// killed the signal's number, as mpirun's. The ranks end with this process, however that ends. Before anything has made
// a thread.
// max_restarts: after a signal, an error (70) or a deadline (71) ranks start again, so often at most; they find
// RINGZERO_RESTART in their environment (restart.h). Ranks that can keep their process do (await_restart()): those that
// do not say so within five seconds of the last sign of another are killed, and the others start. So are ranks that
// have all been stopped for longer than `timeout_s`, of which none can notice it.
std::optional<int> run_ranks(int ranks, int64_t max_restarts, double timeout_s, char** argv);

// A rank that ends its part of the job for another's sake: from here on it has five seconds to come to await_restart().
void announce_restart(int starter);

// A rank that has given its connections up: tells the process that started it, waits until the others are there or
// about to be, and finds the new job in its environment. `starter`: Launch's. Ends the program where nobody answers.
void await_restart(int starter);

// Refuses --ranks in a process that another launcher has started with another number.
void check_ranks(int64_t ranks, const Process&);

}  // namespace rz
