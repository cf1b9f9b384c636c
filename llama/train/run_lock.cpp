#include "llama/train/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "comm/host.h"
#include "comm/placement.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"

namespace rz {

namespace {

constexpr double kBeat = 2;  // seconds
RunLock::LockTestMode pretended = RunLock::LockTestMode::nothing;

std::string first_line(const std::string& path) {
    std::string text;
    try {
        text = read_file(path);
    } catch (const Error&) {
    }
    return text.substr(0, std::min<size_t>(text.find('\n'), 600));
}

// Processes are numbered anew in each boot and in each namespace.
std::string boot_of_processes() {
    char space[64] = {};
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = 0;
    std::string id = host_id() + space;
    if (pretended == RunLock::LockTestMode::own_host) id += "-" + std::to_string(getpid());
    std::erase_if(id, [](unsigned char c) { return c <= ' ' || c == ','; });
    return id;
}

// When a process began, in ticks of this boot; -1 if there is none.
int64_t start_of(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text, field;
    std::getline(file, text);
    std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 2)));  // its name may hold anything
    rest >> field;
    if (field == "Z" || field == "X") return -1;  // ended, and not yet waited for
    for (int i = 4; i <= 22; ++i) rest >> field;
    return rest ? std::atoll(field.c_str()) : -1;
}

// "pid 123 on host node7 since ..., boot ..., start 456, beat 7"
struct Owner {
    int pid = 0;
    char host[256] = {}, boot[256] = {};
    long long start = -1, beat = -1;  // -1: it does not count
};
Owner parse(const std::string& text) {
    Owner o;
    if (std::sscanf(text.c_str(), "pid %d on host %255s", &o.pid, o.host) != 2) return {};
    const size_t at = text.find(", boot ");
    if (at == std::string::npos ||
        std::sscanf(text.c_str() + at, ", boot %255[^,], start %lld, beat %lld", o.boot, &o.start, &o.beat) != 3)
        o.boot[0] = 0, o.beat = -1;
    return o;
}

// The part of an owner's line that is for people.
std::string told(const std::string& owner) { return owner.substr(0, owner.find(", boot ")); }

enum class Life { dead, alive, unknown };
Life life_of(const Owner& o) {
    if (o.boot[0] == 0) {  // of an earlier version
        const bool here = o.pid > 0 && o.host == host_name() && pretended != RunLock::LockTestMode::own_host;
        return here && kill(o.pid, 0) != 0 && errno == ESRCH ? Life::dead : Life::alive;
    }
    if (o.boot != boot_of_processes()) return o.beat < 0 ? Life::alive : Life::unknown;
    return start_of(o.pid) == o.start ? Life::alive : Life::dead;
}

bool same_file(int fd, const std::string& path) {
    struct stat mine, there;
    return again([&] { return fstat(fd, &mine); }) == 0 && again([&] { return lstat(path.c_str(), &there); }) == 0 &&
           mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

void pause(double seconds) { usleep(useconds_t(seconds * 1e6)); }

}  // namespace

void RunLock::pretend(LockTestMode p) { pretended = p; }

RunLock::RunLock(const std::string& folder, double patience, double lease)
    : folder_(folder),
      path_(folder + "/run.lock.owner"),
      folder_before_(before(folder)),
      flock_before_(before(folder + "/run.lock")) {
    make_folder(folder);
    since_ = local_text("%Y-%m-%d %H:%M:%S");
    try {
        open_flock(patience);
        take_owner(patience, lease);
    } catch (...) {
        if (fd_ >= 0) close(fd_);
        if (flock_ >= 0) close(flock_);
        throw;
    }
    try {
        thread_ = std::thread([this] { beat(); });
    } catch (const std::system_error&) {
        beats_ = -1;  // never taken for dead
        beat();
    }
}

RunLock::Before RunLock::before(const std::string& path) {
    struct stat there;
    if (again([&] { return lstat(path.c_str(), &there); }) != 0) return {};
    return {true, {there.st_atim, there.st_mtim}};
}

void RunLock::refuse(const std::string& owner, const std::string& remedy) const {
    fail("folder %s (--out): another run writes there (%s)\n  %s", folder_.c_str(), told(owner).c_str(),
         remedy.c_str());
}

std::string RunLock::signature() const {
    return format("pid %d on host %s since %s, boot %s, start %ld, beat %ld\n", int(getpid()), host_name().c_str(),
                  since_.c_str(), boot_of_processes().c_str(), start_of(int(getpid())), beats_.load());
}

// locked_: whether this file system has such locks.
void RunLock::open_flock(double patience) {
    const std::string path = folder_ + "/run.lock";
    flock_ = again([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666); });
    if (flock_ < 0 && errno == ELOOP) fail("%s: is a link, and a lock may not be one: remove it", path.c_str());
    if (flock_ < 0)
        fail("folder %s (--out): can't create files there: %s\n  choose a folder that you may write to",
             folder_.c_str(), std::strerror(errno));
    for (double waited = 0; pretended != LockTestMode::no_flock; waited += 0.05) {
        locked_ = pretended == LockTestMode::own_host || flock(flock_, LOCK_EX | LOCK_NB) == 0;
        if (locked_) break;
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) break;  // ENOLCK, EOPNOTSUPP, ENOSYS
        if (waited >= patience) refuse(first_line(path), "wait for it, stop it, or choose another --out");
        pause(0.05);
    }
    if (!locked_) return;
    // The file may have been removed while its lock was waited for.
    if (!same_file(flock_, path)) fail("%s: was removed while it was being locked: start again", path.c_str());
    const std::string text = signature();
    // A full disk now means a full disk at the first checkpoint.
    if (again([&] { return ftruncate(flock_, 0); }) != 0)
        fail("folder %s (--out): can't write there: %s", folder_.c_str(), std::strerror(errno));
    write_all(flock_, 0, text.data(), int64_t(text.size()), path);
}

// A signed file under a name that nobody else uses.
int RunLock::create(const std::string& path) const {
    const int fd = again([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); });
    require(fd >= 0, "%s: can't create it: %s", path.c_str(), std::strerror(errno));
    try {
        const std::string text = signature();
        write_all(fd, 0, text.data(), int64_t(text.size()), path);
    } catch (...) {
        close(fd);
        unlink(path.c_str());
        throw;
    }
    return fd;
}

void RunLock::take_owner(double patience, double lease) {
    const std::string mine = temporary_name(path_);
    fd_ = create(mine);
    flock(fd_, LOCK_EX | LOCK_NB);  // the holder of the folder removes what nobody locks
    try {
        for (double waited = 0;;) {
            publish(mine);
            if (same_file(fd_, path_)) break;
            const std::string owner = first_line(path_);
            const Life life = life_of(parse(owner));
            if (owner.empty() || life == Life::alive) {  // the one just ends or signs, the other may be ending
                if (waited >= std::max(patience, owner.empty() ? 1.0 : 0.0))
                    refuse(owner, "if it is dead, delete " + path_);
                pause(0.05);
                waited += 0.05;
            } else if (life == Life::dead || stands_still(owner, lease)) {
                if (replace(mine, owner, life == Life::unknown)) break;
            }
        }
    } catch (...) {
        unlink(mine.c_str());
        throw;
    }
    unlink(mine.c_str());
}

// A link appears whole, signature and all, or the name is taken.
void RunLock::publish(const std::string& mine) {
    if (again([&] { return link(mine.c_str(), path_.c_str()); }) == 0 || errno == EEXIST) return;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK) fail_errno(path_, "link");
    // No links here: created alone, and signed then.
    const int fd = again([&] { return open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); });
    if (fd < 0 && errno == EEXIST) return;
    if (fd < 0) fail_errno(path_, "open");
    close(fd_);
    fd_ = fd;
    const std::string text = signature();
    write_all(fd_, 0, text.data(), int64_t(text.size()), path_);
}

// True: an owner elsewhere counts no more; false if its file has gone. Throws if it lives.
bool RunLock::stands_still(const std::string& owner, double lease) const {
    std::fprintf(stderr, "train_llama: %s: looks for %.0f s whether its run still lives (%s)\n", folder_.c_str(), lease,
                 told(owner).c_str());
    for (const double end = monotonic_clock() + lease; monotonic_clock() < end; pause(0.1)) {
        const std::string now = first_line(path_);
        if (now.empty()) return false;
        if (now != owner) refuse(now, "stop it, or choose another --out");
    }
    std::fprintf(stderr, "train_llama: %s: that run is dead, and this one continues\n", folder_.c_str());
    return true;
}

// True: this process has it now. If no flock keeps starts apart, a second name of the dead owner's file does: one
// alone can make it. Of several that replace the file at once in spite of that, on other hosts, the last one has it.
bool RunLock::replace(const std::string& mine, const std::string& owner, bool elsewhere) {
    const std::string claim = path_ + ".tmp-dead";
    double waited = 0;
    for (; !locked_ && again([&] { return link(path_.c_str(), claim.c_str()); }) != 0 && errno == EEXIST;
         waited += 0.05) {
        if (waited >= 2) unlink(claim.c_str());  // of a start that was killed here
        pause(0.05);
        if (first_line(path_) != owner) return false;
    }
    const bool dead = first_line(path_) == owner,
               replaced = dead && again([&] { return rename(mine.c_str(), path_.c_str()); }) == 0;
    const int error = errno;
    if (!locked_) unlink(claim.c_str());
    errno = error;
    if (!dead) return false;
    if (!replaced) fail_errno(path_, "rename");
    if (elsewhere || waited >= 2) pause(0.3);
    if (!same_file(fd_, path_)) refuse(first_line(path_), "wait for it, stop it, or choose another --out");
    return true;
}

// The number in the file rises: for other hosts.
void RunLock::beat() {
    std::unique_lock lock(mutex_);
    for (;;) {
        try {
            const std::string text = signature();
            if (pwrite(fd_, text.data(), text.size(), 0) < 0 && errno == EBADF) return;
        } catch (const std::exception&) {  // no memory, as what can't be written now: two seconds later again
        }
        if (beats_ < 0 || ends_.wait_for(lock, std::chrono::duration<double>(kBeat), [this] { return end_; })) return;
        ++beats_;
    }
}

bool RunLock::held() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec == looked_) return true;
    looked_ = now.tv_sec;
    struct stat there;
    if (same_file(fd_, path_)) return true;
    if (again([&] { return lstat(path_.c_str(), &there); }) == 0) return false;
    if (errno != ENOENT) return true;  // nothing can be said
    try {
        const int again = create(path_);
        std::lock_guard lock(mutex_);
        close(fd_);
        fd_ = again;
    } catch (const Error&) {  // taken by another just now, or a full disk: known in a second
    }
    return true;
}

std::string RunLock::lost() const {
    return format("%s was removed, and another run has taken the folder (%s): this one ends before both write there",
                  path_.c_str(), told(first_line(path_)).c_str());
}

RunLock::~RunLock() {
    {
        std::lock_guard lock(mutex_);
        end_ = true;
    }
    ends_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (same_file(fd_, path_)) unlink(path_.c_str());
    // The flock file stays: who has opened it already must find the same file. Where it is new and nothing was written
    // it goes while it is locked, and who waits for it is told so.
    const std::string file = folder_ + "/run.lock";
    if (!writes_ && !flock_before_.there) unlink(file.c_str());
    if (locked_ && again([&] { return ftruncate(flock_, 0); }) != 0) std::perror(file.c_str());
    close(fd_);
    close(flock_);
    if (writes_) return;
    if (flock_before_.there) utimensat(AT_FDCWD, file.c_str(), flock_before_.times, AT_SYMLINK_NOFOLLOW);
    if (folder_before_.there)
        utimensat(AT_FDCWD, folder_.c_str(), folder_before_.times, 0);
    else
        rmdir(folder_.c_str());
}

}  // namespace rz
