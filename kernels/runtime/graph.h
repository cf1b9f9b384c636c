#pragma once
// Work that is enqueued once and then replayed by one call: a CUDA graph. It saves the host the launches, and the device the gaps
// between them.
//
// Launches are recorded by value: pointers, sizes and factors stay what they were when the graph was captured, so whatever
// changes from one replay to the next must be read from device memory. CUDA only: a CPU stream has nothing to save.

#include <functional>
#include <memory>

#include "kernels/runtime/device.h"

struct CUgraphExec_st;

namespace rz {

class Graph {
   public:
    Graph() = default;
    // Calls `enqueue` and records what it enqueues on `stream` (and on streams that wait for it, if it waits for them again)
    // instead of doing it. It must not synchronise, allocate device memory or wait for events from before. Throws what `enqueue`
    // throws, and then leaves the stream as it was.
    Graph(Stream& stream, const std::function<void()>& enqueue);

    explicit operator bool() const { return exec_ != nullptr; }
    int64_t nodes() const { return nodes_; }
    // Enqueues the recorded work. The graph must outlive it.
    void launch(Stream& stream) const;

   private:
    std::shared_ptr<CUgraphExec_st> exec_;
    int64_t nodes_ = 0;
};

}  // namespace rz
