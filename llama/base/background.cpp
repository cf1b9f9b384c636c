#include "llama/base/background.h"

#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include "llama/base/clock.h"

namespace rz {

Background::Background() {
    try {
        thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {
    }
}

Background::~Background() {
    {
        std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (dropped_ > 0)
        std::fprintf(stderr, "train_llama: %ld writes of records were left out: the file system did not keep up\n",
                     dropped_);
}

void Background::add(std::function<void()> task) {
    if (!thread_.joinable()) return task();
    {
        std::lock_guard lock(mutex_);
        if (tasks_.size() >= kMost) {
            ++dropped_;
            return;
        }
        tasks_.push_back(std::move(task));
        ++added_;
    }
    changed_.notify_all();
}

void Background::finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, before = added_] { return done_ >= before; });
}

double Background::busy_seconds() const {
    std::lock_guard lock(mutex_);
    return began_ > 0 ? monotonic_clock() - began_ : 0;
}

void Background::work() {
    const FaultScope armed(faults_);
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        const std::function<void()> task = std::move(tasks_.front());
        tasks_.pop_front();
        began_ = monotonic_clock();
        lock.unlock();
        try {
            task();
        } catch (const std::exception&) {  // no memory: nothing that training needs is done here
        }
        lock.lock();
        began_ = 0;
        ++done_;
        changed_.notify_all();
    }
}

}  // namespace rz
