#include "llama/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "comm/host.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/report/protobuf.h"

namespace rz {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? 0x82f63b78u : 0);  // Castagnoli, reflected
        table[i] = c;
    }
    return table;
}

uint32_t masked_crc(std::string_view bytes) {
    const uint32_t c = crc32c(bytes);
    return std::rotr(c, 15) + 0xa282ead8u;
}

using namespace protobuf;

std::string event_begin(double wall, int64_t step) {
    std::string event;
    put_tag(event, 1, kFixed64);
    put_raw(event, wall);
    if (step != 0) {
        put_tag(event, 2, kVarint);
        put_varint(event, uint64_t(step));
    }
    return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
    static constexpr auto kTable = make_crc_table();
    uint32_t c = ~0u;
    for (const char b : bytes) c = (c >> 8) ^ kTable[(c ^ uint8_t(b)) & 0xff];
    return ~c;
}

std::string event_version(double wall) {
    std::string event = event_begin(wall, 0);
    put_bytes(event, 3, "brain.Event:2");
    return event;
}

std::string event_session_start(double wall, int64_t step) {
    std::string event = event_begin(wall, step);
    put_bytes(event, 7, "\x08\x01");  // SessionLog { status: START }
    return event;
}

std::string event_scalars(double wall, int64_t step, const std::vector<EventFile::Scalar>& scalars) {
    std::string summary;
    for (const auto& [tag, value] : scalars) {
        std::string one;
        put_bytes(one, 1, tag);
        put_tag(one, 2, kFixed32);
        put_raw(one, value);
        put_bytes(summary, 1, one);
    }
    std::string event = event_begin(wall, step);
    put_bytes(event, 5, summary);
    return event;
}

// A tensor of one string, for the plugin "text".
std::string event_text(double wall, int64_t step, std::string_view tag, std::string_view text) {
    constexpr int kString = 7;  // DataType.DT_STRING
    std::string plugin, metadata, one, shape, tensor, value, summary;
    put_bytes(plugin, 1, "text");
    put_bytes(metadata, 1, plugin);
    put_int(one, 1, 1);
    put_bytes(shape, 2, one);
    put_int(tensor, 1, kString);
    put_bytes(tensor, 2, shape);
    put_bytes(tensor, 8, text);
    put_bytes(value, 1, tag);
    put_bytes(value, 8, tensor);
    put_bytes(value, 9, metadata);
    put_bytes(summary, 1, value);
    std::string event = event_begin(wall, step);
    put_bytes(event, 5, summary);
    return event;
}

std::string event_record(std::string_view event) {
    std::string length, record;
    put_raw(length, uint64_t(event.size()));
    record = length;
    put_raw(record, masked_crc(length));
    record += event;
    put_raw(record, masked_crc(event));
    return record;
}

EventFile::EventFile(const std::string& folder, int64_t step) {
    make_folder(folder);
    const double wall = wall_clock();
    for (int uid = 0; fd_ < 0; ++uid) {
        path_ = format("%s/events.out.tfevents.%010lld.%s.%d.%d", folder.c_str(), (long long)wall, host_name().c_str(),
                       int(::getpid()), uid);
        fd_ = again([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666); });
        require(fd_ >= 0 || errno == EEXIST, "%s: cannot be created: %s", path_.c_str(), std::strerror(errno));
    }
    if (append_whole(fd_, event_record(event_version(wall)) + event_record(event_session_start(wall, step)))) return;
    const int error = errno;
    ::close(fd_);
    fail("%s: cannot be written: %s", path_.c_str(), std::strerror(error));
}

EventFile::~EventFile() { ::close(fd_); }

bool EventFile::write_text(int64_t step, std::string_view tag, std::string_view text) {
    return append_whole(fd_, event_record(event_text(wall_clock(), step, tag, text)));
}

bool EventFile::write(int64_t step, const std::vector<Scalar>& scalars) {
    return scalars.empty() || append_whole(fd_, event_record(event_scalars(wall_clock(), step, scalars)));
}

}  // namespace rz
