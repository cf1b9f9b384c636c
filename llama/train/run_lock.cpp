#include "llama/train/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"

namespace rz {

namespace {

bool no_flock = false;

std::string host_name() {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    return host;
}

std::string first_line(const std::string& path) {
    std::string text;
    try {
        text = read_file(path);
    } catch (const Error&) {
    }
    return text.substr(0, std::min<size_t>(text.find('\n'), 300));
}

// "pid 123 on host node7 since ..." -> whether that is a dead process of this host
bool is_dead(const std::string& owner) {
    int pid = 0;
    char host[256] = {};
    if (std::sscanf(owner.c_str(), "pid %d on host %255s", &pid, host) != 2 || pid <= 0) return false;
    return host == host_name() && kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace

void RunLock::pretend_no_flock(bool b) { no_flock = b; }

RunLock::RunLock(const std::string& folder, double patience) : path_(folder + "/run.lock") {
    make_folder(folder);
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0)
        fail("--out %s: can't create files there: %s\n  choose a folder that you may write to", folder.c_str(),
             std::strerror(errno));
    try {
        if (take_flock(patience))
            sign();
        else
            take_file();
    } catch (...) {
        close(fd_);
        throw;
    }
}

bool RunLock::take_flock(double patience) {
    for (double waited = 0;; waited += 0.05) {
        if (no_flock) return false;
        if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return false;  // ENOLCK, EOPNOTSUPP, ENOSYS: no locks here
        if (waited >= patience)
            fail("--out %s: another run writes there (%s)\n  wait for it, stop it, or choose another --out",
                 parent_folder(path_).c_str(), first_line(path_).c_str());
        usleep(50000);
    }
}

// A link either appears whole, signature and all, or the name is taken.
void RunLock::take_file() {
    const std::string own = path_ + ".owner", mine = format("%s.%d", own.c_str(), int(getpid()));
    close(fd_);
    fd_ = open(mine.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    require(fd_ >= 0, "%s: can't create it: %s", mine.c_str(), std::strerror(errno));
    by_file_ = true;
    path_ = mine;
    sign();
    bool taken = false;
    int error = 0;
    for (int attempt = 0; attempt < 2 && !taken; ++attempt) {
        taken = link(mine.c_str(), own.c_str()) == 0;
        error = errno;
        if (taken || error != EEXIST || !is_dead(first_line(own))) break;
        unlink(own.c_str());
    }
    unlink(mine.c_str());
    path_ = own;
    if (taken) return;
    require(error == EEXIST, "%s: can't create it: %s", own.c_str(), std::strerror(error));
    fail("--out %s: another run writes there (%s)\n  if it is dead, delete %s", parent_folder(path_).c_str(),
         first_line(own).c_str(), own.c_str());
}

void RunLock::sign() {
    char when[64] = {};
    const time_t now = time(nullptr);
    tm parts{};
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
    const std::string text = format("pid %d on host %s since %s\n", int(getpid()), host_name().c_str(), when);
    const std::string folder = parent_folder(path_);
    if (ftruncate(fd_, 0) == 0 && pwrite(fd_, text.data(), text.size(), 0) == ssize_t(text.size())) return;
    // A full disk now means a full disk at the first checkpoint.
    fail("--out %s: can't write there: %s\n  free some space or choose another folder", folder.c_str(),
         std::strerror(errno));
}

RunLock::~RunLock() {
    if (fd_ < 0) return;
    // The flock file stays: who has opened it already must find the same file.
    if (by_file_)
        unlink(path_.c_str());
    else if (ftruncate(fd_, 0) != 0)
        std::perror(path_.c_str());
    close(fd_);
}

}  // namespace rz
