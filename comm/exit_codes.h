#pragma once
// The exit codes of train_llama: the one list. --help, the man page and the tests read it; dev/guide/failures.md is
// compared with it. mpirun's own code for a rank that was killed varies (9, 11, 255, even 0), so a supervisor trusts
// what the program wrote about itself (run_status.json) before them.

#include <exception>

namespace rz {

enum ExitCode : int {
    kExitSuccess = 0,
    kExitRequest = 2,
    kExitTooLarge = 3,
    kExitError = 70,
    kExitDeadline = 71,
    kExitNumbers = 72,
    kExitReplicas = 73,
    kExitRequeue = 75,
    kExitInterrupted = 130,
};

struct ExitMeaning {
    ExitCode code;
    const char* meaning;
};

constexpr ExitMeaning kExitMeanings[] = {
    {kExitSuccess, "finished"},
    {kExitRequest, "the command line is wrong: a flag, or what flags ask of this model, these data or these ranks"},
    {kExitTooLarge, "train_llama plan: the run does not fit"},
    {kExitError, "an error; the message names rank and cause"},
    {kExitDeadline, "a rank hung or was stopped: the others name it"},
    {kExitNumbers, "the numbers are bad: steps in a row or the state not finite, or a spike"},
    {kExitReplicas,
     "ranks that must hold the same parameters do not, a step computed twice has other bits, or a message's changed"},
    {kExitRequeue, "stopped on request, saved: start again with --resume auto"},
    {kExitInterrupted, "a second Ctrl-C: ended without saving"},
};

// Exit code for an error that ends the program.
ExitCode exit_code_of(const std::exception& error);

}  // namespace rz
