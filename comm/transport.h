#pragma once
// Two verbs on byte ranges, enqueued on a stream: send and recv. A MessageGroup joins several of them so that they
// progress together; everything else in comm/ is built on that.
//
//   MessageGroup g;
//   g.send(a, bytes, right);                            // any number of sends and receives
//   g.recv(b, bytes, left);
//   Transfer t = transport.start(stream, g);            // in stream order: the messages begin to move
//   ...                                                 // work enqueued here overlaps them; it must not touch a or b
//   transport.finish(stream, t);                        // in stream order: a may be reused, b is there
//
// Messages between two ranks are matched in the order of their groups, and inside a group in order; there are no tags.
// A group's messages to oneself must come in pairs of equal size. A message of zero bytes is nothing: neither side may
// expect it. Sizes must agree on both sides; any size may be sent. Every wait ends at the deadline of the job's Watch.
//
// Transfers are finished in the order in which they were started.
//
// Nothing here blocks the calling thread. `data` must be memory of the transport's device. A transport must outlive the
// work enqueued through it, and one rank uses a transport from one stream at a time (different transports are
// independent).

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared_memory.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/names.h"

namespace rz {

// automatic: NCCL between CUDA devices that are not shared, else MPI or, in a job that was started without it, TCP; and
// nothing for a group of one. nccl_shared: NCCL between ranks that share a GPU, which only tests do.
enum class TransportKind { automatic, mpi, tcp, nccl, nccl_shared };
template <>
inline constexpr auto kNames<TransportKind> = std::to_array<Named<TransportKind>>({{TransportKind::automatic, "auto"},
                                                                                   {TransportKind::mpi, "mpi"},
                                                                                   {TransportKind::tcp, "tcp"},
                                                                                   {TransportKind::nccl, "nccl"},
                                                                                   {TransportKind::nccl_shared,
                                                                                    "nccl-shared"}});

// Messages of GPUs go through memory of the host.
constexpr bool over_host_memory(TransportKind kind) { return kind == TransportKind::mpi || kind == TransportKind::tcp; }

constexpr int64_t kNcclChunkBytes = int64_t(32) << 20;  // NCCL's good_chunk_bytes()

class Collectives;
struct CollectiveOptions;
class Watch;
class WireCheck;

struct Message {
    void* data;
    int64_t bytes;
    int peer;  // rank in the transport's group
    bool is_send;
};

class MessageGroup {
   public:
    void send(const void* data, int64_t bytes, int to) { add({const_cast<void*>(data), bytes, to, true}); }
    void recv(void* data, int64_t bytes, int from) { add({data, bytes, from, false}); }
    bool empty() const { return messages.empty(); }

    std::vector<Message> messages;
    uint64_t seq = 0;      // operation in the flight recorder that this group belongs to; 0: none
    bool is_last = false;  // it completes that operation

   private:
    void add(const Message& m) {
        if (m.bytes != 0) messages.push_back(m);
    }
};

// A started group. Copies share it.
struct Transfer {
    std::shared_ptr<void> state;
    std::shared_ptr<const void> arrivals = {};  // of check_wire()
};

class Transport {
   public:
    // `world_ranks[i]` is the rank in the job of member i; `rank` is this process's place among them.
    Transport(std::string group, int rank, std::vector<int> world_ranks, Device device, std::shared_ptr<Watch> watch);
    virtual ~Transport();
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    virtual const char* name() const = 0;  // "self", "mpi", "tcp", "nccl", "loopback"
    // Chunk size and lanes of the collectives. Through host memory: so small that a chunk is still in cache when it is
    // added (dev/results/communication.md).
    virtual int64_t good_chunk_bytes() const { return int64_t(1) << 20; }
    virtual int good_lanes() const { return 2; }
    // Makes a ring's `hops`, which send `bytes` together: move(hops). A transport that only tells the time may call
    // move with less, more than once.
    virtual void make_hops(Stream&, int hops, int64_t /*bytes*/, const std::function<void(int)>& move) { move(hops); }
    // Makes an exchange: body(). `shape` has all that decides its time on this transport: one that only tells the time
    // may call body() for the first of a shape alone.
    using Shape = std::array<int64_t, 6>;
    virtual void make_exchange(Stream&, const Shape&, const std::function<void()>& body) { body(); }
    int rank() const { return rank_; }
    int size() const { return int(world_ranks_.size()); }
    Device device() const { return device_; }
    const std::string& group() const { return group_; }
    int world_rank(int member) const { return world_ranks_[size_t(member)]; }
    Watch* watch() const { return watch_.get(); }  // may be nullptr

    Transfer start(Stream& stream, const MessageGroup& group);
    void finish(Stream& stream, const Transfer& transfer);

    void exchange(Stream& stream, const MessageGroup& group) { finish(stream, start(stream, group)); }
    void send(Stream& stream, const void* data, int64_t bytes, int to);
    void recv(Stream& stream, void* data, int64_t bytes, int from);

    // Bytes enqueued so far from this rank to others.
    int64_t bytes_sent() const { return bytes_sent_; }
    // From now on the bits of every message are summed (wire_check.h). Before the first start(); `stream` may be any of
    // the device. `damage`: whether an arriving message is to lose a bit, for tests.
    void check_wire(Stream& stream, std::function<bool()> damage);
    WireCheck* wire_check() const { return wire_check_.get(); }  // nullptr: nothing is summed

    // For what a library sends over the same group, past start().
    void count_sent(int64_t bytes) { bytes_sent_ += bytes; }

    // The library's own collectives over the same group (MPI's, NCCL's). Throws where there is none.
    virtual std::unique_ptr<Collectives> library_collectives(const CollectiveOptions& options);

    // Memory that the members map of each other, and in words why not more ("": it is their own); such memory. They ask
    // together. check_peers() throws if one is known to have failed: for waits that make no progress on messages.
    virtual Mapping mapping() { return Mapping::none; }
    virtual std::string mapping_note() { return ""; }
    virtual std::unique_ptr<SharedMemory> share(int64_t bytes, Alloc how);
    virtual void check_peers() {}
    // True: hier's two levels have communicators of their own, beside this one: NCCL gives a pair fewer channels in a
    // group of several nodes, also inside a node.
    virtual bool levels_apart() const { return false; }
    // True: a thread of the host waits for peers, also where the memory is a GPU's.
    virtual bool waits_on_host() const { return false; }
    // The next work reads so much of a peer's memory: takes its time on a planned device, else none.
    virtual void reads(Stream&, int /*from*/, int64_t /*bytes*/) {}

   protected:
    virtual Transfer do_start(Stream& stream, const MessageGroup& group) = 0;
    virtual void do_finish(Stream& stream, const Transfer& transfer) = 0;

   private:
    std::string group_;
    int rank_;
    std::vector<int> world_ranks_;
    Device device_;
    std::shared_ptr<Watch> watch_;
    int64_t bytes_sent_ = 0;
    std::unique_ptr<WireCheck> wire_check_;
};

// One process, no library: messages to oneself are copies.
class SelfTransport : public Transport {
   public:
    explicit SelfTransport(Device device, std::string group = "world", std::shared_ptr<Watch> watch = nullptr,
                           int world_rank = 0);
    const char* name() const override { return "self"; }

   protected:
    Transfer do_start(Stream& stream, const MessageGroup& group) override;
    void do_finish(Stream&, const Transfer&) override {}
};

}  // namespace rz
