#include "kernels/gemm/gemm_tuning.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "kernels/runtime/context.h"

namespace rz {
namespace {

constexpr const char* kVersion =
    "gemm1";  // a line: version, key (with tabs of its own), algorithm in hex, microseconds, checksum
constexpr int64_t kLargestFile = 16 << 20;
constexpr size_t kLongestLine = 4096;

// FNV-1a over everything before the last tab: finds accidents.
std::string checksum(std::string_view text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return format("%016llx", (unsigned long long)hash);
}

struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) close(fd);
    }
};

// The file's bytes; empty where there is none that could be a cache. Never waits, as a named pipe would make it.
std::string read_whole(const std::string& path) {
    const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    struct stat info {};
    if (file.fd < 0 || fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kLargestFile) return "";
    std::string text(size_t(info.st_size), '\0');
    size_t at = 0;
    while (at < text.size()) {
        const ssize_t n = ::read(file.fd, text.data() + at, text.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        at += size_t(n);
    }
    text.resize(at);
    return text;
}

// Calls found(line) for each whole line, without its end.
template <class Found>
void for_lines(std::string_view text, const Found& found) {
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        if (end == std::string_view::npos) return;
        found(text.substr(begin, end - begin));
        begin = end + 1;
    }
}

bool from_hex(std::string_view hex, GemmChoice& bytes) {
    if (hex.size() != 2 * bytes.size() || hex.find_first_not_of("0123456789abcdef") != std::string_view::npos)
        return false;
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<unsigned char>(digit(hex[2 * i]) * 16 + digit(hex[2 * i + 1]));
    return true;
}

std::string prefix_of(const std::string& key) { return std::string(kVersion) + "\t" + key + "\t"; }

// True: the line is whole, and so worth keeping when the file is rewritten.
bool intact(std::string_view line) {
    const size_t tab = line.rfind('\t');
    return line.size() <= kLongestLine && line.starts_with(std::string(kVersion) + "\t") &&
           tab != std::string_view::npos && line.substr(tab + 1) == checksum(line.substr(0, tab));
}

[[noreturn]] void cannot_write(const std::string& path, const char* what) {
    fail("GEMM cache %s: %s: %s; choose a file in a writable folder", path.c_str(), what, std::strerror(errno));
}

void write_whole(const std::string& path, const std::string& text) {
    const std::string temporary = path + format(".%d.tmp", int(getpid()));
    bool good = false;
    {
        const Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644)};
        if (file.fd < 0) cannot_write(path, "open");
        size_t at = 0;
        while (at < text.size()) {
            const ssize_t n = ::write(file.fd, text.data() + at, text.size() - at);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            at += size_t(n);
        }
        good = at == text.size() && fsync(file.fd) == 0;
    }
    if (good && rename(temporary.c_str(), path.c_str()) == 0) return;
    const int reason = errno;
    unlink(temporary.c_str());
    errno = reason;
    cannot_write(path, "write");
}

}  // namespace

GemmTuning& gemm_tuning(RankContext& rank) {
    const std::scoped_lock lock(rank.gemm_mutex);
    if (!rank.gemm_tuning) rank.gemm_tuning = std::make_shared<GemmTuning>();
    return *rank.gemm_tuning;
}

std::string set_gemm_tuning(Device device, GemmTune tune, const std::string& cache_file) {
    require(device.context, "gemm tuning is kept by rank: the device needs a context");
    GemmTuning& tuning = gemm_tuning(*device.context);
    tuning = {};
    if (tune == GemmTune::off && cache_file.empty()) return "";
    if (!device.is_cuda())
        return format("GEMM %s has no effect on the CPU: it chooses among cuBLASLt's algorithms for a GPU",
                      tune != GemmTune::off ? "tuning" : "cache");
    if (tune != GemmTune::off && !cache_file.empty()) {
        const std::filesystem::path folder = std::filesystem::absolute(cache_file).parent_path();
        std::error_code error;
        std::filesystem::create_directories(folder, error);
        if (error) errno = error.value();
        if (error || access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(cache_file, "its folder");
    }
    tuning.tune = tune, tuning.cache_file = cache_file;
    return "";
}

std::vector<GemmChoice> gemm_choices(std::string_view text, const std::string& key, size_t bytes) {
    std::vector<GemmChoice> choices;
    const std::string prefix = prefix_of(key);
    for_lines(text, [&](std::string_view line) {
        GemmChoice choice(bytes);
        if (!line.starts_with(prefix) || !intact(line)) return;
        const std::string_view rest = line.substr(prefix.size());
        if (from_hex(rest.substr(0, rest.find('\t')), choice)) choices.push_back(choice);
    });
    return choices;
}

std::string gemm_choice_line(const std::string& key, const GemmChoice& choice, double microseconds) {
    std::string line = prefix_of(key);
    for (const unsigned char b : choice) line += format("%02x", b);
    line += format("\t%.1f", microseconds);
    return line + "\t" + checksum(line) + "\n";
}

std::vector<GemmChoice> read_gemm_cache(const std::string& path, const std::string& key, size_t bytes) {
    return gemm_choices(read_whole(path), key, bytes);
}

void write_gemm_cache(const std::string& path, const std::string& key, const GemmChoice& choice, double microseconds) {
    // Others that write at this moment: wait for them for a while; a lost line is only measured again.
    const Descriptor lock{open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)};
    for (int i = 0; lock.fd >= 0 && flock(lock.fd, LOCK_EX | LOCK_NB) != 0 && i < 200; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::string text;
    const std::string old = read_whole(path), prefix = prefix_of(key);
    for_lines(old, [&](std::string_view line) {
        if (intact(line) && !line.starts_with(prefix)) text.append(line).push_back('\n');
    });
    write_whole(path, text + gemm_choice_line(key, choice, microseconds));
}

}  // namespace rz
