#include "llama/checkpoint/after_save.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/clock.h"
#include "llama/base/shell.h"

namespace rz {

// Seconds before the second and the third attempt.
constexpr double kPauses[] = {1, 10};

AfterSave::AfterSave(std::string command, CheckpointStore store)
    : command_(std::move(command)), store_(std::move(store)) {
    for (const int64_t step : store_.marked()) waiting_.push_back(step);
    if (!waiting_.empty())
        lines_.push_back(format("hook     --after-save was not done for %zu checkpoint%s of an earlier start: now",
                                waiting_.size(), waiting_.size() == 1 ? "" : "s"));
    try {
        thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
        lines_.push_back(
            format("hook     no thread for --after-save (%s): checkpoints wait for the next start", error.what()));
    }
}

AfterSave::~AfterSave() {
    {
        std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void AfterSave::saved(int64_t step) {
    {
        std::lock_guard lock(mutex_);
        waiting_.insert(waiting_.end(), failed_.begin(), failed_.end());
        failed_.clear();
        if (std::find(waiting_.begin(), waiting_.end(), step) == waiting_.end()) waiting_.push_back(step);
    }
    changed_.notify_all();
}

std::vector<std::string> AfterSave::lines() {
    std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
}

void AfterSave::finish(double seconds) {
    std::unique_lock lock(mutex_);
    const auto idle = [this] { return waiting_.empty() && !busy_; };
    if (thread_.joinable()) changed_.wait_for(lock, std::chrono::duration<double>(seconds), idle);
    const size_t left = waiting_.size() + failed_.size() + (busy_ ? 1 : 0);
    if (left > 0)
        lines_.push_back(format("hook     --after-save is not done for %zu checkpoint%s: the next start tries again",
                                left, left == 1 ? "" : "s"));
}

void AfterSave::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
        if (ends_) return;
        const int64_t step = waiting_.front();
        waiting_.pop_front();
        busy_ = true;
        lock.unlock();
        run(step);
        lock.lock();
        busy_ = false;
        changed_.notify_all();
    }
}

// Returns true once the step is settled.
bool AfterSave::run_once(int64_t step, std::string& problem) {
    const std::string folder = store_.path(step);
    const ShellCommand command{.text = command_,
                               .environment = {"RINGZERO_CHECKPOINT=" + folder, "RINGZERO_STEP=" + std::to_string(step),
                                               "RINGZERO_OUT=" + parent_folder(store_.folder())}};
    problem = run_shell(command, [this] {
        std::lock_guard lock(mutex_);
        return ends_;
    });
    if (!problem.empty()) return false;
    try {
        store_.unmark(step);
    } catch (const Error& error) {  // it will be done once more
        problem = error.what();
    }
    return true;
}

void AfterSave::run(int64_t step) try {
    if (!path_exists(store_.path(step))) {  // abandoned, or moved aside
        store_.unmark(step);
        return;
    }
    std::string problem;
    for (size_t attempt = 0; !run_once(step, problem); ++attempt) {
        std::unique_lock lock(mutex_);
        if (attempt < std::size(kPauses)) {
            changed_.wait_for(lock, std::chrono::duration<double>(kPauses[attempt]), [this] { return ends_; });
            if (!ends_) continue;
        } else {
            lines_.push_back(
                format("hook     --after-save %s for step %ld, %zu times: the checkpoint stays, and the "
                       "next one tries again",
                       problem.c_str(), step, attempt + 1));
        }
        failed_.push_back(step);
        return;
    }
} catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    failed_.push_back(step);
    lines_.push_back(format("hook     --after-save of step %ld: %s", step, error.what()));
}

std::string run_before_resume(const std::string& command, const std::string& run, double seconds) {
    const double end = monotonic_clock() + seconds;
    std::string problem;
    for (int attempt = 0; attempt < 3; ++attempt) {
        problem =
            run_shell({.text = command,
                       .environment = {"RINGZERO_CHECKPOINT=" + CheckpointStore(run).folder(), "RINGZERO_OUT=" + run},
                       .seconds = std::max(1.0, end - monotonic_clock())});
        if (problem.empty() || monotonic_clock() + 1 >= end) break;
    }
    return problem;
}

}  // namespace rz
