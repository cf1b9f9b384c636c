#include "llama/data/read_ahead.h"

#include <utility>

#include "kernels/runtime/check.h"

namespace rz {

ReadAhead::ReadAhead(Device device, int64_t B, int64_t T, int64_t depth, int threads)
    : B_(B), T_(T), threads_wanted_(threads), faults_(Faults::here()), slots_(size_t(depth)) {
    const int64_t bytes = checked_mul(8, checked_mul(B, T, "micro-batch"), "micro-batch");
    for (Slot& s : slots_) s.memory = Buffer::host_for(device, bytes, MemKind::data, "tokens read ahead");
}

ReadAhead::~ReadAhead() {
    {
        std::lock_guard lock(mutex_);
        stops_ = true;
    }
    to_read_.notify_all();
    for (std::thread& t : threads_) t.join();
}

void ReadAhead::start(const SampleSource& data, std::function<int64_t(int64_t)> position) {
    require(!data_, "batches are read ahead already");
    data_ = &data;
    position_ = std::move(position);
    for (int i = 0; i < threads_wanted_; ++i) threads_.emplace_back([this] { work(); });
}

void ReadAhead::work() {
    const FaultScope scope(faults_);
    std::unique_lock lock(mutex_);
    for (;;) {
        // A slot is free when its micro-batch was taken, and the one after it asked for.
        to_read_.wait(lock, [&] { return stops_ || slots_[size_t(next_read_) % slots_.size()].state == State::empty; });
        if (stops_) return;
        const int64_t i = next_read_++;
        Slot& slot = slots_[size_t(i) % slots_.size()];
        slot.state = State::reading;
        lock.unlock();
        std::exception_ptr error;
        int64_t position = 0;
        try {
            position = position_(i);
            int32_t* const tokens = slot.memory.as<int32_t>();
            data_->batch(position, B_, tokens, tokens + B_ * T_);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        slot.position = position;
        slot.error = error;
        slot.state = State::full;
        was_read_.notify_all();
    }
}

const int32_t* ReadAhead::take(int64_t position) {
    std::unique_lock lock(mutex_);
    require(data_, "nothing is read ahead yet");
    if (next_taken_ > 0) {
        slots_[size_t(next_taken_ - 1) % slots_.size()].state = State::empty;
        to_read_.notify_one();
    }
    Slot& slot = slots_[size_t(next_taken_++) % slots_.size()];
    was_read_.wait(lock, [&] { return slot.state == State::full; });
    if (slot.error) std::rethrow_exception(slot.error);
    require(slot.position == position, "samples from %ld on were read ahead, and those from %ld on are asked for",
            slot.position, position);
    return slot.memory.as<int32_t>();
}

}  // namespace rz
