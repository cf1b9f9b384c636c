#pragma once
// Files that exist whole or not at all: written under a temporary name beside the target, fsynced, renamed over it, and
// the folder fsynced, so that neither a killed process nor a power cut leaves half a file under the real name. Every
// system call is checked; errors name the file, the call and the reason (disk full, quota, no permission).

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/base/limits.h"

namespace rz {

class AtomicFile {
   public:
    // Creates the temporary file. `bytes`, if known, is reserved at once, so that a full disk shows now and not later.
    explicit AtomicFile(std::string path, int64_t bytes = 0);
    // Removes the temporary file unless commit() succeeded.
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    const std::string& path() const { return path_; }
    const std::string& temporary() const { return temporary_; }  // what it is called until commit()
    void append(const void* data, int64_t bytes);
    // At any offset, from any thread.
    void write_at(int64_t offset, const void* data, int64_t bytes);
    // fsync, close, rename, fsync of the folder. Nothing can be written after it.
    void commit();

   private:
    std::string path_, temporary_;
    int fd_ = -1;
    int64_t end_ = 0;  // of what append() wrote
};

void write_file_atomically(const std::string& path, std::string_view content);

// PATH.tmp-HEX, a name that no other process has; and whether a name has the form of a temporary file of this program,
// or of an earlier version's.
std::string temporary_name(const std::string& path);
bool is_temporary_name(std::string_view name);
// Removes the temporary files that killed processes left in a folder, and none that a process still writes.
void remove_left_temporaries(const std::string& folder);

// The whole file as bytes; throws naming it if it can't be read, is no regular file or is longer than the limit.
std::string read_file(const std::string& path, const Limit& limit = kAnyText);

// Names in a folder, sorted; none if the folder is not there. Any other error throws, after retries: a folder that
// can't be read is not an empty one.
std::vector<std::string> names_in(const std::string& folder);

// True: there is something of this name. False only if there is not; any other error throws, after retries.
bool path_exists(const std::string& path);
// True: it is a regular file, or a folder, where links lead. False only if there is none or it is something else.
bool is_file(const std::string& path);
bool is_folder(const std::string& path);

void fsync_folder(const std::string& folder);

// mkdir -p; fsyncs the parent of whatever it made.
void make_folder(const std::string& folder);

// The part before the last slash; "." if there is none.
std::string parent_folder(const std::string& path);

// An open file, which closes itself; fd < 0: none. Its path is for messages.
struct OpenFile {
    OpenFile(std::string name, int descriptor) : path(std::move(name)), fd(descriptor) {}
    OpenFile(OpenFile&& other) noexcept : path(std::move(other.path)), fd(std::exchange(other.fd, -1)) {}
    ~OpenFile() {
        if (fd >= 0) ::close(fd);
    }
    std::string path;
    int fd;
};
OpenFile open_file(const std::string& path, int flags);  // throws naming it, after retries
// Disk for so many bytes, where the file system reserves any: a full disk shows before they are written. False: errno.
bool reserve(int fd, int64_t bytes);

// For lines and records that are added one at a time, at the end of a file that there may be: a descriptor, or -1 with
// errno. Of no FIFO or device. append_whole() adds all of it or nothing and returns false with errno (a full disk).
int open_to_append(const std::string& path, bool empties);
bool append_whole(int fd, std::string_view bytes);

// A call that a signal interrupted is made again. close() is not: its descriptor is gone.
template <class Call>
int again(Call call) {
    int result;
    do result = call();
    while (result == -1 && errno == EINTR);
    return result;
}
inline int close_once(int fd) { return ::close(fd) == 0 || errno == EINTR ? 0 : -1; }

// Write or read all of it or throw; retry interrupted and short calls. fault: the point of base/fault.h that is passed
// before each read.
void write_all(int fd, int64_t offset, const void* data, int64_t bytes, const std::string& path);
void read_all(int fd, int64_t offset, void* data, int64_t bytes, const std::string& path, const char* fault = nullptr);

// Network file systems answer so for a while when a server restarts (EIO, ESTALE): whether to call again, after a pause
// that doubles. `attempt` begins with 0.
bool try_again(int error, int& attempt, const std::string& path, const char* call);

// Throws "PATH: CALL failed: errno's text", and what to do where that is known.
[[noreturn]] void fail_errno(const std::string& path, const char* call);

}  // namespace rz
