#include "llama/base/shell.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/runtime/check.h"
#include "llama/base/clock.h"

namespace rz {

namespace {

bool is_launchers(const std::string& variable) {
    for (const char* prefix : {"PMI_", "PMIX_", "PMI2_", "OMPI_", "MPI_", "MPIR_", "HYDI_", "HYDRA_", "MV2_", "PRTE_",
                               "RINGZERO_", "RANK=", "WORLD_SIZE=", "SLURM_PROCID="})
        if (variable.rfind(prefix, 0) == 0) return true;
    return false;
}

std::vector<std::string> environment_of(const ShellCommand& c) {
    std::vector<std::string> all = c.environment;
    for (char** e = environ; *e; ++e)
        if (!is_launchers(*e)) all.emplace_back(*e);
    return all;
}

struct SpawnSettings {
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    SpawnSettings() {
        posix_spawnattr_init(&attributes);
        posix_spawn_file_actions_init(&files);
        sigset_t none, all;
        sigemptyset(&none);
        sigfillset(&all);
        // Signals that this program handles or ignores are the command's own again; Ctrl-C at a terminal is not its.
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setsigdefault(&attributes, &all);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        // The launcher's pipes and sockets: what the command leaves running would hold them, and the launcher waits.
        posix_spawn_file_actions_addclosefrom_np(&files, 3);
    }
    ~SpawnSettings() {
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
    }
};

std::string describe(int status) {
    if (WIFSIGNALED(status))
        return format("was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) != 0) return format("ended with exit code %d", WEXITSTATUS(status));
    return "";
}

// SIGTERM, and SIGKILL to what is left two seconds later.
void end_group(pid_t leader) {
    kill(-leader, SIGTERM);
    for (int tenths = 0; tenths < 20 && waitpid(leader, nullptr, WNOHANG) == 0; ++tenths) usleep(100000);
    kill(-leader, SIGKILL);
    while (waitpid(leader, nullptr, 0) < 0 && errno == EINTR) {
    }
}

std::string run(const ShellCommand& c, const std::function<bool()>& gives_up) {
    std::vector<std::string> environment = environment_of(c);
    std::vector<char*> variables;
    for (std::string& e : environment) variables.push_back(e.data());
    variables.push_back(nullptr);
    std::string shell = "sh", flag = "-c", text = c.text;
    char* arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
    const SpawnSettings settings;
    pid_t child = 0;
    if (const int error =
            posix_spawn(&child, "/bin/sh", &settings.files, &settings.attributes, arguments, variables.data());
        error != 0)
        return format("/bin/sh could not be started: %s", std::strerror(error));
    for (const double began = monotonic_clock();;) {
        int status = 0;
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return describe(status);
        if (ended < 0 && errno != EINTR) return format("can't be waited for: %s", std::strerror(errno));
        const bool late = monotonic_clock() - began > c.seconds;
        if (late || (gives_up && gives_up())) {
            end_group(child);
            return late ? format("took more than %.0f s and was ended", c.seconds) : "was ended with the run";
        }
        usleep(monotonic_clock() - began < 1 ? 5000 : 100000);
    }
}

}  // namespace

std::string run_shell(const ShellCommand& c, const std::function<bool()>& gives_up) {
    try {
        return run(c, gives_up);
    } catch (const std::exception& error) {  // out of memory
        return error.what();
    }
}

}  // namespace rz
