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

#include "comm/host.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"

namespace rz {

namespace {

bool no_flock = false;

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
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == ELOOP) fail("%s: is a link, and a lock may not be one: remove it", path_.c_str());
    if (fd_ < 0)
        fail("folder %s (--out): can't create files there: %s\n  choose a folder that you may write to", folder.c_str(),
             std::strerror(errno));
    try {
        if (take_flock(patience))
            sign();
        else
            take_file();
    } catch (...) {
        if (fd_ >= 0) close(fd_);
        throw;
    }
}

void RunLock::refuse(const std::string& owner, const std::string& remedy) const {
    fail("folder %s (--out): another run writes there (%s)\n  %s", parent_folder(path_).c_str(), owner.c_str(),
         remedy.c_str());
}

bool RunLock::take_flock(double patience) {
    for (double waited = 0;; waited += 0.05) {
        if (no_flock) return false;
        if (flock(fd_, LOCK_EX | LOCK_NB) == 0) break;
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return false;  // ENOLCK, EOPNOTSUPP, ENOSYS: no locks here
        if (waited >= patience) refuse(first_line(path_), "wait for it, stop it, or choose another --out");
        usleep(50000);
    }
    // The file may have been removed while its lock was waited for.
    struct stat mine, there;
    if (fstat(fd_, &mine) != 0 || lstat(path_.c_str(), &there) != 0 || mine.st_ino != there.st_ino)
        fail("%s: was removed while it was being locked: start again", path_.c_str());
    // A host that mounts this folder without locks.
    const std::string other = path_ + ".owner", owner = first_line(other);
    if (!owner.empty() && !is_dead(owner)) refuse(owner, "if it is dead, delete " + other);
    if (!owner.empty()) unlink(other.c_str());
    return true;
}

// Looking for a dead owner, removing its file and linking this process's must not mix with another process of this host
// that does the same (a dead owner is one of this host), so they happen under a lock on a local file.
void RunLock::take_file() {
    if (const std::string owner = first_line(path_); !owner.empty() && !is_dead(owner))
        refuse(owner, "if it is dead, delete " + path_);  // by flock, on a host that has it
    const std::string own = path_ + ".owner", mine = format("%s.%d", own.c_str(), int(getpid()));
    close(fd_);
    unlink(mine.c_str());
    fd_ = open(mine.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    require(fd_ >= 0, "%s: can't create it: %s", mine.c_str(), std::strerror(errno));
    by_file_ = true;
    path_ = mine;
    sign();
    const std::string local = format("/tmp/ringzero-lock-%d", int(getuid()));
    const int guard = open(local.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (guard >= 0)
        while (flock(guard, LOCK_EX) != 0 && errno == EINTR) {
        }
    try {
        take_file_alone(mine, own);
    } catch (...) {
        unlink(mine.c_str());
        if (guard >= 0) close(guard);
        throw;
    }
    unlink(mine.c_str());
    if (guard >= 0) close(guard);
}

// A link either appears whole, signature and all, or the name is taken.
void RunLock::take_file_alone(const std::string& mine, const std::string& own) {
    for (int attempt = 0;; ++attempt) {
        const bool taken = link(mine.c_str(), own.c_str()) == 0;
        const int error = errno;
        path_ = own;
        if (taken) return;
        require(error == EEXIST, "%s: can't create it: %s", own.c_str(), std::strerror(error));
        const std::string owner = first_line(own);
        if (attempt > 0 || !is_dead(owner)) refuse(owner, "if it is dead, delete " + own);
        unlink(own.c_str());
    }
}

void RunLock::sign() {
    char when[64] = {};
    const time_t now = time(nullptr);
    tm parts{};
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
    const std::string text = format("pid %d on host %s since %s\n", int(getpid()), host_name().c_str(), when);
    // A full disk now means a full disk at the first checkpoint.
    if (ftruncate(fd_, 0) != 0)
        fail("folder %s (--out): can't write there: %s", parent_folder(path_).c_str(), std::strerror(errno));
    write_all(fd_, 0, text.data(), int64_t(text.size()), path_);
}

bool RunLock::held() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec == looked_) return true;
    looked_ = now.tv_sec;
    struct stat mine, there;
    if (fstat(fd_, &mine) != 0) return true;  // nothing can be said
    if (lstat(path_.c_str(), &there) == 0) return mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    if (errno != ENOENT) return true;
    const int again = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (again < 0) return errno != EEXIST;
    if (!by_file_ && !no_flock && flock(again, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(again);
        return false;
    }
    close(fd_);
    fd_ = again;
    try {
        sign();
    } catch (const Error&) {  // the lock holds without its text
    }
    return true;
}

std::string RunLock::lost() const {
    return format("%s was removed, and another run has taken the folder (%s): this one ends before both write there",
                  path_.c_str(), first_line(path_).c_str());
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
