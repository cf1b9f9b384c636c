#pragma once
// The ranks of a job on named axes (comm/grid.h), each axis with the group of ranks that stand on it together, and the
// links between neighbours on the pp axis. Everything is made by the constructor, in one order on every rank:
// communicators made on first use, in different orders, hang.
//
//   mesh.data().all_reduce(...)            collectives; data().rank() and data().size() are this rank's place
//   mesh.place(Axis::dp)                   dp has a place and no collectives: gradients are summed over data
//   mesh.link_to(next).send(p, bytes)      enqueued on the link's stream, met by link_from(here).recv() there
//
// Which streams the collectives may be on, all enqueued by one thread of the host, in one order on all ranks:
//
//   CPU memory               any; ranks may even enqueue different groups in different order
//   CUDA memory over NCCL    several, as long as what is under way together finds room on the GPU (thresholds.h)
//   CUDA memory over MPI     one stream for all groups and links: CUDA may run the host functions of all streams on one
//                            thread, where two groups that wait would block each other
//
// data, shard and replicate are on stream(), and so are pp and model. tp and cp have streams of their own but in the
// last case: compute waits for what they bring, which must not stand behind a unit's parameters on their way over the
// network. data, shard and replicate are one group where they have the same members; the others never share one with
// them.

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "comm/planned_transport.h"
#include "comm/grid.h"
#include "comm/nccl_memory.h"
#include "comm/thresholds.h"
#include "kernels/runtime/memory.h"

namespace rz {

class LoopbackHub;
class Process;
class VirtualNet;

struct MeshOptions {
    GridOptions grid = {};
    TransportKind transport = TransportKind::automatic;
    AxisAlgorithms algorithms = {};  // cp, pp and model sum in ascending rank order
    int ranks_per_node = 0;          // 0: as the launcher placed them, or as grid.nodes has it
    int reserved_sms = 0;            // multiprocessors of a GPU, for communication alone (--comm-sms)
    CollectiveOptions collectives = {};
    bool one_lane = false;    // all links on stream(); always so for CUDA memory over MPI
    bool check_wire = false;  // sum the bits of every message (wire_check.h)
    StepMessages messages = {};
    std::function<bool()> damage_wire = {};  // of tests: whether an arriving message is to lose a bit
};

// Room of one operation over NCCL, and of all that may be under way together on a GPU.
struct NcclRoom {
    NcclBlocks each;
    int lanes, groups;  // a pipeline's, both directions; data or its row and column, tp, cp, pp
    int hands;          // groups that only shake hands: model
    bool is_limited() const { return each.lane > 0 || each.group > 0; }
    int together() const { return lanes * each.lane + groups * each.group + hands; }
};
NcclRoom nccl_room(const Grid& grid, const AxisAlgorithms&, int multiprocessors, int reserved_sms);

// Refuses a --comm-sms that can't be met; the mesh asks, and the plan, for a machine that isn't here.
// `multiprocessors`: of the GPU, 0: not known.
void check_reserved_sms(int reserved_sms, int multiprocessors, bool cpu, bool nccl, const Grid& grid,
                        const AxisAlgorithms&);

// One direction between two neighbours on the pp axis: a transport of its own, and a stream of its own unless the mesh
// has one lane. The k-th send is met by the k-th recv; sizes must agree.
class Link {
   public:
    Link(std::unique_ptr<Transport> transport, int peer, std::unique_ptr<Stream> own_stream, Stream& stream)
        : transport_(std::move(transport)), peer_(peer), own_stream_(std::move(own_stream)), stream_(stream) {}

    int peer() const { return peer_; }          // on the pp axis
    Stream& stream() const { return stream_; }  // where messages are enqueued, in order
    // Enqueue and return. `data` may be used again, or is there, once the stream has passed the call.
    // `what` is the operation's name in the flight recorder, the same on both sides.
    void send(const void* data, int64_t bytes, const char* what = "transfer");
    void recv(void* data, int64_t bytes, const char* what = "transfer");
    int64_t bytes_sent() const { return transport_->bytes_sent(); }
    WireCheck* wire_check() const { return transport_->wire_check(); }

   private:
    void move(const Message& message, const char* what);

    std::unique_ptr<Transport> transport_;  // of two members: 0 sends, 1 receives
    int peer_;
    std::unique_ptr<Stream> own_stream_;
    Stream& stream_;
};

// The axes that what a rank sends counts under: shard's under data.
inline constexpr std::array kCountedAxes = {Axis::tp, Axis::cp, Axis::pp, Axis::data, Axis::replicate, Axis::model};
using BytesByAxis = std::array<int64_t, kCountedAxes.size()>;

class Mesh {
   public:
    // Collective over all ranks.
    Mesh(Process& process, Device device, const MeshOptions& options = {});
    // One process, no launcher.
    explicit Mesh(Device device, const MeshOptions& options = {});
    // A rank of an in-process loopback.
    Mesh(LoopbackHub& hub, int rank, const MeshOptions& options = {});
    // A rank of a virtual network.
    Mesh(VirtualNet& net, int rank, const MeshOptions& options = {});
    // Rank `rank` of `size` on a planned device, without the others (planned_transport.h) but for `peers`.
    Mesh(Device device, int rank, int size, const PlannedNetwork& network, const MeshOptions& options = {},
         PlannedPeers* peers = nullptr);
    // The same with one link for all.
    Mesh(Device device, int rank, int size, const PlannedLink& link, const MeshOptions& options = {});
    ~Mesh();

    const Grid& grid() const { return grid_; }
    // The resolved --collectives of data, shard and replicate.
    Algorithm algorithm() const { return *options_.algorithms.data; }
    AxisRank world() const { return world_; }  // in the job
    AxisRank place(Axis axis) const { return grid_.place(axis, world_.rank); }

    // The group of the ranks that stand on an axis with this one.
    Collectives& on(Axis axis) const { return *axes_[size_t(axis)]; }
    Collectives& tp() const { return on(Axis::tp); }
    Collectives& cp() const { return on(Axis::cp); }
    Collectives& pp() const { return on(Axis::pp); }
    Collectives& data() const { return on(Axis::data); }
    Collectives& shard() const { return on(Axis::shard); }
    Collectives& replicate() const { return on(Axis::replicate); }
    Collectives& model() const { return on(Axis::model); }

    // Numbers of the host, any count: `own` of each member of model(), in their order, on each. Collective over
    // model(), on `stream`, which is waited for. A planned rank alone takes the others to have the same.
    std::vector<std::vector<int64_t>> gather_over_model(Stream& stream, const std::vector<int64_t>& own) const;

    // On a planned device: the ranks that are planned together with this one; else nullptr.
    PlannedPeers* planned_peers() const { return planned_peers_; }

    // True: this is the first of the tp, cp and pp peers, which all read the same samples: what is counted per sample
    // is counted once.
    bool counts_samples() const;

    // For collectives that overlap compute.
    Stream& stream() const { return *stream_; }
    // This axis' stream.
    Stream& stream(Axis axis) const { return own_streams_[size_t(axis)] ? *own_streams_[size_t(axis)] : *stream_; }

    // To and from a neighbour on the pp axis; first and last are neighbours too.
    Link& link_to(int pp_rank) const { return link(links_to_, pp_rank); }
    Link& link_from(int pp_rank) const { return link(links_from_, pp_rank); }

    int64_t bytes_sent() const;  // from this rank, all groups and links
    BytesByAxis bytes_by_axis() const;

    // With check_wire, of all groups and links.
    std::vector<WireCheck*> wire_checks() const;

   private:
    struct Group {
        std::unique_ptr<Transport> transport, row, column;  // of two levels
        std::unique_ptr<Collectives> collectives;
        Axis counted;  // what it sends counts under this
    };
    // Makes the group of these ranks of the job; all ranks call it together. No members: this rank is in none.
    using Open = std::function<std::unique_ptr<Transport>(const std::vector<int>& members, const GroupKind& kind)>;
    using Links = std::vector<std::unique_ptr<Link>>;

    void build(Device device, const Open& open);
    void make_room(Device device);
    void build_axis(Axis axis, const Open& open);
    void check_wire(Transport& transport);
    void build_links(Device device, bool one_lane, const Open& open);
    Link& link(const Links& links, int pp_rank) const;

    MeshOptions options_;  // with what was left open
    Grid grid_;
    AxisRank world_;
    std::vector<Group> groups_;
    std::array<Collectives*, size_t(Axis::count_)> axes_ = {};
    Links links_to_, links_from_;
    PlannedPeers* planned_peers_ = nullptr;
    Buffer next_tile_;  // of SmBudget
    // The first to go: nothing is freed under their work.
    std::unique_ptr<Stream> stream_;
    std::array<std::unique_ptr<Stream>, size_t(Axis::count_)> own_streams_;
};

// The stream for collectives: high priority on CUDA; on the CPU its additions use one thread, since they share the
// cores with compute.
std::unique_ptr<Stream> make_comm_stream(Device device);

}  // namespace rz
