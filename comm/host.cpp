#include "comm/host.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

namespace rz {

std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

bool launched_with_others() {
    // Variables of --ranks, MPICH and its kin, Open MPI, torchrun, srun
    for (const char* size :
         {"RINGZERO_RANKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"})
        if (const char* value = std::getenv(size)) return std::atoi(value) > 1;
    return false;
}

bool first_to_say(const std::string& text) {
    // A name among sockets belongs to one process, and goes with it: no file stays behind, and none can be in the way.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "ringzero-%d-%d-%zx",
                                     int(getuid()), int(getppid()), std::hash<std::string>()(text));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return true;
    const socklen_t size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size_t(length));
    return bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 || errno != EADDRINUSE;  // fd stays open
}

void ask_for_short_slices() {
    thread_local bool asked = false;
    if (std::exchange(asked, true)) return;
#ifdef SYS_sched_setattr
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr{};
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != SCHED_OTHER) return;
    attr.size = sizeof attr;
    attr.runtime = 100'000;  // ns, the least there is
    syscall(SYS_sched_setattr, 0, &attr, 0);
#endif
}

void say_once(const std::string& text) {
    if (launched_with_others() && !first_to_say(text)) return;
    std::fputs(text.c_str(), stderr);
    // The others must find this process there.
    if (launched_with_others()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace rz
