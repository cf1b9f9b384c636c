#pragma once
// The planned device: a run without the device. It has no threads; a stream is a virtual clock in integer ticks. Work
// that is enqueued starts when the stream and the host have come that far, and moves the stream's clock by what the
// caller's cost function says; an event is a time; to wait for one moves a clock to it, if that is later.
//
//   memory   charged: addresses not to be read or written, any amount; host memory is there, and zero at first
//            real, with `executes`: ops run on it, on the calling thread, when they are enqueued
//   ops      costed, always; and executed, with `executes`, as the CPU's
//
// Host functions (Stream::enqueue_host) run if ops do, and take no time.

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <typeinfo>

namespace rz {

class Stream;

using Ticks = int64_t;  // picoseconds
constexpr int64_t kTicksPerSecond = 1'000'000'000'000;
constexpr double kSecondsPerTick = 1e-12;

// A stream's request, as a cost function sees it.
struct OpCall {
    const char* label = nullptr;           // "copy", "zero", or what the op calls itself; nullptr: nothing
    const std::type_info* type = nullptr;  // of an op's arguments; nullptr: a copy or a fill
    const void* args = nullptr;
    int64_t bytes = 0;  // of a copy or a fill

    // The arguments, if it is this op: if (const Gemm* g = op.as<Gemm>()) ...
    template <class Args>
    const Args* as() const {
        return type && *type == typeid(Args) ? static_cast<const Args*>(args) : nullptr;
    }
    std::string name() const;  // as op timers name it
};

// The planned machine of one rank. To be set before its first stream and buffer are made.
struct PlannedMachine {
    std::function<Ticks(const OpCall&, const Stream&)> cost;  // empty: nothing takes time
    bool executes = false;
    int capability = 0;  // of a GPU: compute_capability(); 0: it stands for a CPU
    int64_t memory_bytes = std::numeric_limits<int64_t>::max();  // what buffers may take; beyond it they throw
    Ticks host = 0;  // the host's clock: it moves when the host waits for a stream or an event
};

namespace detail {
// `usable`: may be read and written, and is zero. nullptr if there are no more addresses.
void* reserve_addresses(int64_t bytes, bool usable);
void release_addresses(void* data, int64_t bytes);
}  // namespace detail

}  // namespace rz
