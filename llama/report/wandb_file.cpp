#include "llama/report/wandb_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

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
    return bytes(kKey, key) + bytes(kValueJson, value_json);
}

std::string timestamp(double wall) {
    return whole(1, int64_t(wall)) + whole(2, int64_t((wall - std::floor(wall)) * 1e9));
}

std::string run_message(const WandbIdentity& who, double start) {
    std::string config;
    for (const auto& [key, value] : who.config)
        config += bytes(1, item(replace_invalid_utf8(key), Json(replace_invalid_utf8(value)).dump()));
    const bool resumes = who.first_step > 1;
    return bytes(1, who.id) + bytes(3, replace_invalid_utf8(who.project)) + bytes(4, config) +
           bytes(8, replace_invalid_utf8(who.name)) + bytes(13, host_name()) +
           (resumes ? whole(14, who.first_step) : "") + bytes(17, timestamp(start)) + (resumes ? whole(18, 1) : "");
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
        out += raw(crc32(checked)) + raw(uint16_t(part)) + checked;
        data.remove_prefix(part);
        if (last) return out;
    }
}

WandbFile::WandbFile(const std::string& folder, const WandbIdentity& who) : start_(wall_clock()) {
    const std::string when = utc_text("%Y%m%d_%H%M%S", start_);
    auto& [path, fd] = file_;
    for (int tries = 0; fd < 0; ++tries) {  // a run that starts twice in a second
        const std::string more = tries > 0 ? format("_%d", tries) : "";
        const std::string own = folder + "/offline-run-" + when + more + "-" + who.id;
        make_folder(own + "/files");
        path = own + "/run-" + who.id + ".wandb";
        fd = again([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
        require(fd >= 0 || errno == EEXIST, "%s: cannot be created: %s", path.c_str(), std::strerror(errno));
    }
    const std::string header = ":W&B" + raw(uint16_t(0xbee1)) + raw(uint8_t(0));
    write_all(fd, 0, header.data(), int64_t(header.size()), path);
    size_ = int64_t(header.size());
    const std::string version = bytes(1, "0.19.0") + bytes(2, "0.10.0");  // producer, min_consumer
    require(write(kHeader, bytes(1, version)) && write(kRun, run_message(who, start_)), "%s: cannot be written: %s",
            path.c_str(), std::strerror(errno));
}

WandbFile::~WandbFile() { flush_row(); }

// A record that could be written in part only is taken back, so that what follows can be read.
bool WandbFile::write(int field, std::string_view message) {
    const std::string record = log_record(whole(1, ++records_) + bytes(field, message), size_);
    const bool good = append_whole(file_.fd, record);
    good ? size_ += int64_t(record.size()) : --records_;
    return good;
}

bool WandbFile::flush_row() {
    if (row_.empty()) return true;
    const double wall = wall_clock();
    std::string message;
    for (const auto& [key, value] : row_) {
        message += bytes(1, item(replace_invalid_utf8(key), json_of(value)));
        last_[key] = value;
    }
    message += bytes(1, item("_timestamp", format("%.3f", wall)));
    message += bytes(1, item("_runtime", format("%.3f", wall - start_)));
    message += bytes(1, item("_step", std::to_string(step_))) + bytes(2, whole(1, step_));
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
    std::string summary;
    for (const auto& [key, value] : last_) summary += bytes(1, item(replace_invalid_utf8(key), json_of(value)));
    good &= write(kSummary, summary);
    good &= write(kExit, whole(1, exit_code) + whole(2, int64_t(wall_clock() - start_)));
    return good && again([&] { return ::fsync(file_.fd); }) == 0;
}

}  // namespace rz
