#pragma once
// Canaries for bits that change between two ranks' memories (--check-wire): the sender sums the bits of each message
// before it leaves, the receiver when it has arrived, and now and then the ranks compare. What is summed is the memory
// itself, in stream order, on any device and over any transport; nothing is added to a message.
//
// Messages between two ranks in a group are counted from the start of each step. The k-th of every step goes to sum
// k % kWireSums of that pair, on both sides: where a sum differs, the bucket (the operation of the message) is
// known, unless a step has more messages than sums.
//
//   memory    kWireSums x 16 bytes for each member of each group (16 bytes: sent and received)
//   traffic   a comparison sends 8 bytes up a tree of the ranks and back; where something differs, more
//   time      one read of each byte that is sent and of each that is received
//
// Not seen: what a library sends in its own collectives, and memory that ranks map from each other.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "kernels/runtime/memory.h"

namespace rz {

class Process;

constexpr int64_t kWireSums = 256;

// The check of one rank in one group. A transport calls it around each group of messages.
class WireCheck {
   public:
    // True: the message that is arriving is to lose a bit, for tests. nullptr: none.
    using Damage = std::function<bool()>;

    WireCheck(Stream& stream, const Transport& transport, Damage damage);
    ~WireCheck();

    // Enqueue the sums of what is sent, and give a place to what will arrive.
    struct Arrivals;
    std::shared_ptr<const Arrivals> leaving(Stream& stream, const MessageGroup& group);
    // Enqueues the sums of what has arrived.
    void arrived(Stream& stream, const Arrivals& arrivals);
    // Messages are counted from here on.
    void begin_step();

   private:
    friend std::string wire_difference(Process&, Stream&, const std::vector<WireCheck*>&);
    struct Label {
        char op[20] = {};
        uint64_t number = 0;  // of the operation, in its group
        int64_t bytes = 0;
    };
    struct Side {  // of one peer: what goes there, or what comes from there
        int64_t next = 0, most = 0;
        std::vector<Label> labels;  // by sum
    };
    Side& side(bool arrives, int peer) { return sides_[size_t(arrives ? transport_.size() + peer : peer)]; }
    int64_t place(bool arrives, int peer, int64_t sum) const {
        return ((arrives ? transport_.size() : 0) + peer) * kWireSums + sum;
    }
    int64_t next(bool arrives, const Message& m, const Label& label);
    void read_and_clear(Stream& stream);
    std::string name(bool arrives, int peer) const;
    uint64_t fold(bool arrives, int peer) const;
    std::string sums(bool arrives, int peer) const;

    const Transport& transport_;
    const Damage damage_;
    std::vector<Side> sides_;
    Buffer sums_;  // uint64_t by place()
    std::vector<uint64_t> read_;
    Event last_;  // after the latest sum
};

// Compares what has been sent and received since the last call, in all groups: "", or from which rank to which, and in
// which operation, bits have changed. Collective, between two steps; the same text on all ranks. `stream`: any of the
// device.
std::string wire_difference(Process& process, Stream& stream, const std::vector<WireCheck*>& checks);

}  // namespace rz
