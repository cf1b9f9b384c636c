#include "llama/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "comm/host.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/crc32.h"
#include "llama/report/protobuf.h"

namespace rz {
namespace {

uint32_t masked_crc(std::string_view bytes) {
    const uint32_t c = crc32c(bytes);
    return std::rotr(c, 15) + 0xa282ead8u;
}

using namespace protobuf;

std::string event_begin(double wall, int64_t step) { return real(1, wall) + (step != 0 ? whole(2, step) : ""); }

}  // namespace

std::string event_version(double wall) { return event_begin(wall, 0) + bytes(3, "brain.Event:2"); }

std::string event_session_start(double wall, int64_t step) {
    return event_begin(wall, step) + bytes(7, "\x08\x01");  // SessionLog { status: START }
}

std::string event_scalars(double wall, int64_t step, const std::vector<EventFile::Scalar>& scalars) {
    std::string summary;
    for (const auto& [name, value] : scalars) summary += bytes(1, bytes(1, name) + real(2, value));
    return event_begin(wall, step) + bytes(5, summary);
}

// A tensor of one string, for the plugin "text".
std::string event_text(double wall, int64_t step, std::string_view name, std::string_view text) {
    constexpr int kString = 7;  // DataType.DT_STRING
    const std::string shape = bytes(2, whole(1, 1)), tensor = whole(1, kString) + bytes(2, shape) + bytes(8, text);
    const std::string metadata = bytes(1, bytes(1, "text"));
    const std::string value = bytes(1, name) + bytes(8, tensor) + bytes(9, metadata);
    return event_begin(wall, step) + bytes(5, bytes(1, value));
}

std::string event_record(std::string_view event) {
    const std::string length = raw(uint64_t(event.size()));
    return (length + raw(masked_crc(length))).append(event) + raw(masked_crc(event));
}

EventFile::EventFile(const std::string& folder, int64_t step) {
    make_folder(folder);
    const double wall = wall_clock();
    auto& [path, fd] = file_;
    for (int uid = 0; fd < 0; ++uid) {
        path = format("%s/events.out.tfevents.%010ld.%s.%d.%d", folder.c_str(), int64_t(wall), host_name().c_str(),
                      int(::getpid()), uid);
        fd = again([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666); });
        require(fd >= 0 || errno == EEXIST, "%s: cannot be created: %s", path.c_str(), std::strerror(errno));
    }
    require(append_whole(fd, event_record(event_version(wall)) + event_record(event_session_start(wall, step))),
            "%s: cannot be written: %s", path.c_str(), std::strerror(errno));
}

bool EventFile::write_text(int64_t step, std::string_view tag, std::string_view text) {
    return append_whole(file_.fd, event_record(event_text(wall_clock(), step, tag, text)));
}

bool EventFile::write(int64_t step, const std::vector<Scalar>& scalars) {
    return scalars.empty() || append_whole(file_.fd, event_record(event_scalars(wall_clock(), step, scalars)));
}

}  // namespace rz
