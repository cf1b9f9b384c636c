#include "comm/nccl_memory.h"

#include <algorithm>
#include <bit>
#include <set>

#include "comm/mesh.h"

namespace rz {

static constexpr int64_t kMiB = int64_t(1) << 20;
static constexpr int64_t kSendBuffer = 2 * kMiB, kLL = kMiB / 2, kLL128 = 640 * 120 * 8 * 8;
static constexpr int64_t kNetBuffer = 16 * 128 * 1024;  // of a channel
static constexpr int64_t kPeersAtOnce = 8;

// Published: "kernels" 0.33 and 0.42 s, once; what else ncclCommInitRank takes: 0.24 s for 8 ranks of a node (NCCL's
// log in nccl-tests#273), 3.1 s for 24 ranks of three (nccl#1453), most of it waiting for ranks that start later; 150 s
// on "certain K" GPUs (nccl#1156, 2024-01), taken as 0.06 s a rank. At the least six rounds of the bootstrap ring, each
// hop 60 us, an assumption. 0.39 s to connect a ring's 32 channels both ways (nccl#1646): 6 ms for each.
static constexpr double kKernels = 0.4, kCommunicator = 0.24, kChannel = 0.006;
static constexpr double kRankLeast = 0.00036, kRankMost = 0.06;

// ---- who sends to whom ----------------------------------------------------------------------------------------------

namespace {

using Span = GroupKind::Span;

class Peers {
   public:
    Peers(const Grid& grid, int rank) : grid_(grid), rank_(rank) {}

    // `pairs`: messages between any two, beside the collectives.
    void axis(Axis axis, Algorithm how, bool pairs = false) {
        const std::vector<int> all = grid_.members(axis, rank_);
        const int size = int(all.size()), own = grid_.place(axis, rank_).rank, nodes = grid_.nodes(axis);
        if (size == 1) return;
        std::vector<int> row, column;
        for (int i = 0; i < size && nodes > 0; ++i) {
            if (i % nodes == own % nodes) row.push_back(all[size_t(i)]);
            if (i / nodes == own / nodes) column.push_back(all[size_t(i)]);
        }
        const bool two_levels = is_two_level(how) && nodes > 1 && nodes < size;
        if (!pairs && (how == Algorithm::ring || how == Algorithm::library)) {
            found.push_back({{axis}, all, {all[size_t((own + 1) % size)]}, {all[size_t((own + size - 1) % size)]}});
        } else if (!two_levels) {
            everyone({axis}, all, all);
        } else {
            everyone({axis}, all, pairs ? all : std::vector<int>{});
            everyone({axis, Span::row}, row, row);
            everyone({axis, Span::column}, column, column);
        }
    }

    void stages(const StepMessages& messages) {
        const std::vector<int> line = grid_.members(Axis::pp, rank_);
        const int size = int(line.size()), own = grid_.place(Axis::pp, rank_).rank;
        GroupPeers group{{Axis::pp}, line};
        const auto meets = [&](int to, int from) {
            const int t = line[size_t((to + size) % size)], f = line[size_t((from + size) % size)];
            if (t != rank_ && !std::ranges::count(group.to, t)) group.to.push_back(t);
            if (f != rank_ && !std::ranges::count(group.from, f)) group.from.push_back(f);
        };
        if (messages.shared_units) meets(size - 1 - own, size - 1 - own);
        if (messages.samples) meets(own + 1, own - 1);
        if (!group.to.empty()) found.push_back(group);
    }

    void links() {
        const std::vector<int> line = grid_.members(Axis::pp, rank_);
        const int size = int(line.size()), own = grid_.place(Axis::pp, rank_).rank;
        if (size == 1) return;
        for (const int place : std::set<int>{(own + 1) % size, (own + size - 1) % size}) {
            const int peer = line[size_t(place)];
            found.push_back({{Axis::pp, Span::link, own, place}, {rank_, peer}, {peer}, {}});
            found.push_back({{Axis::pp, Span::link, place, own}, {peer, rank_}, {}, {peer}});
        }
    }

    std::vector<GroupPeers> found;

   private:
    void everyone(const GroupKind& kind, const std::vector<int>& members, const std::vector<int>& used) {
        std::set<int> peers(used.begin(), used.end());
        peers.erase(rank_);
        const std::vector<int> list(peers.begin(), peers.end());
        found.push_back({kind, members, list, list});
    }

    const Grid& grid_;
    int rank_;
};

}  // namespace

// Gradients are summed over the shard axis, then over replicate; over data as a whole where one of them is that.
static std::vector<Axis> state_axes(const Grid& grid) {
    if (grid.size(Axis::shard) == 1 || grid.size(Axis::replicate) == 1) return {Axis::data};
    return {Axis::shard, Axis::replicate};
}

static Algorithm data_algorithm(const Grid& grid, const AxisAlgorithms& chosen) {
    return chosen.data ? *chosen.data : chosen.data_on(grid.nodes_of_state(), /*gpus=*/true);
}

bool has_levels(const Grid& grid, const AxisAlgorithms& chosen, Axis axis) {
    if (!std::ranges::count(state_axes(grid), axis) || data_algorithm(grid, chosen) != Algorithm::hier) return false;
    const int nodes = grid.nodes(axis);
    return nodes > 1 && nodes < grid.size(axis);
}

std::vector<GroupPeers> step_peers(const Grid& grid, const AxisAlgorithms& chosen, const StepMessages& messages,
                                   int rank, int multiprocessors, int reserved_sms) {
    const Algorithm data = data_algorithm(grid, chosen);
    Peers peers(grid, rank);
    for (const Axis axis : state_axes(grid)) peers.axis(axis, data, messages.matrix_pieces && axis != Axis::replicate);
    peers.axis(Axis::tp, chosen.tp, messages.matrix_pieces);
    for (const Axis axis : {Axis::cp, Axis::model}) peers.axis(axis, Algorithm::direct);
    peers.stages(messages);
    peers.links();
    for (GroupPeers& group : peers.found)
        group.channels = nccl_channels(grid, chosen, group.kind, multiprocessors, reserved_sms);
    return peers.found;
}

// A handshake is a byte, or the block sums of a norm: one channel does. Messages take a power of two of channels, and
// NCCL rounds up to one (nccl#1598).
NcclChannels nccl_channels(const Grid& grid, const AxisAlgorithms& chosen, const GroupKind& group, int multiprocessors,
                           int reserved_sms) {
    const NcclBlocks each = nccl_room(grid, chosen, multiprocessors, reserved_sms).each;
    const bool is_data = group.axis == Axis::data || group.axis == Axis::shard || group.axis == Axis::replicate;
    const bool hands = is_data && chosen.data != Algorithm::library && !sends_messages(chosen, group);
    if (hands || group.axis == Axis::model) return {.max_ctas = 1};
    // One rank on each node is a column without rows.
    const bool is_column = group.span == Span::column ||
                           (is_data && grid.nodes(group.axis) > 1 && grid.nodes(group.axis) == grid.size(group.axis));
    return {.max_ctas = int(std::bit_floor(unsigned(group.span == Span::link ? each.lane : each.group))),
            .net_peer = is_column ? kColumnChannels : 0};
}

// ---- what it takes --------------------------------------------------------------------------------------------------

namespace {

struct Channels {
    int all, pair;  // of a communicator; that a pair may take
};
Channels channels_of(int64_t ranks, bool one_node, const NcclChannels& asked, const NcclModel& nccl) {
    const int own = one_node ? nccl.node_channels : nccl.net_channels;
    const int all = int(std::bit_ceil(unsigned(asked.max_ctas > 0 ? std::min(own, asked.max_ctas) : own)));
    int pair = nccl.nvlink ? all : std::min(all, 2);
    if (one_node) return {all, pair};
    if (asked.net_peer > 0) return {all, std::min(all, asked.net_peer)};
    pair = std::min(pair, nccl.version >= 23000 ? 4 : 2);
    while (pair > 1 && pair * ceil_div(ranks, kPeersAtOnce) > all) pair /= 2;
    return {all, pair};
}

}  // namespace

int message_channels(int64_t bytes, int64_t ranks, bool one_node, const NcclChannels& asked, const NcclModel& nccl) {
    const auto [all, pair] = channels_of(ranks, one_node, asked, nccl);
    const int64_t least = kMiB / 16, most = one_node ? 16 * kMiB : kMiB / 8;
    int channels = pair;
    while (channels > 1 && channels * ranks > all) channels /= 2;
    channels = int(std::clamp<int64_t>(ceil_div(bytes, least), 1, channels));
    while (ceil_div(bytes, channels) > most && channels <= pair / 2) channels *= 2;
    return channels;
}

bool sends_messages(const AxisAlgorithms& chosen, const GroupKind& group) {
    if (group.axis == Axis::tp) return chosen.tp != Algorithm::library && chosen.tp != Algorithm::symmetric;
    if (group.axis != Axis::data && group.axis != Axis::shard && group.axis != Axis::replicate) return true;
    if (chosen.data == Algorithm::hier_symmetric) return group.span != GroupKind::Span::row;
    return chosen.data != Algorithm::library && chosen.data != Algorithm::symmetric;
}

void NcclNeeds::add(const GroupPeers& group, int rank, const NcclModel& nccl) {
    const auto near = [&](int peer) { return peer / nccl.ranks_per_node == rank / nccl.ranks_per_node; };
    const bool one_node = std::ranges::all_of(group.members, near);
    const auto [all, channels] = channels_of(std::ssize(group.members), one_node, group.channels, nccl);
    const int64_t to = std::ranges::count_if(group.to, near), from = std::ranges::count_if(group.from, near);
    const bool sends_away = to < std::ssize(group.to), hears_away = from < std::ssize(group.from);
    const int64_t receives = round_up(kLL + kLL128 + nccl.buffer + 1, 2 * kMiB);
    bytes += channels * (to * kSendBuffer + from * receives);
    bytes += (int64_t(sends_away) + int64_t(hears_away)) * all * kNetBuffer;

    const double connects = kChannel * double(channels * std::max(std::ssize(group.to), std::ssize(group.from)));
    const double once = (communicators == 0 ? kKernels : 0) + kCommunicator;
    const double waits_for = one_node ? 0 : double(group.members.size());
    least_s += once + kRankLeast * waits_for;
    most_s += once + kRankMost * waits_for + connects;
    ++communicators;
}

}  // namespace rz
