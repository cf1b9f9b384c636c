#pragma once
// Work with files that training does not wait for, on a thread of its own and in order: a file system that hangs then
// holds up no step.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "llama/base/fault.h"

namespace rz {

class Background {
   public:
    // Without a thread (the system has none left) each task is done by whoever adds it.
    Background();
    // Does what is left first, and says how many tasks were dropped.
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // The task must not throw. Beyond kMost that wait, it is dropped and counted.
    void add(std::function<void()> task);
    // Waits until all that was added before is done.
    void finish();
    // Seconds since the task under way began; 0 if there is none.
    double busy_seconds() const;

    static constexpr size_t kMost = 100000;

   private:
    void work();

    Faults faults_ = Faults::here();
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    double began_ = 0;  // of the task under way, on monotonic_clock(); 0: none
    int64_t dropped_ = 0, added_ = 0, done_ = 0;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace rz
