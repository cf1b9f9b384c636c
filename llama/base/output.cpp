#include "llama/base/output.h"

#include <ext/stdio_sync_filebuf.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>

#include "kernels/runtime/check.h"

namespace rz {

namespace {

struct Printed {
    int fd;
    PrintablePieces text{/*colours=*/true};
};

bool write_whole(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text.remove_prefix(size_t(n));
    }
    return true;
}

ssize_t write_printable(void* cookie, const char* text, size_t bytes) {
    Printed& to = *static_cast<Printed*>(cookie);
    return write_whole(to.fd, to.text.feed({text, bytes})) ? ssize_t(bytes) : 0;
}

// nullptr without memory: then the stream stays as it is.
std::FILE* printable_stream(int fd, int buffering) {
    auto* const to = new Printed{fd};  // as long as the process: exit() writes what is left
    std::FILE* const file = ::fopencookie(to, "w", {nullptr, write_printable, nullptr, nullptr});
    if (file) std::setvbuf(file, nullptr, buffering, BUFSIZ);
    return file;
}

}  // namespace

void print_escaped() {
    std::fflush(nullptr);
    if (std::FILE* out = printable_stream(STDOUT_FILENO, ::isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF)) stdout = out;
    if (std::FILE* err = printable_stream(STDERR_FILENO, _IONBF)) stderr = err;
    static __gnu_cxx::stdio_sync_filebuf<char> out(stdout), err(stderr);
    std::cout.rdbuf(&out);
    std::cerr.rdbuf(&err);
}

bool print_text(std::string_view text) {
    if (::isatty(STDOUT_FILENO)) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        return std::fflush(stdout) == 0;
    }
    return std::fflush(stdout) == 0 && write_whole(STDOUT_FILENO, text);
}

}  // namespace rz
