#include "comm/mesh.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>

#include "comm/loopback.h"
#include "comm/nccl_transport.h"
#include "comm/process.h"
#include "comm/thresholds.h"
#include "comm/virtual_net.h"
#include "comm/watch.h"
#include "kernels/runtime/is_cpu.h"
#include "kernels/runtime/request.h"

namespace rz {

// ---- links ----------------------------------------------------------------------------------------------------------

void Link::move(const Message& message, const char* what) {
    if (message.bytes == 0) return;
    MessageGroup group;
    group.messages.push_back(message);
    if (Watch* watch = transport_->watch()) {
        group.seq = watch->queue(what, transport_->group().c_str(), transport_->world_rank(0), message.bytes);
        group.is_last = true;
    }
    transport_->exchange(stream_, group);
}

void Link::send(const void* data, int64_t bytes, const char* what) {
    require(transport_->rank() == 0, "link %s: this end receives", transport_->group().c_str());
    move({const_cast<void*>(data), bytes, 1, true}, what);
}

void Link::recv(void* data, int64_t bytes, const char* what) {
    require(transport_->rank() == 1, "link %s: this end sends", transport_->group().c_str());
    move({data, bytes, 0, false}, what);
}

Link& Mesh::link(const Links& links, int pp_rank) const {
    for (const auto& link : links)
        if (link->peer() == pp_rank) return *link;
    fail("no link between ranks %d and %d of the %d on the pp axis: there are links between neighbours only",
         pp().rank(), pp_rank, pp().size());
}

// Pairs that have no rank in common are made together: first those that begin at an even place, then at an odd one,
// then last and first; all of one direction before the other.
void Mesh::build_links(Device device, bool one_lane, const Open& open) {
    const std::vector<int> line = grid_.members(Axis::pp, world_.rank);
    const int size = int(line.size()), own = place(Axis::pp).rank;
    if (size == 1) return;
    const auto open_pair = [&](int from, int to) {
        const bool here = from == own || to == own;
        auto transport = open(here ? std::vector<int>{line[size_t(from)], line[size_t(to)]} : std::vector<int>{},
                              {Axis::pp, GroupKind::Span::link, from, to});
        if (!here) return;
        check_wire(*transport);
        auto stream = one_lane ? nullptr : make_comm_stream(device);
        Stream& used = one_lane ? *stream_ : *stream;
        const int peer = from == own ? to : from;
        (from == own ? links_to_ : links_from_)
            .push_back(std::make_unique<Link>(std::move(transport), peer, std::move(stream), used));
    };
    const auto open_pairs = [&](int first, bool forward) {
        const int at = own - (own - first + 2) % 2;  // where the pair begins that may hold this rank
        if (at < 0 || at + 1 == size)
            open({}, {Axis::pp, GroupKind::Span::link});
        else
            open_pair(forward ? at : at + 1, forward ? at + 1 : at);
    };
    for (const bool forward : {true, false}) {
        open_pairs(0, forward);
        if (size > 2) {
            open_pairs(1, forward);
            open_pair(forward ? size - 1 : 0, forward ? 0 : size - 1);
        }
    }
}

// ---- groups ---------------------------------------------------------------------------------------------------------

// With the algorithm of the data axis, and ranks in columns where it has two levels.
static MeshOptions settle(int ranks, MeshOptions o, Device device, std::vector<int> nodes) {
    if (o.grid.nodes.empty()) o.grid.nodes = std::move(nodes);
    for (int r = 0; r < ranks && o.ranks_per_node > 0; ++r) {
        o.grid.nodes.resize(size_t(ranks));
        o.grid.nodes[size_t(r)] = r / o.ranks_per_node;
    }
    const Grid grid(ranks, o.grid);
    o.algorithms.data = o.algorithms.data_on(grid.nodes_of_state(), !is_cpu(device));
    o.grid.by_columns = is_two_level(*o.algorithms.data);
    require_request(
        !is_two_level(o.algorithms.tp) || grid.nodes(Axis::tp) == 1,
        "--collectives tp=%s: the %d ranks of the tp axis are not all on one node, and the parts of tensors lie in "
        "the order of ranks, not in columns\n  nearest: --collectives tp=direct",
        name_of(o.algorithms.tp), grid.size(Axis::tp));
    return o;
}

void Mesh::check_wire(Transport& transport) {
    if (options_.check_wire && transport.size() > 1) transport.check_wire(*stream_, options_.damage_wire);
}

void Mesh::build_axis(Axis axis, const Open& open) {
    const int size = grid_.size(axis);
    const bool of_data = axis == Axis::data || axis == Axis::shard || axis == Axis::replicate;
    if (of_data && axis != Axis::data && size == data().size()) {
        axes_[size_t(axis)] = &data();
        return;
    }
    Group group;
    if (size == 1 && axis != Axis::data)
        group.transport =
            std::make_unique<SelfTransport>(data().transport().device(), name_of(axis), nullptr, world_.rank);
    else
        group.transport = open(grid_.members(axis, world_.rank), {axis});
    check_wire(*group.transport);
    const Algorithm how = of_data ? algorithm() : axis == Axis::tp ? options_.algorithms.tp : Algorithm::direct;
    CollectiveOptions options = options_.collectives;
    options.nodes = is_two_level(how) && size > 1 ? grid_.nodes(axis) : 1;
    // If nothing is shared, all of the data axis are replicas.
    const bool replicas = axis == Axis::data && size > 1 && grid_.size(Axis::shard) == 1;
    group.counted = replicas ? Axis::replicate : axis == Axis::shard ? Axis::data : axis;
    options.axis = name_of(group.counted);
    const bool apart = how == Algorithm::hier_symmetric ||
                       (group.transport->levels_apart() && has_levels(grid_, options_.algorithms, axis));
    if (apart && options.nodes > 1 && options.nodes < size) {
        const std::vector<int> all = grid_.members(axis, world_.rank);
        const int own = place(axis).rank, nodes = options.nodes;
        std::vector<int> row, column;
        for (int i = 0; i < size; ++i) {
            if (i % nodes == own % nodes) row.push_back(all[size_t(i)]);
            if (i / nodes == own / nodes) column.push_back(all[size_t(i)]);
        }
        group.row = open(row, {axis, GroupKind::Span::row});
        group.column = open(column, {axis, GroupKind::Span::column});
        options.row = group.row.get(), options.column = group.column.get();
        check_wire(*group.row);
        check_wire(*group.column);
    }
    group.collectives = make_collectives(how, *group.transport, options);
    require(group.transport->rank() == place(axis).rank, "axis %s: rank %d of the job stands at %d, not at %d",
            name_of(axis), world_.rank, group.transport->rank(), place(axis).rank);
    axes_[size_t(axis)] = group.collectives.get();
    groups_.push_back(std::move(group));
}

// Data, shard and replicate follow each other on one stream.
NcclRoom nccl_room(const Grid& grid, const AxisAlgorithms& chosen, int multiprocessors, int reserved_sms) {
    const int pp = grid.size(Axis::pp), lanes = pp == 1 ? 0 : pp == 2 ? 2 : 4;
    int groups = has_levels(grid, chosen, Axis::data) || has_levels(grid, chosen, Axis::shard) ||
                 has_levels(grid, chosen, Axis::replicate);
    for (const Axis axis : {Axis::data, Axis::tp, Axis::cp, Axis::pp}) groups += grid.size(axis) > 1;
    const int hands = grid.size(Axis::model) > 1;
    return {nccl_blocks(multiprocessors, lanes, groups, reserved_sms, hands), lanes, groups, hands};
}

void check_reserved_sms(int reserved_sms, int multiprocessors, bool cpu, bool nccl, const Grid& grid,
                        const AxisAlgorithms& chosen) {
    if (reserved_sms == 0) return;
    require_request(
        !cpu,
        "--comm-sms %d: this run is on the CPU, which has no multiprocessors to leave free\n  nearest: leave it out",
        reserved_sms);
    require_request(
        multiprocessors == 0 || reserved_sms < multiprocessors,
        "--comm-sms %d: the GPU has %d multiprocessors, and none would be left for compute\n  nearest: --comm-sms %d",
        reserved_sms, multiprocessors, multiprocessors / 4);
    const NcclRoom room = nccl_room(grid, chosen, multiprocessors, reserved_sms);
    const int lanes = room.lanes, groups = room.groups + room.hands;
    require_request(
        !nccl || reserved_sms >= lanes + groups,
        "--comm-sms %d: over NCCL %d operations may be under way together (%d lanes of the pipeline, %d groups), "
        "each on a thread block of its own\n  nearest: --comm-sms %d",
        reserved_sms, lanes + groups, lanes, groups, lanes + groups);
}

// If ranks communicate, blocks of NCCL may hold multiprocessors when a kernel of compute starts; on one GPU drawing
// balances attention's tiles. The counter is the mesh's, so the context forgets it with the mesh.
void Mesh::make_room(Device device) {
    stream_->context().draws = nullptr;
    SmBudget& beside = stream_->context().beside;
    beside.reserved_sms = options_.reserved_sms;
    if (is_cpu(device)) return;
    next_tile_ = Buffer(device, sizeof *beside.next_tile, MemKind::comm, "attention's next tile");
    if (device.is_cuda()) {
        stream_->zero(next_tile_.data(), next_tile_.bytes());
        stream_->synchronize();
    }
    beside.next_tile = next_tile_.as<uint32_t>();
}

void Mesh::build(Device device, const Open& open) {
    check_reserved_sms(options_.reserved_sms, gpu_multiprocessors(device), is_cpu(device), /*nccl=*/false, grid_,
                       options_.algorithms);
    stream_ = make_comm_stream(device);
    for (const Axis axis : {Axis::data, Axis::shard, Axis::replicate, Axis::tp, Axis::cp, Axis::pp, Axis::model})
        build_axis(axis, open);
    const bool staged = device.is_cuda() && pp().transport().waits_on_host();
    build_links(device, options_.one_lane || staged, open);
    for (const Axis axis : {Axis::tp, Axis::cp})
        if (grid_.size(axis) > 1 && (is_cpu(device) || !on(axis).transport().waits_on_host()))
            own_streams_[size_t(axis)] = make_comm_stream(device);
    make_room(device);
}

// A byte to and from everyone whom a step sends to or hears from, so that NCCL's memory is taken and its links are
// known before the first step. Group after group, in one order on all ranks, each to its end. The bytes are those of
// attention's counter, 0 here and on every rank, so the ledger has no more in a run than in its plan.
static void connect_peers(const Mesh& mesh, const MeshOptions& o) {
    Stream& stream = mesh.stream();
    char* const zeros = reinterpret_cast<char*>(stream.context().beside.next_tile);
    const auto connect = [&](const GroupPeers& peers) {
        if (peers.kind.span == GroupKind::Span::link || peers.to.empty()) return;
        Collectives& whole = mesh.on(peers.kind.axis);
        Transport& transport = peers.kind.span == GroupKind::Span::row      ? *whole.options().row
                               : peers.kind.span == GroupKind::Span::column ? *whole.options().column
                                                                            : whole.transport();
        MessageGroup group;
        for (int r = 0; r < transport.size(); ++r) {
            const int rank = transport.world_rank(r);
            if (std::ranges::count(peers.to, rank)) group.send(zeros, 1, r);
            if (std::ranges::count(peers.from, rank)) group.recv(zeros + 1, 1, r);
        }
        transport.exchange(stream, group);
        transport.count_sent(-std::ssize(peers.to));
        stream.synchronize();
    };
    for (const GroupPeers& peers : step_peers(mesh.grid(), o.algorithms, o.messages, mesh.world().rank, 0, 0))
        connect(peers);
    // Links in the order in which they were made (build_links).
    const int size = mesh.grid().size(Axis::pp), own = mesh.place(Axis::pp).rank;
    const auto pass = [&](int from, int to, bool forward) {
        if (!forward) std::swap(from, to);
        if (own != from && own != to) return;
        Link& link = own == from ? mesh.link_to(to) : mesh.link_from(from);
        own == from ? link.send(zeros, 1, "first message") : link.recv(zeros + 1, 1, "first message");
        link.stream().synchronize();
    };
    for (const bool forward : {true, false}) {
        for (const int first : {0, 1})
            for (int at = first; at + 1 < size; at += 2) pass(at, at + 1, forward);
        if (size > 2) pass(size - 1, 0, forward);
    }
}

// Collective over all ranks; no members: this rank is in none.
static std::unique_ptr<Transport> make_limited_nccl(Process& process, Device device, const std::vector<int>& members,
                                                    const std::string& name, NcclChannels channels) {
    const bool first = !members.empty() && members.front() == process.rank();
    const std::vector<std::string> ids = process.all_gather_text(first ? nccl_unique_id() : "");
    if (members.empty()) return nullptr;
    const auto place = std::find(members.begin(), members.end(), process.rank()) - members.begin();
    return make_nccl_transport(ids[size_t(members.front())], int(place), members, name, device, process.watch(),
                               channels);
}

Mesh::Mesh(Process& process, Device device, const MeshOptions& options)
    : options_(settle(process.size(), options, device, process.nodes())),
      grid_(process.size(), options_.grid),
      world_{process.rank(), process.size()} {
    // Over NCCL a pipeline's lanes, and groups where there are several, share the thread blocks that are for them.
    const int reserved_sms = options_.reserved_sms, there = gpu_multiprocessors(device);
    const bool nccl = device.is_cuda() && built_with_nccl() && process.uses_nccl(options_.transport, device);
    check_reserved_sms(reserved_sms, there, is_cpu(device), nccl, grid_, options_.algorithms);
    build(device, [&](const std::vector<int>& members, const GroupKind& kind) {
        const NcclChannels channels = nccl_channels(grid_, options_.algorithms, kind, there, reserved_sms);
        if (nccl && (channels.max_ctas > 0 || channels.net_peer > 0) && members.size() != 1)
            return make_limited_nccl(process, device, members, kind.name(), channels);
        const int color = members.empty() ? -1 : *std::min_element(members.begin(), members.end());
        const auto key = std::find(members.begin(), members.end(), world_.rank) - members.begin();
        return process.make_transport(options_.transport, device, color, int(key), kind.name());
    });
    if (nccl) connect_peers(*this, options_);
}

Mesh::Mesh(Device device, const MeshOptions& options)
    : options_(settle(1, options, device, {})), grid_(1, options_.grid) {
    build(device, [&](const std::vector<int>&, const GroupKind& kind) {
        return std::make_unique<SelfTransport>(device, kind.name());
    });
}

Mesh::Mesh(LoopbackHub& hub, int rank, const MeshOptions& options)
    : options_(settle(hub.size(), options, hub.device(rank), {})),
      grid_(hub.size(), options_.grid),
      world_{rank, hub.size()} {
    build(hub.device(rank), [&](const std::vector<int>& members, const GroupKind& kind) -> std::unique_ptr<Transport> {
        if (members.empty()) return nullptr;
        return hub.subgroup(rank, members, kind.name() + format(" of %d", members.front()));
    });
    if (hub.device(rank).is_cuda()) connect_peers(*this, options_);
}

Mesh::Mesh(VirtualNet& net, int rank, const MeshOptions& options)
    : options_(settle(net.size(), options, net.device(rank), net.node_of_ranks())),
      grid_(net.size(), options_.grid),
      world_{rank, net.size()} {
    build(net.device(rank), [&](const std::vector<int>& members, const GroupKind& kind) -> std::unique_ptr<Transport> {
        return members.empty() ? nullptr : net.transport(rank, members, kind.name());
    });
}

Mesh::Mesh(Device device, int rank, int size, const PlannedNetwork& network, const MeshOptions& options,
           PlannedPeers* peers)
    : options_(settle(size, options, device, {})),
      grid_(size, options_.grid),
      world_{rank, size},
      planned_peers_(peers) {
    require(rank >= 0 && rank < size, "rank %d of %d", rank, size);
    build(device, [&](const std::vector<int>& members, const GroupKind& kind) -> std::unique_ptr<Transport> {
        if (members.empty()) return nullptr;
        const std::string name = kind.name();
        const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
        const std::shared_ptr<PlannedMail> mail = peers ? peers->mail(name, members) : nullptr;
        return make_planned_transport(name, int(place), members, device,
                                      network ? network(kind, members, !mail) : nullptr, mail,
                                      options_.transport == TransportKind::mpi);
    });
}

Mesh::Mesh(Device device, int rank, int size, const PlannedLink& link, const MeshOptions& options)
    : Mesh(
          device, rank, size, [&](const GroupKind&, const std::vector<int>&, bool) { return link; }, options) {}

std::vector<std::vector<int64_t>> Mesh::gather_over_model(Stream& stream, const std::vector<int64_t>& own) const {
    Collectives& group = model();
    if (!stream.computes() && !planned_peers_) return std::vector(size_t(group.size()), own);
    // An int64 travels as two fp32 words: a gather copies bits.
    const auto gather = [&](const std::vector<int64_t>& mine, const std::vector<int64_t>& offsets) {
        const Device device = stream.device();
        std::vector<int64_t> all(size_t(offsets.back() / 2));
        Buffer from(device, int64_t(mine.size()) * 8, MemKind::workspace, "numbers of this rank");
        Buffer to(device, int64_t(all.size()) * 8, MemKind::workspace, "numbers of all ranks");
        stream.copy(from.data(), mine.data(), from.bytes());
        group.all_gather(stream, {.out = to.data(), .in = from.data(), .offsets = offsets, .dtype = DType::f32});
        stream.copy(all.data(), to.data(), to.bytes());
        stream.synchronize();
        std::vector<std::vector<int64_t>> out;
        for (int r = 0; r < group.size(); ++r)
            out.emplace_back(all.begin() + offsets[size_t(r)] / 2, all.begin() + offsets[size_t(r) + 1] / 2);
        // A planned gather was only counted: the values come past the device.
        return planned_peers_ ? planned_peers_->gather(world_.rank, mine) : out;
    };
    std::vector<int64_t> offsets = {0};
    for (const auto& count : gather({int64_t(own.size())}, even_offsets(2 * group.size(), group.size(), 2)))
        offsets.push_back(offsets.back() + 2 * count[0]);
    return gather(own, offsets);
}

Mesh::~Mesh() {
    RankContext& context = stream_->context();
    if (context.beside.next_tile != next_tile_.as<uint32_t>()) return;  // a later mesh's
    context.beside = {};
    context.draws = nullptr;
}

bool Mesh::counts_samples() const {
    return place(Axis::tp).rank == 0 && place(Axis::cp).rank == 0 && place(Axis::pp).rank == 0;
}

int64_t Mesh::bytes_sent() const {
    int64_t bytes = 0;
    for (const Group& group : groups_) bytes += group.transport->bytes_sent();
    for (const auto& link : links_to_) bytes += link->bytes_sent();
    return bytes;
}

std::vector<WireCheck*> Mesh::wire_checks() const {
    std::vector<WireCheck*> checks;
    for (const Group& group : groups_)
        for (const auto* transport : {&group.transport, &group.row, &group.column})
            if (*transport) checks.push_back((*transport)->wire_check());
    for (const Links* links : {&links_to_, &links_from_})
        for (const auto& link : *links) checks.push_back(link->wire_check());
    std::erase(checks, nullptr);
    return checks;
}

BytesByAxis Mesh::bytes_by_axis() const {
    BytesByAxis bytes = {};
    for (size_t i = 0; i < bytes.size(); ++i) {
        for (const Group& group : groups_)
            if (group.counted == kCountedAxes[i]) bytes[i] += group.transport->bytes_sent();
        if (kCountedAxes[i] == Axis::pp)
            for (const auto& link : links_to_) bytes[i] += link->bytes_sent();
    }
    return bytes;
}

std::unique_ptr<Stream> make_comm_stream(Device device) {
    auto stream = std::make_unique<Stream>(device, "communication", /*high_priority=*/true);
#ifdef _OPENMP
    if (device.kind == DeviceKind::cpu) stream->enqueue_host([] { omp_set_num_threads(1); });
#endif
    return stream;
}

}  // namespace rz
