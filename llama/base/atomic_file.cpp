#include "llama/base/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>

#include "kernels/runtime/check.h"
#include "llama/base/fault.h"

namespace rz {

void fail_errno(const std::string& path, const char* call) {
    const int error = errno;
    const char* hint = error == ENOSPC || error == EDQUOT  ? ": free some space or choose another folder"
                       : error == EFBIG                    ? ": raise the file size limit (ulimit -f)"
                       : error == EACCES || error == EROFS ? ": choose a folder you may write to"
                                                           : "";
    fail("%s: %s failed: %s%s", path.c_str(), call, std::strerror(error), hint);
}

std::string parent_folder(const std::string& path) {
    const size_t slash = path.find_last_of('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

OpenFile open_file(const std::string& path, int flags) {
    OpenFile file(path, -1);
    for (int attempt = 0; (file.fd = again([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) < 0;)
        if (!try_again(errno, attempt, path, "open")) fail_errno(path, "open");
    return file;
}

bool reserve(int fd, int64_t bytes) {
    return again([&] { return ::fallocate(fd, 0, 0, bytes); }) == 0 || errno == EOPNOTSUPP || errno == EINVAL ||
           errno == ENOSYS;
}

void fsync_folder(const std::string& folder) {
    const OpenFile file = open_file(folder, O_RDONLY | O_DIRECTORY);
    if (again([&] { return ::fsync(file.fd); }) != 0 && errno != EINVAL)  // EINVAL: a file system that can't
        fail_errno(folder, "fsync");
}

void make_folder(const std::string& folder) {
    struct stat st;
    if (again([&] { return ::stat(folder.c_str(), &st); }) == 0) {
        require(S_ISDIR(st.st_mode), "%s: exists and is not a folder", folder.c_str());
        return;
    }
    const std::string parent = parent_folder(folder);
    if (parent != folder && parent != ".") make_folder(parent);
    if (again([&] { return ::mkdir(folder.c_str(), 0777); }) != 0 && errno != EEXIST) fail_errno(folder, "mkdir");
    fsync_folder(parent);
}

bool try_again(int error, int& attempt, const std::string& path, const char* call) {
    constexpr int kAttempts = 4;
    if (error == EINTR) return true;
    if ((error != EIO && error != ESTALE && error != EAGAIN) || attempt >= kAttempts) return false;
    std::fprintf(stderr, "train_llama: %s: %s failed: %s; trying again\n", path.c_str(), call, std::strerror(error));
    ::usleep(50000u << attempt++);
    return true;
}

// False at the end of the folder.
static bool next_name(DIR* folder, std::string& name) {
    for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(folder);
        if (!entry) return false;
        name = entry->d_name;
        if (name != "." && name != "..") return true;
    }
}

std::vector<std::string> names_in(const std::string& folder) {
    for (int attempt = 0;;) {
        DIR* const open = ::opendir(folder.c_str());
        if (!open && errno == ENOENT) return {};
        if (!open && try_again(errno, attempt, folder, "opening the folder")) continue;
        if (!open) fail_errno(folder, "opening the folder");
        std::vector<std::string> names;
        for (std::string name; next_name(open, name);) names.push_back(name);
        const int error = errno;
        ::closedir(open);
        std::sort(names.begin(), names.end());
        if (error == 0) return names;
        if (try_again(error, attempt, folder, "reading the folder")) continue;
        errno = error;
        fail_errno(folder, "reading the folder");
    }
}

// The mode of what has this name, 0 if nothing has it.
static mode_t mode_of(const std::string& path, bool follow_links) {
    for (int attempt = 0;;) {
        struct stat st;
        if ((follow_links ? ::stat : ::lstat)(path.c_str(), &st) == 0) return st.st_mode;
        if (errno == ENOENT || errno == ENOTDIR) return 0;
        // A link to itself leads nowhere; a text that is too long for a name is no name.
        if (follow_links && (errno == ELOOP || errno == ENAMETOOLONG)) return 0;
        if (!try_again(errno, attempt, path, "stat")) fail_errno(path, "stat");
    }
}

bool path_exists(const std::string& path) { return mode_of(path, false) != 0; }
bool is_file(const std::string& path) { return S_ISREG(mode_of(path, true)); }
bool is_folder(const std::string& path) { return S_ISDIR(mode_of(path, true)); }

int open_to_append(const std::string& path, bool empties) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC;  // a FIFO would be waited for
    int fd = -1, attempt = 0;
    while ((fd = again([&] { return ::open(path.c_str(), flags, 0666); })) < 0)
        if (!try_again(errno, attempt, path, "open")) return -1;
    struct stat st = {};
    if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (!empties || again([&] { return ::ftruncate(fd, 0); }) == 0))
        return fd;
    const int error = S_ISREG(st.st_mode) ? errno : EINVAL;
    ::close(fd);
    errno = error;
    return -1;
}

bool append_whole(int fd, std::string_view bytes) {
    const off_t before = ::lseek(fd, 0, SEEK_END);
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) break;
        done += size_t(n);
    }
    if (done == bytes.size()) return true;
    const int error = errno;
    if (before >= 0 && done > 0 &&
        again([&] { return ::ftruncate(fd, before); }) != 0) {  // what is torn stays: nothing can be done
    }
    errno = error;
    return false;
}

void write_all(int fd, int64_t offset, const void* data, int64_t bytes, const std::string& path) {
    const char* p = static_cast<const char*>(data);
    int attempt = 0;
    while (bytes > 0) {
        ssize_t n = -1;
        if ((errno = fault_errno("file.write")) == 0)
            n = ::pwrite(fd, p, size_t(std::min<int64_t>(bytes, 1 << 30)), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0 && try_again(errno, attempt, path, "write")) continue;
        if (n <= 0) fail_errno(path, "write");
        attempt = 0;
        p += n, offset += n, bytes -= n;
    }
}

void read_all(int fd, int64_t offset, void* data, int64_t bytes, const std::string& path, const char* fault) {
    char* p = static_cast<char*>(data);
    while (bytes > 0) {
        ssize_t n = -1;
        if (!fault || (errno = fault_errno(fault)) == 0)
            n = ::pread(fd, p, size_t(std::min<int64_t>(bytes, 1 << 30)), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail_errno(path, "read");
        require(n > 0, "%s: ends at byte %ld", path.c_str(), offset);
        p += n, offset += n, bytes -= n;
    }
}

static constexpr std::string_view kTemporary = ".tmp-";

// Not of the process id: in a container each start has the same.
std::string temporary_name(const std::string& path) {
    std::random_device random;
    return path + std::string(kTemporary) + format("%08x%08x", random(), random());
}

bool is_temporary_name(std::string_view name) {
    const size_t at = name.rfind(kTemporary);
    if (at == std::string_view::npos || at == 0) return false;
    const std::string_view mark = name.substr(at + kTemporary.size());  // "3f...", once "PID-N" and "RANK"
    return !mark.empty() && mark.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

// A lock says that somebody still writes. Where the file system has none, the caller's lock on the folder must do.
static void remove_left_temporary(const std::string& path) {
    const int fd = again([&] { return ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); });
    if (fd < 0 && errno != ELOOP) return;  // what stays hurts nobody: no reader takes it for a model's file
    if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) ::unlink(path.c_str());
    if (fd >= 0) ::close(fd);
}

void remove_left_temporaries(const std::string& folder) try {
    for (const std::string& name : names_in(folder))
        if (is_temporary_name(name)) remove_left_temporary(folder + "/" + name);
} catch (const Error&) {  // a folder that can't be read: who needs it says so
}

AtomicFile::AtomicFile(std::string path, int64_t bytes) : path_(std::move(path)), temporary_(temporary_name(path_)) {
    if ((errno = fault_errno("file.open")) == 0)
        fd_ = again([&] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (fd_ < 0) fail_errno(temporary_, "open");
    ::flock(fd_, LOCK_EX | LOCK_NB);  // for remove_left_temporaries(), where the file system has such locks
    if (bytes <= 0) return;
    if (!reserve(fd_, bytes)) {
        const int error = errno;
        ::close(fd_);
        ::unlink(temporary_.c_str());
        errno = error;
        fail_errno(path_, format("reserving %s", human_bytes(bytes).c_str()).c_str());
    }
}

AtomicFile::~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::append(const void* data, int64_t bytes) {
    write_at(end_, data, bytes);
    end_ += bytes;
}

void AtomicFile::write_at(int64_t offset, const void* data, int64_t bytes) {
    require(fd_ >= 0, "%s: written to after commit", path_.c_str());
    write_all(fd_, offset, data, bytes, path_);
}

void AtomicFile::commit() {
    require(fd_ >= 0, "%s: committed twice", path_.c_str());
    // Never tried again: after a failed fsync the kernel takes the lost pages for written.
    if ((errno = fault_errno("file.fsync")) != 0 || again([&] { return ::fsync(fd_); }) != 0)
        fail_errno(path_, "fsync");
    const int fd = fd_;
    fd_ = -1;
    const int unclosed = fault_errno("file.close");
    if (close_once(fd) != 0 || (errno = unclosed) != 0) fail_errno(path_, "close");
    if ((errno = fault_errno("file.rename")) != 0 ||
        again([&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0)
        fail_errno(path_, "rename");
    temporary_.clear();
    fsync_folder(parent_folder(path_));
}

void write_file_atomically(const std::string& path, std::string_view content) {
    AtomicFile file(path);
    file.append(content.data(), int64_t(content.size()));
    file.commit();
}

[[noreturn]] static void refuse_length(const std::string& path, int64_t bytes, const Limit& limit) {
    fail("%s: %ld bytes are too many for %s (at most %s); is it another file?", path.c_str(), bytes, limit.what,
         human_bytes(limit.bytes).c_str());
}

std::string read_file(const std::string& path, const Limit& limit) {
    for (int attempt = 0;;) {
        const OpenFile file(path, again([&] {
                                return ::open(path.c_str(),
                                              O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a FIFO would be waited for
                            }));
        if (file.fd < 0 && try_again(errno, attempt, path, "open")) continue;
        if (file.fd < 0) fail_errno(path, "open");
        struct stat st = {};
        require(again([&] { return ::fstat(file.fd, &st); }) != 0 || S_ISREG(st.st_mode), "%s: not a regular file",
                path.c_str());
        if (st.st_size > limit.bytes) refuse_length(path, int64_t(st.st_size), limit);
        std::string content;
        ssize_t n = 0;
        for (;;) {
            constexpr size_t kPiece = 1 << 16;
            const size_t size = content.size();
            content.resize(size + kPiece);
            n = (errno = fault_errno("file.read")) == 0 ? ::read(file.fd, content.data() + size, kPiece) : -1;
            content.resize(size + size_t(std::max<ssize_t>(n, 0)));
            if (n == 0 || (n < 0 && errno != EINTR) || int64_t(content.size()) > limit.bytes) break;
        }
        if (n > 0) refuse_length(path, int64_t(content.size()), limit);  // it grows, or does not say its length
        if (n == 0) return content;
        if (!try_again(errno, attempt, path, "read")) fail_errno(path, "read");
    }
}

}  // namespace rz
