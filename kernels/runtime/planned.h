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

#include "kernels/runtime/op_call.h"

namespace rz {

class Stream;

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
