#include "comm/restart.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "kernels/runtime/check.h"

namespace rz {

namespace fs = std::filesystem;

static constexpr const char *kMemory = "/dev/shm", *kName = "ringzero-restart-";

// A folder that nobody else may look into, held by descriptor: -1 if it is anything else.
static int open_own(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 0777) == 0700) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void remove_with_lock(const std::string& path, int lock) {
    std::error_code none;
    fs::remove_all(path, none);  // follows no links
    close(lock);
}

// Of makers that were killed.
static void remove_left_folders() {
    std::error_code error;
    for (fs::directory_iterator at(kMemory, error), end; !error && at != end; at.increment(error)) {
        const std::string path = at->path(), name = at->path().filename();
        if (!name.starts_with(kName)) continue;
        if (const int fd = open_own(path); fd >= 0)
            flock(fd, LOCK_EX | LOCK_NB) == 0 ? remove_with_lock(path, fd) : void(close(fd));
    }
}

RestartFolder::RestartFolder() : path_(restart_folder()) {
    if (!path_.empty()) return;
    remove_left_folders();
    struct stat mine, there;
    do {  // again where another start has taken the new one for a left one
        if (lock_ >= 0) close(lock_);
        path_ = format("%s/%sXXXXXX", kMemory, kName);
        require(mkdtemp(path_.data()) != nullptr,
                "--max-restarts keeps what a restart needs in %s, the host's memory: %s\n  a container needs one: "
                "--shm-size",
                kMemory, std::strerror(errno));
        lock_ = open_own(path_);
    } while (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0 || fstat(lock_, &mine) != 0 ||
             lstat(path_.c_str(), &there) != 0 || mine.st_ino != there.st_ino);
}

RestartFolder::~RestartFolder() {
    if (lock_ >= 0) remove_with_lock(path_, lock_);
}

bool RestartFolder::has_begun() const { return access((path_ + "/run").c_str(), F_OK) == 0; }

std::string restart_folder() {
    const char* path = std::getenv(kRestartVariable);
    if (!path || !*path) return "";
    const int fd = open_own(path);
    if (fd < 0 && access(path, F_OK) != 0 && errno == ENOENT) return "";  // of another host
    require(fd >= 0, "%s=%.200s in the environment: it is no folder of this user alone (mode 0700)", kRestartVariable,
            path);
    close(fd);
    return path;
}

}  // namespace rz
