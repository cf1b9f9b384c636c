#pragma once
// Work that is enqueued once and then replayed by one call: a CUDA graph. It saves the host the launches, and the
// device the gaps between them.
//
// Launches are recorded by value: pointers, sizes and factors stay what they were when the graph was captured, so
// whatever changes from one replay to the next must be read from device memory. CUDA only: a CPU stream has nothing to
// save.

#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/runtime/device.h"

struct CUgraphExec_st;

namespace rz {

class Graph {
   public:
    Graph() = default;
    // Calls `enqueue` and records what it enqueues on `stream` (and on streams that wait for it, if it waits for them
    // again) instead of doing it. It must not synchronise, allocate device memory or wait for events from before.
    // Throws what `enqueue` throws, and then leaves the stream as it was.
    Graph(Stream& stream, const std::function<void()>& enqueue);

    explicit operator bool() const { return exec_ != nullptr; }
    int64_t nodes() const { return nodes_; }
    // Enqueues the recorded work. The graph must outlive it.
    void launch(Stream& stream) const;

   private:
    friend class Capture;
    std::shared_ptr<CUgraphExec_st> exec_;
    int64_t nodes_ = 0;
};

// Records a stream's work from construction to finish(). Without finish() what was recorded is dropped and the stream
// is as it was. Not movable; the stream must outlive it.
class Capture {
   public:
    explicit Capture(Stream&);
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    Graph finish();

   private:
    Stream& stream_;
    bool open_ = true;
};

// Pieces of work that recur. A piece is enqueued as it is the first time (libraries choose their algorithms then, which
// can't be recorded), recorded the second time, and replayed from then on. Its key names it and holds whatever it
// records by value that is not always the same: pointers into pools, shapes, factors. Another key is another piece, so
// nothing stale is ever replayed.
//
// Work that can't be recorded (ranks communicate, another stream works) goes through between(): it ends the graph
// that is being recorded, is done and kept, and another graph begins. A replay launches and does them in turn.
class GraphSet {
   public:
    using Key = std::vector<uint64_t>;
    template <class... T>
    static Key key(T... values) {
        return {word(values)...};
    }

    void run(Stream& stream, const Key& key, const std::function<void()>& enqueue);

    // run() in two halves. begin() replays the piece and returns false; or returns true: then the caller enqueues the
    // piece and calls end(), or abandon() if that throws. One piece at a time.
    bool begin(Stream& stream, const Key& key);
    void end();
    void abandon() noexcept;

    // Inside a piece: calls `work` now, and at each replay of a piece that is recorded, too. It holds by value whatever
    // is gone when this returns.
    void between(const std::function<void()>& work);

    int64_t recorded() const { return recorded_; }  // pieces, as replayed()
    int64_t replayed() const { return replayed_; }
    int64_t graphs() const { return graphs_; }
    // Beyond these pieces are enqueued as they are: keys that never come again would fill the memory.
    static constexpr size_t kMostPieces = 8192;

   private:
    template <class T>
    static uint64_t word(T value) {
        if constexpr (std::is_pointer_v<T>)
            return reinterpret_cast<uintptr_t>(value);
        else if constexpr (std::is_same_v<T, float>)
            return std::bit_cast<uint32_t>(value);
        else
            return uint64_t(value);
    }

    struct Part {
        Graph graph;                 // may be none: nothing was enqueued
        std::function<void()> work;  // after it, but for the last
    };
    using Piece = std::vector<Part>;  // none: seen once
    void cut(std::function<void()> work);

    std::map<Key, Piece> pieces_;
    std::unique_ptr<Capture> capture_;  // between begin() and end() of a piece that is recorded
    Piece* recording_ = nullptr;
    Stream* stream_ = nullptr;
    int64_t recorded_ = 0, replayed_ = 0, graphs_ = 0;
};

// The same for who may be inside a piece or not: nullptr, no.
inline void between_graphs(GraphSet* graphs, const std::function<void()>& work) {
    graphs ? graphs->between(work) : work();
}

}  // namespace rz
