#pragma once
// Reads the next micro-batches of training on threads of its own, so that a slow disk or file system is waited for
// while the device works. What is read does not depend on it. All ranks of a host read through one page cache: each
// shard comes from the file system once per node.

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/runtime/memory.h"
#include "llama/base/fault.h"
#include "llama/data/data_loader.h"

namespace rz {

class ReadAhead {
   public:
    // Memory for `depth` micro-batches of B samples of T tokens, which `threads` threads will fill.
    ReadAhead(Device device, int64_t B, int64_t T, int64_t depth, int threads);
    ~ReadAhead();
    ReadAhead(const ReadAhead&) = delete;

    // Begins to read, once: the i-th micro-batch is that of `position(i)`, from 0 on. Both are used by several threads
    // until this object goes.
    void start(const SampleSource& data, std::function<int64_t(int64_t)> position);
    bool started() const { return data_ != nullptr; }

    // The next micro-batch, which is that of `position`: tokens (B, T), then targets (B, T); good until the next call.
    // Waits until it was read; throws what reading it threw.
    const int32_t* take(int64_t position);

   private:
    enum class State { empty, reading, full };
    struct Slot {
        Buffer memory;
        State state = State::empty;
        int64_t position = 0;
        std::exception_ptr error;
    };
    void work();

    const int64_t B_, T_;
    const int threads_wanted_;
    Faults faults_;
    const SampleSource* data_ = nullptr;
    std::function<int64_t(int64_t)> position_;
    std::mutex mutex_;
    std::condition_variable to_read_, was_read_;
    std::vector<Slot> slots_;                 // of micro-batch i: i % depth
    int64_t next_read_ = 0, next_taken_ = 0;  // micro-batches
    bool stops_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace rz
