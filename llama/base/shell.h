#pragma once
// Commands of the user, run by /bin/sh.

#include <functional>
#include <string>
#include <vector>

namespace rz {

struct ShellCommand {
    std::string text;                      // for sh -c
    std::vector<std::string> environment;  // "NAME=value", beside this process's own
    double seconds = 3600;                 // after which it is ended
};

// Runs it in a process group of its own, with standard input empty, and waits. Returns "" if it ended with 0, else how
// it ended. What a launcher told this rank is left out of its environment, so that it may start programs of its own.
// gives_up() is asked about ten times a second; once it says yes, the command is ended. Never throws.
std::string run_shell(const ShellCommand&, const std::function<bool()>& gives_up = nullptr);

}  // namespace rz
