// LD_PRELOAD library: counts what a program asks of the operating system, and makes one of these calls go wrong.
//
//   FAULT_PATHS=a:b      file operations count where a path holds one of these
//   FAULT_TRACE=file     a line per counted call: number, site, site of its innermost frames alone, operation, path
//   FAULT_AT=k           the k-th counted call (from 1), or FAULT_SITE=site:n, the n-th from one place in the program
//   FAULT_DO=            EIO, ENOSPC, ... (any number of errno), kill (SIGKILL before the call), short (half the
//                        transfer), hang=SECONDS: from this call on all counted ones wait until so long after it,
//                        abort (abort()), terminate (std::terminate()), throw (std::bad_alloc, which nobody may catch)
//   FAULT_EVER=1         every later one too
//   FAULT_KINDS=         files (default), memory, threads: what is counted; of the last two from main() on
//   FAULT_BEFORE_MAIN=1  of the last two those before main() instead: what the program's constructors ask for
//   FAULT_MODULE=name    allocations and threads count where a library of this name is on the stack
//   FAULT_RANK=r         only in this rank of a job
//   FAULT_STACK=1        says where the call comes from
//   FAULT_CLOCK=s:d      s seconds after the start the time of day jumps by d seconds
//   FAULT_HOST=name      the host's name, and what its boot is called: ranks of one machine pass for several hosts
//   FAULT_FLOCK=         absent: this file system has no flock; local: each host has its own, which always succeeds
//   FAULT_RECORD=file    writes every change to the files with its data, for states that a power cut could leave
//
// A site is a hash of the return addresses on the stack, relative to where each module was loaded: the same in every
// start.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <new>

// The library wraps both spellings of a call; the headers must not turn one into the other.
#undef open
#undef open64
#undef fopen
#undef fopen64
#undef stat
#undef stat64

namespace {

struct Settings {
    char paths[1024] = {};
    bool on = false, files = true, memory = false, threads = false, ever = false, kill = false, cut = false,
         before_main = false;
    bool flock_absent = false, flock_local = false;
    int error = 0, trace = -1, record = -1;
    long at = 0, site_nth = 0;
    uint64_t site = 0;
    double hang = 0, clock_from = -1, clock_by = 0;  // seconds
    const char *host = nullptr, *module = nullptr, *ends = nullptr;
};
Settings settings;
std::atomic<long> counted{0};
std::atomic<long> at_site{0};
std::atomic<bool> ready{false};
std::atomic<bool> in_main{false};
thread_local bool inside = false;  // what the library itself does is not counted

int errno_of(const char* name) {
    static const struct {
        const char* name;
        int value;
    } kNames[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"ESTALE", ESTALE}, {"EACCES", EACCES},  {"ENOMEM", ENOMEM},
                  {"EROFS", EROFS},   {"EDQUOT", EDQUOT}, {"ENOENT", ENOENT}, {"EINTR", EINTR},    {"EMFILE", EMFILE},
                  {"EAGAIN", EAGAIN}, {"EFBIG", EFBIG},   {"ENOLCK", ENOLCK}, {"ENOTDIR", ENOTDIR}};
    for (const auto& n : kNames)
        if (!strcmp(n.name, name)) return n.value;
    return atoi(name);
}

double monotonic() {
    timespec now{};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}
double started = 0;
std::atomic<double> hang_ends{0};

// Writes in one call, which no library function comes between.
__attribute__((format(printf, 2, 3))) void say(int fd, const char* format, ...) {
    char line[4800];
    va_list rest;
    va_start(rest, format);
    const int n = vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    if (syscall(SYS_write, fd, line, size_t(n)) != n) _exit(99);
}

int open_log(const char* variable) {
    const char* path = getenv(variable);
    if (!path || !settings.on) return -1;
    return int(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

__attribute__((constructor)) void read_settings() {
    const char *paths = getenv("FAULT_PATHS"), *rank = getenv("FAULT_RANK"), *own = getenv("PMI_RANK");
    if (!own) own = getenv("RINGZERO_RANK");
    const char *kinds = getenv("FAULT_KINDS"), *action = getenv("FAULT_DO"), *site = getenv("FAULT_SITE");
    const char* program = getenv("FAULT_PROGRAM");
    if (paths) snprintf(settings.paths, sizeof settings.paths, "%s", paths);
    const char *clock = getenv("FAULT_CLOCK"), *flock = getenv("FAULT_FLOCK"), *host = getenv("FAULT_HOST");
    const bool here = !strcmp(program_invocation_short_name, program ? program : "train_llama");
    started = monotonic();
    settings.on = (paths || kinds) && here;
    settings.module = getenv("FAULT_MODULE");
    if (here && host) settings.host = host;
    if (here && flock) settings.flock_absent = !strcmp(flock, "absent"), settings.flock_local = !settings.flock_absent;
    if (here && clock && strchr(clock, ':')) {
        settings.clock_from = atof(clock);
        settings.clock_by = atof(strchr(clock, ':') + 1);
    }
    if (rank && (!own || strcmp(rank, own))) settings.on = false;
    if (kinds) {
        settings.files = strstr(kinds, "files");
        settings.memory = strstr(kinds, "memory");
        settings.threads = strstr(kinds, "threads");
    }
    const auto is = [action](const char* name) { return action && !strcmp(action, name); };
    settings.kill = is("kill"), settings.cut = is("short");
    if (is("abort") || is("terminate") || is("throw")) settings.ends = action;
    if (action && !strncmp(action, "hang=", 5))
        settings.hang = atof(action + 5);
    else if (action && !settings.kill && !settings.cut && !settings.ends)
        settings.error = errno_of(action);
    if (const char* at = getenv("FAULT_AT")) settings.at = atol(at);
    if (site) {
        char* end = nullptr;
        settings.site = strtoull(site, &end, 16);
        settings.site_nth = *end == ':' ? atol(end + 1) : 1;
    }
    settings.ever = getenv("FAULT_EVER") != nullptr;
    settings.before_main = getenv("FAULT_BEFORE_MAIN") != nullptr;
    settings.trace = open_log("FAULT_TRACE");
    settings.record = open_log("FAULT_RECORD");
    void* frames[4];
    backtrace(frames, 4);  // loads what it needs now, not inside a call
    ready = true;
}

template <class F>
F* real(const char* name) {
    return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
// The next definition of this function, looked up once.
#define REAL(name) static auto* const real_##name = real<decltype(name)>(#name)

// An address on the stack, relative to its module; dladdr searches whole tables of symbols, and a start makes a hundred
// thousand allocations.
struct Frame {
    void* address;
    uint64_t value;
    bool in_module;
};
const Frame& frame_at(void* address) {
    constexpr size_t kKept = 4096;
    static thread_local Frame kept[kKept];
    Frame& entry = kept[(uintptr_t(address) >> 1) % kKept];
    if (entry.address == address) return entry;
    Dl_info info;
    const bool found = dladdr(address, &info) && info.dli_fbase;
    entry = {address, found ? uint64_t(static_cast<char*>(address) - static_cast<char*>(info.dli_fbase)) : 0,
             found && settings.module && info.dli_fname && strstr(info.dli_fname, settings.module)};
    return entry;
}
uint64_t relative(void* address) { return frame_at(address).value; }

bool from_module() {
    if (!settings.module) return true;
    void* frames[24];
    const int n = backtrace(frames, 24);
    for (int i = 2; i < n; ++i)
        if (frame_at(frames[i]).in_module) return true;
    return false;
}

struct Site {
    uint64_t whole = 0, near = 0;
};
Site site_here() {
    constexpr int kNear = 5;  // the two of this library, and three
    void* frames[24];
    const int n = backtrace(frames, 24);
    Site site;
    uint64_t hash = 1469598103934665603ull;
    for (int i = 2; i < n; ++i) {
        if (const uint64_t place = relative(frames[i])) hash = (hash ^ place) * 1099511628211ull;
        if (i < kNear) site.near = hash >> 16;
    }
    site.whole = hash >> 16;
    return site;
}

bool counts(const char* path) {
    if (!path) return false;
    for (const char* p = settings.paths; *p;) {
        const char* end = strchrnul(p, ':');
        if (end > p && memmem(path, strlen(path), p, size_t(end - p))) return true;
        p = *end ? end + 1 : end;
    }
    return false;
}

enum class Fate { goes_on, fails, is_cut };

// Not in a library call: those are cut short by signals, and a call to a file system that hangs is not.
void wait_until(double end) {
    for (double left; (left = end - monotonic()) > 0;) {
        timespec pause{long(left), long((left - double(long(left))) * 1e9)};
        syscall(SYS_nanosleep, &pause, nullptr);
    }
}

[[noreturn]] void end_program(const char* how) noexcept {
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "terminate")) std::terminate();
    std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
}

// Counts a call and decides. errno is set where it fails.
Fate count(const char* operation, const char* path) {
    const Site here =
        settings.trace >= 0 || (settings.site && (settings.ever || at_site < settings.site_nth)) ? site_here() : Site{};
    const uint64_t site = here.whole;
    const long number = ++counted;
    if (settings.trace >= 0) say(settings.trace, "%ld %012lx %012lx %s %s\n", number, site, here.near, operation, path);
    if (hang_ends > 0) {
        wait_until(hang_ends);
        return Fate::goes_on;
    }
    if (settings.site && site != settings.site) return Fate::goes_on;
    const long now = settings.site ? ++at_site : number, wanted = settings.site ? settings.site_nth : settings.at;
    if (!wanted || (settings.ever ? now < wanted : now != wanted)) return Fate::goes_on;
    say(2, "FAULT: %s %s (call %ld)\n", operation, path, number);
    if (getenv("FAULT_STACK")) {
        void* frames[32];
        backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
    }
    if (settings.kill)
        for (;;) syscall(SYS_kill, getpid(), SIGKILL);
    if (settings.ends) end_program(settings.ends);
    if (settings.hang > 0) {
        hang_ends = monotonic() + settings.hang;
        wait_until(hang_ends);
        return Fate::goes_on;
    }
    if (settings.cut) return Fate::is_cut;
    if (!settings.error) return Fate::goes_on;
    errno = settings.error;
    return Fate::fails;
}

Fate file_call(const char* operation, const char* path, const char* other = nullptr) {
    if (!ready || inside || !settings.on || !settings.files || !(counts(path) || counts(other))) return Fate::goes_on;
    inside = true;
    const Fate fate = count(operation, path);
    inside = false;
    return fate;
}

// True: this is the part of the program whose allocations and threads count.
bool in_part() { return settings.before_main ? ready && !in_main : in_main.load(); }

bool memory_fails(const char* operation) {
    if (!in_part() || inside || !settings.on || !settings.memory) return false;
    inside = true;
    const Fate fate = from_module() ? count(operation, "-") : Fate::goes_on;
    inside = false;
    return fate == Fate::fails;
}

struct PathOf {
    char text[2300] = {};
    PathOf() = default;
    explicit PathOf(int fd) {
        if (!settings.on || !ready || inside) return;
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const long n = syscall(SYS_readlinkat, AT_FDCWD, link, text, sizeof text - 1);
        text[n > 0 ? n : 0] = 0;
    }
    explicit PathOf(const char* path) : PathOf(AT_FDCWD, path) {}
    PathOf(int folder, const char* path) {
        if (!settings.on || !ready || inside || !path) return;
        if (path[0] == '/') {
            snprintf(text, sizeof text, "%s", path);
            return;
        }
        if (folder != AT_FDCWD)
            memcpy(text, PathOf(folder).text, sizeof text);
        else if (syscall(SYS_getcwd, text, sizeof text) < 0)
            text[0] = 0;
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "/%s", path);
    }
};

// ---- the record of changes: "operation offset bytes path other\n" and then the bytes --------------------------------

pthread_mutex_t record_mutex = PTHREAD_MUTEX_INITIALIZER;

void record(const char* operation, const char* path, const char* other = "-", long offset = 0,
            const void* data = nullptr, size_t bytes = 0) {
    if (settings.record < 0 || inside || !(counts(path) || counts(other))) return;
    const int saved = errno;
    pthread_mutex_lock(&record_mutex);
    say(settings.record, "%s %ld %zu %s %s\n", operation, offset, bytes, path, other);
    for (size_t done = 0; done < bytes;) {
        const long k = syscall(SYS_write, settings.record, static_cast<const char*>(data) + done, bytes - done);
        if (k <= 0) _exit(99);
        done += size_t(k);
    }
    pthread_mutex_unlock(&record_mutex);
    errno = saved;
}

// File that names this boot of the host, where FAULT_HOST gives another; -1: nothing else than what is there.
int boot_id_file(const char* path) {
    if (!ready || !settings.host || !path || strcmp(path, "/proc/sys/kernel/random/boot_id") != 0) return -1;
    const int fd = int(syscall(SYS_memfd_create, "boot_id", 0u));
    say(fd, "%s", settings.host);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

}  // namespace

extern "C" {

// ---- the start ------------------------------------------------------------------------------------------------------

using Main = int (*)(int, char**, char**);
static Main program_main = nullptr;
static int main_of_program(int argc, char** argv, char** environment) {
    in_main = true;
    return program_main(argc, argv, environment);
}
int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld_fini)(),
                      void* stack_end) {
    REAL(__libc_start_main);
    program_main = main;
    return real___libc_start_main(main_of_program, argc, argv, init, fini, rtld_fini, stack_end);
}

// ---- calls that look ------------------------------------------------------------------------------------------------

// The rest are the paths that a call counts by; `failure` is what it returns where it fails.
#define WRAP(result, name, parameters, arguments, failure, operation, ...)    \
    result name parameters {                                                  \
        REAL(name);                                                           \
        if (file_call(operation, __VA_ARGS__) == Fate::fails) return failure; \
        return real_##name arguments;                                         \
    }
WRAP(int, stat, (const char* path, struct stat* out) noexcept, (path, out), -1, "stat", PathOf(path).text)
WRAP(int, lstat, (const char* path, struct stat* out) noexcept, (path, out), -1, "stat", PathOf(path).text)
WRAP(int, stat64, (const char* path, struct stat64* out) noexcept, (path, out), -1, "stat", PathOf(path).text)
WRAP(int, lstat64, (const char* path, struct stat64* out) noexcept, (path, out), -1, "stat", PathOf(path).text)
WRAP(int, fstat, (int fd, struct stat* out) noexcept, (fd, out), -1, "stat", PathOf(fd).text)
WRAP(int, fstat64, (int fd, struct stat64* out) noexcept, (fd, out), -1, "stat", PathOf(fd).text)
WRAP(int, fstatat, (int folder, const char* path, struct stat* out, int flags) noexcept, (folder, path, out, flags), -1,
     "stat", PathOf(folder, path).text)
WRAP(int, statvfs, (const char* path, struct statvfs* out) noexcept, (path, out), -1, "statvfs", PathOf(path).text)
WRAP(int, statvfs64, (const char* path, struct statvfs64* out) noexcept, (path, out), -1, "statvfs", PathOf(path).text)
WRAP(int, access, (const char* path, int mode) noexcept, (path, mode), -1, "access", PathOf(path).text)
WRAP(DIR*, opendir, (const char* path), (path), nullptr, "opendir", PathOf(path).text)
WRAP(DIR*, fdopendir, (int fd), (fd), nullptr, "opendir", PathOf(fd).text)
WRAP(struct dirent*, readdir, (DIR * folder), (folder), nullptr, "readdir", PathOf(dirfd(folder)).text)
WRAP(struct dirent64*, readdir64, (DIR * folder), (folder), nullptr, "readdir", PathOf(dirfd(folder)).text)
WRAP(int, link, (const char* from, const char* to) noexcept, (from, to), -1, "link", PathOf(from).text, PathOf(to).text)

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t at) noexcept {
    if (fd >= 0 && ready && file_call("mmap", PathOf(fd).text) == Fate::fails) return MAP_FAILED;
    return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, at));
}

int flock(int fd, int operation) noexcept {
    REAL(flock);
    if (ready && settings.flock_local) return 0;
    if (ready && settings.flock_absent) {
        errno = ENOLCK;
        return -1;
    }
    if (file_call("flock", PathOf(fd).text) == Fate::fails) return -1;
    return real_flock(fd, operation);
}

// ---- calls that change names and sizes, which are recorded ----------------------------------------------------------

#define WRAP_CHANGE(name, parameters, arguments, operation, first, second, bytes) \
    int name parameters {                                                         \
        REAL(name);                                                               \
        const PathOf at first, other second;                                      \
        if (file_call(operation, at.text, other.text) == Fate::fails) return -1;  \
        const int result = real_##name arguments;                                 \
        if (result == 0) record(operation, at.text, other.text, long(bytes));     \
        return result;                                                            \
    }
WRAP_CHANGE(mkdir, (const char* path, mode_t mode) noexcept, (path, mode), "mkdir", (path), {}, 0)
WRAP_CHANGE(unlink, (const char* path) noexcept, (path), "remove", (path), {}, 0)
WRAP_CHANGE(rmdir, (const char* path) noexcept, (path), "remove", (path), {}, 0)
WRAP_CHANGE(remove, (const char* path) noexcept, (path), "remove", (path), {}, 0)
WRAP_CHANGE(unlinkat, (int folder, const char* path, int flags) noexcept, (folder, path, flags), "remove",
            (folder, path), {}, 0)
WRAP_CHANGE(rename, (const char* from, const char* to) noexcept, (from, to), "rename", (from), (to), 0)
WRAP_CHANGE(renameat2, (int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept,
            (from_folder, from, to_folder, to, flags), flags & 2 ? "exchange" : "rename", (from_folder, from),
            (to_folder, to), 0)
WRAP_CHANGE(fsync, (int fd), (fd), "fsync", (fd), {}, 0)
WRAP_CHANGE(ftruncate, (int fd, off_t size) noexcept, (fd, size), "truncate", (fd), {}, size)
WRAP_CHANGE(ftruncate64, (int fd, off64_t size) noexcept, (fd, size), "truncate", (fd), {}, size)
WRAP_CHANGE(fallocate, (int fd, int mode, off_t from, off_t size), (fd, mode, from, size), "reserve", (fd), {},
            mode == 0 ? from + size : 0)
WRAP_CHANGE(fallocate64, (int fd, int mode, off64_t from, off64_t size), (fd, mode, from, size), "reserve", (fd), {},
            mode == 0 ? from + size : 0)

// ---- opening and closing --------------------------------------------------------------------------------------------

// The rest are the arguments before the flags.
#define WRAP_OPEN(name, parameters, ...)                                  \
    int name parameters {                                                 \
        REAL(name);                                                       \
        mode_t mode = 0;                                                  \
        if (flags & (O_CREAT | __O_TMPFILE)) {                            \
            va_list rest;                                                 \
            va_start(rest, flags);                                        \
            mode = va_arg(rest, mode_t);                                  \
            va_end(rest);                                                 \
        }                                                                 \
        const PathOf whole(__VA_ARGS__);                                  \
        if (file_call("open", whole.text) == Fate::fails) return -1;      \
        const int fd = real_##name(__VA_ARGS__, flags, mode);             \
        if (fd >= 0 && (flags & O_CREAT)) record("create", whole.text);   \
        if (fd >= 0 && (flags & O_TRUNC)) record("truncate", whole.text); \
        return fd;                                                        \
    }
WRAP_OPEN(open, (const char* path, int flags, ...), path)
WRAP_OPEN(open64, (const char* path, int flags, ...), path)
WRAP_OPEN(openat, (int folder, const char* path, int flags, ...), folder, path)
WRAP_OPEN(openat64, (int folder, const char* path, int flags, ...), folder, path)

#define WRAP_FOPEN(name)                                                              \
    FILE* name(const char* path, const char* how) {                                   \
        REAL(name);                                                                   \
        if (const int boot = boot_id_file(path); boot >= 0) return fdopen(boot, how); \
        if (file_call("open", PathOf(path).text) == Fate::fails) return nullptr;      \
        return real_##name(path, how);                                                \
    }
WRAP_FOPEN(fopen)
WRAP_FOPEN(fopen64)

int close(int fd) {
    REAL(close);
    if (file_call("close", PathOf(fd).text) != Fate::fails) return real_close(fd);
    const int error = errno;
    real_close(fd);  // Linux lets go of the descriptor in any case
    errno = error;
    return -1;
}

// ---- reading and writing, whose transfers may be cut ----------------------------------------------------------------

static size_t part(size_t bytes, Fate fate) { return fate == Fate::is_cut && bytes > 1 ? bytes / 2 : bytes; }

// The rest is the place in the file, if the call has one.
#define WRAP_READ(name, parameters, ...)                                            \
    ssize_t name parameters {                                                       \
        REAL(name);                                                                 \
        const Fate fate = file_call("read", PathOf(fd).text);                       \
        if (fate == Fate::fails) return -1;                                         \
        return real_##name(fd, data, part(bytes, fate) __VA_OPT__(, ) __VA_ARGS__); \
    }
WRAP_READ(read, (int fd, void* data, size_t bytes))
WRAP_READ(pread, (int fd, void* data, size_t bytes, off_t at), at)
WRAP_READ(pread64, (int fd, void* data, size_t bytes, off64_t at), at)

#define WRAP_WRITE(name, parameters, place, ...)                                               \
    ssize_t name parameters {                                                                  \
        REAL(name);                                                                            \
        const PathOf path(fd);                                                                 \
        const Fate fate = file_call("write", path.text);                                       \
        if (fate == Fate::fails) return -1;                                                    \
        const long from = settings.record >= 0 ? long(place) : 0;                              \
        const ssize_t n = real_##name(fd, data, part(bytes, fate) __VA_OPT__(, ) __VA_ARGS__); \
        if (n > 0) record("write", path.text, "-", from, data, size_t(n));                     \
        return n;                                                                              \
    }
WRAP_WRITE(write, (int fd, const void* data, size_t bytes),
           lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR))
WRAP_WRITE(pwrite, (int fd, const void* data, size_t bytes, off_t at), at, at)
WRAP_WRITE(pwrite64, (int fd, const void* data, size_t bytes, off64_t at), at, at)

// ---- hosts and clocks -----------------------------------------------------------------------------------------------

int gethostname(char* name, size_t bytes) noexcept {
    REAL(gethostname);
    if (!ready || !settings.host) return real_gethostname(name, bytes);
    snprintf(name, bytes, "%s", settings.host);
    return 0;
}

static long jump() {
    if (!ready || settings.clock_from < 0 || monotonic() < started + settings.clock_from) return 0;
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) say(2, "FAULT: the clock jumps by %g s\n", settings.clock_by);
    return long(settings.clock_by);
}
int clock_gettime(clockid_t clock, timespec* now) noexcept {
    const int result = int(syscall(SYS_clock_gettime, clock, now));
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += jump();
    return result;
}
int gettimeofday(timeval* now, void*) noexcept {
    const int result = int(syscall(SYS_gettimeofday, now, nullptr));
    if (result == 0) now->tv_sec += jump();
    return result;
}
time_t time(time_t* out) noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

// ---- memory and threads ---------------------------------------------------------------------------------------------

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { return memory_fails("malloc") ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { return memory_fails("calloc") ? nullptr : __libc_calloc(n, bytes); }
void* realloc(void* old, size_t bytes) { return memory_fails("realloc") ? nullptr : __libc_realloc(old, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) {
    return memory_fails("aligned_alloc") ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
    if (memory_fails("posix_memalign")) return ENOMEM;
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
    REAL(pthread_create);
    if (in_part() && !inside && settings.on && settings.threads) {
        inside = true;
        const Fate fate = from_module() ? count("pthread_create", "-") : Fate::goes_on;
        inside = false;
        if (fate == Fate::fails) return settings.error;
    }
    return real_pthread_create(thread, attributes, body, argument);
}

}  // extern "C"
