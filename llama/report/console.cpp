#include "llama/report/console.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "kernels/runtime/check.h"

namespace rz {

Console::Console(int fd) : fd_(fd) {
    const char* kind = std::getenv("TERM");
    is_terminal_ = ::isatty(fd) != 0 && kind && std::string(kind) != "dumb";
}

// True: something was written. A pipe that is ready takes PIPE_BUF bytes at once.
bool Console::write_some(int wait_ms) {
    pollfd ready{fd_, POLLOUT, 0};
    if (waiting_.empty() || ::poll(&ready, 1, wait_ms) <= 0) return false;
    const ssize_t n = ::write(fd_, waiting_.data(), std::min<size_t>(waiting_.size(), PIPE_BUF));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    waiting_.erase(0, n < 0 ? waiting_.size() : size_t(n));  // the reader has gone, or the disk is full
    return n > 0;
}

void Console::line(const std::string& text) {
    while (write_some(0)) {
    }
    if (waiting_.size() + text.size() > kMost) {
        ++left_out_;
        return;
    }
    if (left_out_ > 0) waiting_ += format("(%ld lines are left out: standard output was not read)\n", left_out_);
    left_out_ = 0;
    waiting_ += (has_status_ ? "\r\033[K" : "") + text + "\n";
    has_status_ = false;
    while (write_some(0)) {
    }
}

void Console::status(const std::string& text) {
    while (write_some(0)) {
    }
    if (!is_terminal_ || !waiting_.empty() || (text.empty() && !has_status_)) return;
    waiting_ = "\r\033[K" + text;
    has_status_ = !text.empty();
    while (write_some(0)) {
    }
}

Console::~Console() {
    if (has_status_) waiting_ += "\r\033[K";
    while (write_some(5000)) {
    }
}

}  // namespace rz
