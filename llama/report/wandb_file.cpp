#include "llama/report/wandb_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "comm/host.h"
#include "kernels/runtime/check.h"
#include "llama/base/crc32.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/json.h"
#include "llama/base/version.h"
#include "llama/report/protobuf.h"

namespace rz {
namespace {

using namespace protobuf;

// Fields of `Record`, and of the items that carry a key and a value as JSON.
enum Field { kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21 };
constexpr int kKey = 1, kValueJson = 16;

constexpr int64_t kBlock = 32768, kRecordHeader = 7;
enum Part { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::string json_of(double x) {
    if (std::isnan(x)) return "\"NaN\"";
    if (std::isinf(x)) return x > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return x == std::floor(x) && std::abs(x) < 1e15 ? format("%.0f", x) : format("%.9g", x);
}

std::string item(const std::string& key, const std::string& value_json) {
    std::string out;
    put_bytes(out, kKey, key);
    put_bytes(out, kValueJson, value_json);
    return out;
}

std::string timestamp(double wall) {
    std::string out;
    put_int(out, 1, int64_t(wall));
    put_int(out, 2, int64_t((wall - std::floor(wall)) * 1e9));
    return out;
}

std::string run_message(const WandbIdentity& who, double start) {
    std::string config;
    for (const auto& [key, value] : who.config)
        put_bytes(config, 1, item(replace_invalid_utf8(key), Json(replace_invalid_utf8(value)).dump()));
    std::string out;
    put_bytes(out, 1, who.id);
    put_bytes(out, 3, replace_invalid_utf8(who.project));
    put_bytes(out, 4, config);
    put_bytes(out, 8, replace_invalid_utf8(who.name));
    put_bytes(out, 13, host_name());
    if (who.first_step > 1) put_int(out, 14, who.first_step);
    put_bytes(out, 17, timestamp(start));
    if (who.first_step > 1) put_int(out, 18, 1);
    return out;
}

}  // namespace

std::string log_record(std::string_view data, int64_t size) {
    std::string out;
    const auto room = [&] { return kBlock - (size + int64_t(out.size())) % kBlock; };
    if (room() < kRecordHeader) out.append(size_t(room()), '\0');
    for (bool first = true;; first = false) {
        const size_t part = std::min(data.size(), size_t(room() - kRecordHeader));
        const bool last = part == data.size();
        const char type = char(first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle));
        const std::string checked = type + std::string(data.substr(0, part));
        put_raw(out, crc32(checked));
        put_raw(out, uint16_t(part));
        out += checked;
        data.remove_prefix(part);
        if (last) return out;
    }
}

WandbFile::WandbFile(const std::string& folder, const WandbIdentity& who) : start_(wall_clock()) {
    const std::time_t seconds = std::time_t(start_);
    std::tm utc = {};
    gmtime_r(&seconds, &utc);
    char when[32];
    std::strftime(when, sizeof when, "%Y%m%d_%H%M%S", &utc);
    for (int tries = 0; fd_ < 0; ++tries) {  // a run that starts twice in a second
        const std::string more = tries > 0 ? format("_%d", tries) : "";
        const std::string own = folder + "/offline-run-" + when + more + "-" + who.id;
        make_folder(own + "/files");
        path_ = own + "/run-" + who.id + ".wandb";
        fd_ = again([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
        require(fd_ >= 0 || errno == EEXIST, "%s: cannot be created: %s", path_.c_str(), std::strerror(errno));
    }
    std::string header = ":W&B";
    put_raw(header, uint16_t(0xbee1));
    put_raw(header, uint8_t(0));
    write_all(fd_, 0, header.data(), int64_t(header.size()), path_);
    size_ = int64_t(header.size());
    std::string version;  // HeaderRecord: version_info = 1 {producer = 1, min_consumer = 2}
    put_bytes(version, 1, "0.19.0");
    put_bytes(version, 2, "0.10.0");
    std::string message;
    put_bytes(message, 1, version);
    require(write(kHeader, message) && write(kRun, run_message(who, start_)), "%s: cannot be written: %s",
            path_.c_str(), std::strerror(errno));
}

WandbFile::~WandbFile() {
    flush_row();
    ::close(fd_);
}

// A record that could be written in part only is taken back, so that what follows can be read.
bool WandbFile::write(int field, std::string_view message) {
    std::string record;
    put_int(record, 1, ++records_);
    put_bytes(record, field, message);
    const std::string bytes = log_record(record, size_);
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, size_ + off_t(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += size_t(n);
    }
    if (done == bytes.size()) {
        size_ += int64_t(done);
        return true;
    }
    const int error = errno;
    if (again([&] { return ::ftruncate(fd_, size_); }) != 0)
        errno = error;  // the next record goes to the same place in any case
    --records_;
    errno = error;
    return false;
}

bool WandbFile::flush_row() {
    if (row_.empty()) return true;
    const double wall = wall_clock();
    std::string message, step;
    for (const auto& [key, value] : row_) {
        put_bytes(message, 1, item(replace_invalid_utf8(key), json_of(value)));
        last_[key] = value;
    }
    put_bytes(message, 1, item("_timestamp", format("%.3f", wall)));
    put_bytes(message, 1, item("_runtime", format("%.3f", wall - start_)));
    put_bytes(message, 1, item("_step", std::to_string(step_)));
    put_int(step, 1, step_);
    put_bytes(message, 2, step);
    row_.clear();
    return write(kHistory, message);
}

bool WandbFile::history(int64_t step, const Scalars& scalars) {
    bool good = true;
    if (step != step_) good = flush_row();
    step_ = step;
    row_.insert(row_.end(), scalars.begin(), scalars.end());
    return good;
}

bool WandbFile::finish(int exit_code) {
    bool good = flush_row();
    std::string summary, end;
    for (const auto& [key, value] : last_) put_bytes(summary, 1, item(replace_invalid_utf8(key), json_of(value)));
    good &= write(kSummary, summary);
    put_int(end, 1, exit_code);
    put_int(end, 2, int64_t(wall_clock() - start_));
    good &= write(kExit, end);
    return good && again([&] { return ::fsync(fd_); }) == 0;
}

}  // namespace rz
