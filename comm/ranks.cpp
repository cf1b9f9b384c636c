#include "comm/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/deadline.h"
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

// Those that this process waits for; what was blocked before is for its children.
class SignalsBlocked {
   public:
    SignalsBlocked() {
        const sigset_t all = ours();
        sigprocmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    const sigset_t& before() const { return before_; }
    static sigset_t ours() {
        sigset_t all;
        sigemptyset(&all);
        for (const int s : kPassedOn) sigaddset(&all, s);
        for (const int s : {SIGCHLD, SIGTSTP}) sigaddset(&all, s);
        return all;
    }

   private:
    sigset_t before_;
};

// In the child: becomes the rank. Only calls that are safe after fork(); the words are this program's last.
[[noreturn]] void become_rank(pid_t parent, int starter, const sigset_t& mask, const char* path, char** argv,
                              char** environment) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kExitError);  // it has died before that was known
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO), close(nothing);
    if (starter >= 0) fcntl(starter, F_SETFD, 0);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    execve(path, argv, environment);
    constexpr char kText[] = "train_llama: --ranks: the program could not be started again\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(kExitError);
    _exit(kExitError);
}

constexpr auto kToRejoin = std::chrono::seconds(5);  // from the last sign of a rank: each gives two
constexpr char kGivesUp = 'g', kWaits = 'w';         // what a rank says

class Ranks {
   public:
    // folder: nullptr where ranks do not start again.
    Ranks(int n, char** argv, const sigset_t& mask, const RestartFolder* folder, int64_t max_restarts, double timeout_s)
        : ranks_(size_t(n)),
          argv_(argv),
          mask_(mask),
          folder_(folder),
          max_restarts_(max_restarts),
          timeout_s_(timeout_s) {
        listening_ = listen_on_loopback(&port_);
        for (int r = 0; r < n; ++r) start(size_t(r));
        if (!folder_) shut(std::exchange(listening_, -1));
    }
    ~Ranks() {
        for (const Rank& rank : ranks_) shut(rank.line);
        shut(listening_);
    }

    int wait() {
        while (running() > 0 || gathers_) {
            const timespec soon = {0, ending_ || gathers_ ? 20'000'000 : 100'000'000};
            siginfo_t info;
            const int s = ending_ || folder_ ? sigtimedwait(&ours_, &info, &soon) : sigwaitinfo(&ours_, &info);
            if (s > 0 && s != SIGCHLD) pass_on(s);
            reap();
            if (folder_ && !ending_) gather();
            if (ending_ && Clock::now() >= end_at_) kill_all(SIGKILL);
        }
        return code_;
    }

   private:
    struct Rank {
        pid_t pid = -1;
        int line = -1;       // to it, where ranks start again
        bool waits = false;  // it has given up its connections, and waits for the new job
        bool stopped = false;
    };

    static void shut(int fd) {
        if (fd >= 0) close(fd);
    }

    void start(size_t r) {
        Rank& rank = ranks_[r];
        shut(std::exchange(rank.line, -1));
        int line[2] = {-1, -1};
        if (folder_ && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line) != 0) fail_to_start(r);
        rank.line = line[0];
        std::vector<std::string> texts = {
            "RINGZERO_RANK=" + std::to_string(r),
            "RINGZERO_RANKS=" + std::to_string(ranks_.size()),
            "RINGZERO_PORT=" + std::to_string(port_),
            "RINGZERO_TOKEN=" + token_,
            "RINGZERO_EPOCH=" + std::to_string(restarts_),
            "RINGZERO_LISTENING=" + std::to_string(listening_),
            format("%s=%s", kRestartVariable, (folder_ ? folder_->path() : restart_folder()).c_str())};
        if (folder_) texts.push_back("RINGZERO_STARTER=" + std::to_string(line[1]));
        for (char** e = environ; *e; ++e)
            if (std::strncmp(*e, "RINGZERO_", 9) != 0 && std::strncmp(*e, "PMI_", 4) != 0) texts.emplace_back(*e);
        std::vector<char*> all;
        for (std::string& text : texts) all.push_back(text.data());
        all.push_back(nullptr);
        const pid_t self = getpid(), pid = fork();
        if (pid == 0) {
            if (r > 0) close(listening_);
            become_rank(self, line[1], mask_, path_.c_str(), argv_, all.data());
        }
        const int error = errno;
        shut(line[1]);
        if (pid < 0) errno = error, fail_to_start(r);
        setpgid(pid, pid);  // whoever comes first
        rank.pid = pid;
    }
    [[noreturn]] void fail_to_start(size_t r) {
        const int error = errno;
        kill_all(SIGKILL);
        fail("--ranks %zu: process %zu could not be started: %s", ranks_.size(), r, std::strerror(error));
    }

    void note(int signal) {
        for (const int s : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGQUIT}) asked_to_stop_ |= signal == s;
    }
    int64_t running() const {
        return std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.pid > 0; });
    }
    // A rank may have a shell of its own for a moment, in another group: that gets its signals from the rank.
    void kill_all(int signal) {
        for (const Rank& r : ranks_)
            if (r.pid > 0) kill(r.pid, signal);
    }
    void pass_on(int signal) {
        note(signal);
        if (signal != SIGTSTP) return kill_all(signal);
        kill_all(SIGSTOP);  // Ctrl-Z stops the job; what continues this process continues it
        raise(SIGSTOP);
        kill_all(SIGCONT);
    }
    void end(int code, std::chrono::milliseconds soon) {
        code_ = code;
        ending_ = true, gathers_ = false;
        end_at_ = Clock::now() + soon;
    }
    // True: ranks start again after this end of one: by a signal, an error or a rank that does not answer, unless
    // this job was asked to stop, or has not begun.
    bool may_start_again(int code, bool killed) {
        const timespec now = {};
        for (int s; (s = sigtimedwait(&ours_, nullptr, &now)) > 0;)
            if (s != SIGCHLD) pass_on(s);
        return folder_ && !asked_to_stop_ && (killed || code == kExitError || code == kExitDeadline) &&
               folder_->has_begun();
    }
    void reap() {
        for (size_t r = 0; r < ranks_.size(); ++r) {
            int status = 0;
            Rank& rank = ranks_[r];
            if (rank.pid <= 0 || waitpid(rank.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != rank.pid) continue;
            rank.stopped = WIFSTOPPED(status);
            if (rank.stopped || WIFCONTINUED(status)) continue;
            rank.pid = -1, rank.waits = false;
            const bool killed = WIFSIGNALED(status);
            const int code = killed ? WTERMSIG(status) : WEXITSTATUS(status);
            if (code == 0 || ending_) continue;
            const bool again = may_start_again(code, killed);
            if (killed && !(gathers_ && code == SIGKILL))
                std::fprintf(stderr, "train_llama: rank %zu of %zu was killed by signal %d (%s)%s\n", r, ranks_.size(),
                             code, strsignal(code), again ? "" : "; the others are ended");
            if (again) {
                begin_gathering(code);
            } else {
                // An error or a refusal ends a rank in the middle; with other codes all end, each by itself.
                const bool in_the_middle = code == kExitError || code == kExitDeadline || code == kExitRequest;
                end(code, std::chrono::milliseconds(killed ? 0 : in_the_middle ? 200 : 2000));
            }
        }
    }
    void begin_gathering(int code) {
        if (gathers_) return;
        code_ = code, gathers_ = true;
        gather_until_ = Clock::now() + kToRejoin;
    }
    void look_for_a_stopped_job() {
        const bool moves =
            std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.pid > 0 && !r.stopped; });
        if (moves || running() == 0) return stopped_.restart();
        if (gathers_ || stopped_.look() < timeout_s_) return;
        std::fprintf(stderr, "train_llama: all ranks have been stopped for %.1f s (the deadline)\n", stopped_.look());
        begin_gathering(kExitDeadline);
    }
    // Those that live wait for the new job, or are killed; then the dead start.
    void gather() {
        look_for_a_stopped_job();
        for (Rank& rank : ranks_) {
            char byte;
            if (rank.pid <= 0 || rank.waits || recv(rank.line, &byte, 1, MSG_DONTWAIT) != 1) continue;
            rank.waits = byte == kWaits;
            begin_gathering(kExitDeadline);
            gather_until_ = Clock::now() + kToRejoin;  // on a busy machine ranks come one after the other
        }
        if (!gathers_) return;
        if (asked_to_stop_) return end(code_, {});
        const bool late = Clock::now() >= gather_until_;
        bool all = true;
        int64_t stay = 0;
        for (const Rank& rank : ranks_) {
            stay += rank.waits;
            if (rank.pid <= 0 || rank.waits) continue;
            all = false;
            if (late) kill(rank.pid, SIGKILL);
        }
        if (!all) return;
        if (restarts_ == max_restarts_) {
            std::fprintf(stderr, "train_llama: the last of %lld restarts has failed (--max-restarts)\n",
                         (long long)max_restarts_);
            return end(code_, {});
        }
        ++restarts_;
        std::fprintf(
            stderr, "train_llama: ended with %d; ranks that start again: %zu of %zu (restart %lld of at most %lld)\n",
            code_, ranks_.size() - size_t(stay), ranks_.size(), (long long)restarts_, (long long)max_restarts_);
        gathers_ = false, code_ = 0;
        for (Rank& rank : ranks_)
            if (std::exchange(rank.waits, false)) {
                const int64_t epoch = restarts_;
                if (send(rank.line, &epoch, sizeof epoch, MSG_NOSIGNAL) < 0) kill(rank.pid, SIGKILL);
            }
        for (size_t r = 0; r < ranks_.size(); ++r)
            if (ranks_[r].pid <= 0) start(r);
    }

    std::vector<Rank> ranks_;
    char** argv_;
    const sigset_t& mask_;  // of the ranks
    const sigset_t ours_ = SignalsBlocked::ours();
    const RestartFolder* folder_;
    int64_t max_restarts_, restarts_ = 0;
    double timeout_s_;
    WaitClock stopped_;              // since the last rank was
    int port_ = 0, listening_ = -1;  // rank 0's, which may be started again
    const std::string token_ = hex(random_nonce(), 16), path_ = own_path();
    bool ending_ = false, gathers_ = false, asked_to_stop_ = false;
    int code_ = 0;
    Clock::time_point end_at_, gather_until_;
};

}  // namespace

void announce_restart(int starter) {
    if (send(starter, &kGivesUp, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return;  // it has heard that already
}

void await_restart(int starter) {
    int64_t epoch = 0;
    if (send(starter, &kWaits, 1, MSG_NOSIGNAL) != 1) _exit(kExitError);
    for (size_t got = 0; got < sizeof epoch;) {
        const ssize_t n = recv(starter, reinterpret_cast<char*>(&epoch) + got, sizeof epoch - got, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(kExitError);
        got += size_t(n);
    }
    setenv("RINGZERO_EPOCH", std::to_string(epoch).c_str(), 1);
}

std::optional<int> run_ranks(int ranks, int64_t max_restarts, double timeout_s, char** argv) {
    const Launch launch = find_launch(environment, mpi_library());
    if (launch.size > 1) return {};
    require_request(built_with_proofs(),
                    "--ranks %d: this program was built without OpenSSL's libcrypto, by which ranks prove to each "
                    "other that they belong to the job\n"
                    "  nearest: mpirun -n %d; or apt-get install libssl-dev, make reconfigure and make",
                    ranks, ranks);
    const SignalsBlocked blocked;  // until the folder is gone
    std::optional<RestartFolder> folder;
    if (max_restarts > 0) folder.emplace();
    return Ranks(ranks, argv, blocked.before(), folder ? &*folder : nullptr, max_restarts, timeout_s).wait();
}

void check_ranks(int64_t ranks, const Process& process) {
    require_request(ranks <= 1 || ranks == process.size(),
                    "--ranks %lld in one of %d processes that %s has started\n  nearest: --ranks %d, or leave it out",
                    (long long)ranks, process.size(), process.started_by().c_str(), process.size());
}

}  // namespace rz
