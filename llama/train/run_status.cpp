#include "llama/train/run_status.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "comm/exit_codes.h"
#include "comm/host.h"
#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/train/stop.h"
#include "llama/base/version.h"
#include "llama/base/clock.h"

namespace rz {

static std::string path_in(const std::string& folder) { return folder + "/run_status.json"; }

// As it stands there; null where there is none. Throws where it can't be read.
static Json record_in(const std::string& folder) {
    const std::string path = path_in(folder);
    return path_exists(path) ? parse_json(read_file(path), path) : Json();
}

static int64_t number_in(const Json& record, const char* name) {
    const Json* value = json_find(record, name);
    return value && value->is_number_integer() ? std::max<int64_t>(-1, value->get<int64_t>()) : -1;
}

static bool has_state(const Json& record, const char* name) {
    const Json* state = json_find(record, "state");
    return state && *state == name;
}

RunStatus::RunStatus(std::string folder, int rank, int ranks, int64_t steps, Background* files)
    : folder_(std::move(folder)),
      started_(utc_text(kTimeForm)),
      rank_(rank),
      ranks_(ranks),
      steps_(steps),
      files_(files) {
    if (rank_ != 0 || folder_.empty()) return;
    try {
        const Json there = record_in(folder_);
        before_ = there.dump();
        saved_step_ = number_in(there, "saved_step");
    } catch (const Error& error) {
        std::fprintf(stderr, "train_llama: %s\n", error.what());
        saved_step_ = kUnreadable;
    }
}

void RunStatus::write_running() {
    const auto work = [this] {
        std::lock_guard lock(mutex_);
        write("running", 0, "", rank_, /*durable=*/false);
    };
    files_ ? files_->add(work) : work();
}

void RunStatus::running(int64_t step) {
    step_ = step;
    begun_ = true;
    if (rank_ != 0 || monotonic_clock() - written_ < 1) return;
    written_ = monotonic_clock();
    write_running();
}

void RunStatus::saved(int64_t step) {
    saved_step_ = step;
    if (rank_ == 0) write_running();
}

void RunStatus::ends(const char* state, int64_t step, int exit_code, const std::string& reason) {
    if (files_) files_->finish();
    std::lock_guard lock(mutex_);
    step_ = step;
    if (rank_ == 0) write(state, exit_code, reason, rank_, /*durable=*/true);
    ended_ = true;
}

static bool has_finished(const std::string& folder) try {
    return !folder.empty() && has_state(record_in(folder), "finished");
} catch (const Error&) {
    return false;
}

void RunStatus::failed(int exit_code, const std::string& reason, int rank) {
    std::unique_lock lock(mutex_, std::chrono::seconds(3));  // a write that hangs has it
    if (!lock || ended_ || (!begun_ && (exit_code == kExitRequest || has_finished(folder_) || !path_exists(folder_))))
        return;
    ended_ = true;
    write("failed", exit_code, reason, rank < 0 ? rank_ : rank, /*durable=*/true);
}

// Rank 0's saves, and of how many steps, are not known to another rank: it leaves what stands there. How another
// rank ended stays, too, while rank 0 does not know of it.
std::string RunStatus::record(const char* state, int exit_code, const std::string& reason, int rank) const {
    OrderedJson json = {{"state", state},
                        {"step", step_.load()},
                        {"steps", steps_.load()},
                        {"saved_step", std::max<int64_t>(-1, saved_step_)},
                        {"exit_code", exit_code},
                        {"reason", reason},
                        {"rank", rank},
                        {"host", host_name()},
                        {"pid", int(getpid())},
                        {"ranks", ranks_},
                        {"started", started_},
                        {"updated", utc_text(kTimeForm)},
                        {"rollbacks", rollbacks_.load()},
                        {"commit", build_commit()}};
    try {
        Json there = record_in(folder_);
        if (rank_ != 0) {
            for (const char* name : {"saved_step", "rollbacks"})
                if (const int64_t value = number_in(there, name); value >= 0) json[name] = value;
        } else if (std::strcmp(state, "running") == 0 && has_state(there, "failed") && there.dump() != before_) {
            for (const char* name : {"saved_step", "rollbacks"}) there[name] = json[name];
            json = std::move(there);
        }
    } catch (const Error&) {  // there is none yet, or none that can be read
    }
    return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

// Open while it is this rank's turn: a record is read and replaced by one rank at a time. Where the file system has no
// such lock, or a rank hangs with it, the turn comes all the same.
static OpenFile turn_in(const std::string& folder) {
    OpenFile turn(folder, open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int ms = 0; turn.fd >= 0 && flock(turn.fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && ms < 1000; ++ms)
        usleep(1000);
    return turn;
}

// Plain calls: an injected or real fault of the checkpoint's files must not keep the reason from being written.
void RunStatus::write(const char* state, int exit_code, const std::string& reason, int rank, bool durable) {
    if (folder_.empty() || (ended_ && std::strcmp(state, "running") == 0)) return;
    const OpenFile turn = turn_in(folder_);
    const std::string text = record(state, exit_code, reason, rank);
    const std::string path = path_in(folder_), temporary = format("%s.tmp-%d", path.c_str(), rank_);
    unlink(temporary.c_str());  // of an earlier start; nor is a link followed
    const int fd = again([&] { return open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    bool good = fd >= 0 && ::write(fd, text.data(), text.size()) == ssize_t(text.size());
    if (good && durable) good = again([&] { return fsync(fd); }) == 0;
    if (fd >= 0) good = close_once(fd) == 0 && good;
    good = good && again([&] { return rename(temporary.c_str(), path.c_str()); }) == 0;
    if (good) return;
    const int error = errno;
    unlink(temporary.c_str());
    if (!warned_) std::fprintf(stderr, "train_llama: can't write %s: %s\n", path.c_str(), std::strerror(error));
    warned_ = true;
}

}  // namespace rz
