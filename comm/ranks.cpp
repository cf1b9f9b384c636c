#include "comm/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "comm/exit_codes.h"
#include "comm/launch.h"
#include "comm/mpi_transport.h"
#include "comm/process.h"
#include "comm/restart.h"
#include "comm/tcp_net.h"
#include "comm/tcp_proof.h"
#include "kernels/runtime/request.h"

namespace rz {

namespace {

using Clock = std::chrono::steady_clock;

// Those that are the ranks' to act on. Children have a process group of their own, so Ctrl-C reaches this process only.
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT, SIGCONT};

std::string own_path() {
    char path[4096] = {};
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    return n > 0 && access(path, X_OK) == 0 ? path : "/proc/self/exe";  // a new build may have taken its place
}

std::string hex(const Nonce& bytes, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += format("%02x", bytes[i]);
    return text;
}

// In the child: becomes the rank. Only calls that are safe after fork(); the words are this program's last.
[[noreturn]] void become_rank(pid_t parent, const sigset_t& mask, const char* path, char** argv, char** environment) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kExitError);  // it has died before that was known
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO), close(nothing);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    execve(path, argv, environment);
    constexpr char kText[] = "train_llama: --ranks: the program could not be started again\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(kExitError);
    _exit(kExitError);
}

// One start of them after the other.
class Ranks {
   public:
    Ranks(int n, char** argv) : pids_(size_t(n), -1), argv_(argv) {
        sigemptyset(&ours_);
        for (const int s : kPassedOn) sigaddset(&ours_, s);
        for (const int s : {SIGCHLD, SIGTSTP}) sigaddset(&ours_, s);
        sigprocmask(SIG_BLOCK, &ours_, &before_);
    }
    ~Ranks() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

    // restart_folder: "" if nobody starts them again.
    void start(const std::string& restart_folder) {
        const int n = int(pids_.size());
        code_ = 0, ending_ = killed_ = false;
        int port = 0;
        const int listening = listen_on_loopback(&port);
        const std::string token = hex(random_nonce(), 16), path = own_path();
        for (int r = 0; r < n; ++r) {
            std::vector<std::string> texts = {"RINGZERO_RANK=" + std::to_string(r),
                                              "RINGZERO_RANKS=" + std::to_string(n),
                                              "RINGZERO_PORT=" + std::to_string(port),
                                              "RINGZERO_TOKEN=" + token,
                                              "RINGZERO_LISTENING=" + std::to_string(listening),
                                              std::string(kRestartVariable) + "=" + restart_folder};
            for (char** e = environ; *e; ++e)
                if (std::strncmp(*e, "RINGZERO_", 9) != 0 && std::strncmp(*e, "PMI_", 4) != 0) texts.emplace_back(*e);
            std::vector<char*> all;
            for (std::string& text : texts) all.push_back(text.data());
            all.push_back(nullptr);
            const pid_t self = getpid(), pid = fork();
            if (pid == 0) {
                if (r > 0) close(listening);
                become_rank(self, before_, path.c_str(), argv_, all.data());
            }
            if (pid < 0) {
                const int error = errno;
                kill_all(SIGKILL);
                fail("--ranks %d: process %d could not be started: %s", n, r, std::strerror(error));
            }
            setpgid(pid, pid);  // whoever comes first
            pids_[size_t(r)] = pid;
        }
        close(listening);
    }

    int wait() {
        while (running() > 0) {
            const timespec soon = {0, 20'000'000};
            siginfo_t info;
            const int s = ending_ ? sigtimedwait(&ours_, &info, &soon) : sigwaitinfo(&ours_, &info);
            if (s > 0 && s != SIGCHLD) pass_on(s);
            reap();
            if (ending_ && Clock::now() >= end_at_) kill_all(SIGKILL);
        }
        return code_;
    }

    // True: the last start ended as another may not: by a signal, an error or a rank that does not answer. False if
    // this job was asked to stop.
    bool may_start_again() {
        const timespec now = {};
        for (int s; (s = sigtimedwait(&ours_, nullptr, &now)) > 0;) note(s);
        return !asked_to_stop_ && (killed_ || code_ == kExitError || code_ == kExitDeadline);
    }

   private:
    void note(int signal) {
        for (const int s : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGQUIT}) asked_to_stop_ |= signal == s;
    }
    int64_t running() const {
        return std::count_if(pids_.begin(), pids_.end(), [](pid_t p) { return p > 0; });
    }
    // A rank may have a shell of its own for a moment, in another group: that gets its signals from the rank.
    void kill_all(int signal) {
        for (const pid_t pid : pids_)
            if (pid > 0) kill(pid, signal);
    }
    void pass_on(int signal) {
        note(signal);
        if (signal != SIGTSTP) return kill_all(signal);
        kill_all(SIGSTOP);  // Ctrl-Z stops the job; what continues this process continues it
        raise(SIGSTOP);
        kill_all(SIGCONT);
    }
    void reap() {
        for (size_t r = 0; r < pids_.size(); ++r) {
            int status = 0;
            if (pids_[r] <= 0 || waitpid(pids_[r], &status, WNOHANG) != pids_[r]) continue;
            pids_[r] = -1;
            const bool killed = WIFSIGNALED(status);
            const int code = killed ? WTERMSIG(status) : WEXITSTATUS(status);
            if (code == 0 || ending_) continue;
            code_ = code;
            ending_ = true, killed_ = killed;
            // An error or a refusal ends a rank in the middle; with other codes all end, each by itself.
            const bool in_the_middle = code == kExitError || code == kExitDeadline || code == kExitRequest;
            end_at_ = Clock::now() + std::chrono::milliseconds(killed ? 0 : in_the_middle ? 200 : 2000);
            if (killed)
                std::fprintf(stderr,
                             "train_llama: rank %zu of %zu was killed by signal %d (%s); the others are ended\n", r,
                             pids_.size(), code, strsignal(code));
        }
    }

    std::vector<pid_t> pids_;
    sigset_t ours_, before_;
    char** argv_;
    bool ending_ = false, killed_ = false, asked_to_stop_ = false;
    int code_ = 0;
    Clock::time_point end_at_;
};

}  // namespace

std::optional<int> run_ranks(int ranks, int64_t max_restarts, char** argv) {
    const Launch launch = find_launch(environment, mpi_library());
    if (launch.size > 1) return {};
    require_request(built_with_proofs(),
                    "--ranks %d: this program was built without OpenSSL's libcrypto, by which ranks prove to each "
                    "other that they belong to the job\n"
                    "  nearest: mpirun -n %d; or apt-get install libssl-dev, make reconfigure and make",
                    ranks, ranks);
    Ranks job(ranks, argv);  // its signals stay blocked until the folder is gone
    std::optional<RestartFolder> folder;
    if (max_restarts > 0) folder.emplace();
    for (int64_t restarts = 0;; ++restarts) {
        job.start(folder ? folder->path() : restart_folder());
        const int code = job.wait();
        if (!folder || code == 0 || !job.may_start_again() || !folder->has_begun()) return code;
        if (restarts == max_restarts) {
            std::fprintf(stderr, "train_llama: the last of %lld restarts has failed (--max-restarts)\n",
                         (long long)max_restarts);
            return code;
        }
        std::fprintf(stderr, "train_llama: ended with %d; all %d ranks start again (restart %lld of at most %lld)\n",
                     code, ranks, (long long)restarts + 1, (long long)max_restarts);
    }
}

void check_ranks(int64_t ranks, const Process& process) {
    require_request(ranks <= 1 || ranks == process.size(),
                    "--ranks %lld in one of %d processes that %s has started\n  nearest: --ranks %d, or leave it out",
                    (long long)ranks, process.size(), process.started_by().c_str(), process.size());
}

}  // namespace rz
