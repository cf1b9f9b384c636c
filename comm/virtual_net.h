#pragma once
// A virtual network: ranks are fibers of one process on planned devices (kernels/runtime/planned.h), and the transports
// between them keep virtual time, in whole picoseconds. The collectives, ZeRO and the program run on it as they are,
// over a thousand ranks and more, and take the same time in every run.
//
//   VirtualNet net(512, machine);
//   const Ticks end = net.run([&](int rank) {
//       auto transport = net.transport(rank);
//       Stream stream(net.device(rank), "communication");
//       make_collectives(Algorithm::hier, *transport, {.nodes = 64})->all_reduce(stream, ...);
//       return stream.clock();
//   });
//
// A message from a to b
//   is ready    when both sides have posted it: a rendezvous, without buffers
//   leaves      through a's port, first come, first served; it holds the port for its bytes at the port's rate and for
//               the cost of a message
//   arrives     a latency later at b's port, which takes arrivals in order and holds each as long
// The sender is done when the last byte has left, the receiver when it has arrived. Ports: the links of a node, one out
// and one in for each rank; network cards, one out and one in for each rank, or fewer that the ranks of a node share.
// Between the ports nothing blocks. A message to oneself is a copy in memory.
//
// `ordered`: the groups of one transport move one after the other, as on one NCCL communicator; else independently, as
// on several, or over MPI. `group_gap` lies between what a group depends on and its first byte; it is hidden where an
// earlier group still moves. Ops take `op_gap` and their bytes at the memory's rate, unless `cost` is set.
//
// Not modelled: switches, PCIe, NCCL's channels and protocols, multiprocessors. Where a rank has several streams that
// communicate, a message may be posted that is earlier than one that has moved: it takes the port after it.
//
// With `executes`, memory is real, ops run and bytes move; else memory is addresses only, and time is all there is.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "comm/fibers.h"
#include "comm/transport.h"
#include "kernels/runtime/context.h"

namespace rz {

constexpr Ticks kMicrosecond = kTicksPerSecond / 1'000'000;

// The defaults are those of H100 nodes: llama/configs/machines/h100-80g.toml has where each comes from.
struct NetMachine {
    int ranks_per_node = 8;
    int cards = 8;                    // of a node
    int64_t link_rate = 370'000;      // MB/s, which is bytes per microsecond; one direction, for each rank
    int64_t card_rate = 46'000;       // one direction, of each card
    int64_t memory_rate = 2'700'000;  // bytes read and written by an op; 0: in no time
    Ticks link_latency = 3 * kMicrosecond, card_latency = 8 * kMicrosecond;
    Ticks link_message = kMicrosecond / 5,
          card_message = kMicrosecond / 2;  // of a port, for a message beyond its bytes
    Ticks group_gap = 10 * kMicrosecond, op_gap = 5 * kMicrosecond;
    bool ordered = true;
    bool in_turn = false;  // rank r is on node r % nodes: a launcher that fills the hosts in turn

    NetMachine without_gaps() const;
    NetMachine without_message_cost() const;
};
// Ticks that bytes take at a rate in MB/s, rounded up.
Ticks ticks_of(int64_t bytes, int64_t rate);

// Bound on algorithms that sum outside the network: the bytes that must leave a node, over all of its cards,
// and those that must leave a rank, over link and card together, and one latency. Loose where costs of messages, gaps
// and sums matter, which are not in it: for few bytes, and by the sums of the last step for many. `passes`: 1 for
// reduce-scatter or all-gather, 2 for all-reduce (Patarasuk and Yuan 2009).
Ticks collective_bound(const NetMachine&, int ranks, int passes, int64_t bytes);

class VirtualNet {
   public:
    VirtualNet(int ranks, const NetMachine& machine, bool executes = false, size_t stack_bytes = size_t(512) << 10);
    ~VirtualNet();

    // body(rank) for each; it returns when its last stream ends. The latest of those. Throws the first error of a rank,
    // or which messages only one side has posted.
    Ticks run(const std::function<Ticks(int rank)>& body);

    int size() const { return int(contexts_.size()); }
    int nodes() const { return nodes_; }
    const NetMachine& machine() const { return machine_; }
    std::vector<int> node_of_ranks() const;
    Device device(int rank) { return {DeviceKind::planned, 0, &contexts_[size_t(rank)]}; }
    RankContext& context(int rank) { return contexts_[size_t(rank)]; }
    // The group of all ranks, or of `members`, which contain `rank`. Groups with other names are other communicators.
    std::unique_ptr<Transport> transport(int rank);
    std::unique_ptr<Transport> transport(int rank, const std::vector<int>& members, const std::string& name);
    void yield() { fibers_.yield(); }

    // Through the busiest port out.
    int64_t busiest_card_bytes() const;
    int64_t busiest_link_bytes() const;
    // Bytes from a rank to others.
    int64_t bytes_sent(int rank) const { return sent_[size_t(rank)]; }

   private:
    friend class VirtualTransport;
    struct Moving {  // a group under way
        int rank = 0, pending = 0;
        bool awaited = false;
        Ticks done = 0;
    };
    struct Team {  // a communicator: what one side of a pair has posted, by source * size + destination
        std::vector<int> members, first, last;
    };
    struct Wire {  // a message, from its first post on
        int64_t bytes = 0;
        const void* from = nullptr;
        void* to = nullptr;
        Ticks ready = 0;
        int source = 0, destination = 0;  // ranks
        std::shared_ptr<Moving> sender, receiver;
        int next = -1;
        bool by_sender = false;
        uint64_t key = 0;  // of two that are ready at once, the one earlier in its sender's group goes first
    };
    struct Port {
        Ticks free = 0;
        int64_t bytes = 0;
    };
    struct NetEvent {
        Ticks time;
        uint64_t key;
        int wire;
        bool arrival;
        bool operator<(const NetEvent& o) const {  // the queue's top is the earliest
            return std::tie(o.time, o.key, o.wire) < std::tie(time, key, wire);
        }
    };
    std::shared_ptr<Moving> start(Team& team, int place, Stream& stream, const MessageGroup& group,
                                  const std::shared_ptr<Moving>& before);
    Ticks wait(Moving& moving);
    void post(Team& team, int place, const Message& m, Ticks time, const std::shared_ptr<Moving>& moving,
              uint64_t order);
    std::string next_happening();
    void leave(const NetEvent& h);
    void arrive(const NetEvent& h);
    void complete(Moving& moving, Ticks time);
    bool same_node(const Wire& w) const { return node_of_[size_t(w.source)] == node_of_[size_t(w.destination)]; }
    Ticks occupy(const Wire& w, int rank, int direction, Ticks time);
    std::string one_sided() const;

    NetMachine machine_;
    bool executes_;
    int nodes_;
    std::vector<int> node_of_, card_of_;
    std::deque<RankContext> contexts_;
    std::vector<Port> links_, cards_;  // out and in of each
    std::vector<int64_t> sent_;        // bytes, by rank
    std::map<std::string, Team> teams_;
    std::vector<Wire> wires_;
    std::vector<int> spare_;
    std::priority_queue<NetEvent> happenings_;
    Fibers fibers_;
};

}  // namespace rz
