// The named axes: where ranks stand, by nested loops as the oracle, and the groups and links of meshes of threads.

#include <gtest/gtest.h>

#include <numeric>

#include "comm/loopback.h"
#include "comm/mesh.h"
#include "comm/nccl_memory.h"
#include "comm/thresholds.h"
#include "kernels/runtime/context.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

constexpr Axis kGroups[] = {Axis::tp, Axis::cp, Axis::pp, Axis::data, Axis::shard, Axis::replicate, Axis::model};

struct Coordinates {
    int tp, cp, dp, pp;
};

// In the default order, pp outermost.
std::vector<Coordinates> by_loops(int tp, int cp, int dp, int pp) {
    std::vector<Coordinates> all;
    for (int p = 0; p < pp; ++p)
        for (int d = 0; d < dp; ++d)
            for (int c = 0; c < cp; ++c)
                for (int t = 0; t < tp; ++t) all.push_back({t, c, d, p});
    return all;
}

bool together(Axis axis, const Coordinates& a, const Coordinates& b, int cp, int shard) {
    const int x = a.dp * cp + a.cp, y = b.dp * cp + b.cp;
    const bool same_part = a.tp == b.tp && a.pp == b.pp, same_samples = a.cp == b.cp && a.dp == b.dp;
    switch (axis) {
        case Axis::tp:
            return same_samples && a.pp == b.pp;
        case Axis::cp:
            return same_part && a.dp == b.dp;
        case Axis::dp:
            return same_part && a.cp == b.cp;
        case Axis::pp:
            return same_samples && a.tp == b.tp;
        case Axis::data:
            return same_part;
        case Axis::shard:
            return same_part && x / shard == y / shard;
        case Axis::replicate:
            return same_part && x % shard == y % shard;
        case Axis::model:
            return same_samples;
        case Axis::count_:
            break;
    }
    return false;
}

std::string refusal(int ranks, const GridOptions& options) {
    return error_of([&] { Grid(ranks, options); });
}

TEST(Grid, PlacesAreThoseOfNestedLoops) {
    const std::array<int, 4> shapes[] = {{1, 1, 1, 1}, {1, 1, 5, 1}, {2, 1, 2, 2},
                                         {2, 3, 2, 2}, {1, 2, 3, 4}, {4, 2, 16, 8}};
    for (const auto& [tp, cp, dp, pp] : shapes) {
        const std::vector<Coordinates> at = by_loops(tp, cp, dp, pp);
        const int ranks = int(at.size()), shard = dp % 2 == 0 ? 2 * cp : cp;
        const Grid grid(ranks, {.tp = tp, .cp = cp, .pp = pp, .shard_size = shard});
        for (int r = 0; r < ranks; r += 1 + ranks / 100) {
            const Coordinates& own = at[size_t(r)];
            EXPECT_EQ(grid.place(Axis::tp, r), (AxisRank{own.tp, tp}));
            EXPECT_EQ(grid.place(Axis::cp, r), (AxisRank{own.cp, cp}));
            EXPECT_EQ(grid.place(Axis::dp, r), (AxisRank{own.dp, dp}));
            EXPECT_EQ(grid.place(Axis::pp, r), (AxisRank{own.pp, pp}));
            for (int a = 0; a < int(Axis::count_); ++a) {
                std::vector<int> want;
                for (int other = 0; other < ranks; ++other)
                    if (together(Axis(a), own, at[size_t(other)], cp, shard)) want.push_back(other);
                ASSERT_EQ(grid.members(Axis(a), r), want) << name_of(Axis(a)) << " of rank " << r;
                const AxisRank place = grid.place(Axis(a), r);
                ASSERT_EQ(place.size, int(want.size())) << name_of(Axis(a));
                ASSERT_EQ(place.size, grid.size(Axis(a))) << name_of(Axis(a));
                ASSERT_EQ(want[size_t(place.rank)], r) << name_of(Axis(a));
            }
        }
    }
}

TEST(Grid, AnyOrderOfTheAxesIsAPermutationOfTheRanks) {
    std::array<Axis, 4> order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
    do {
        const Grid grid(24, {.tp = 2, .cp = 3, .pp = 2, .order = order});
        std::vector<int> seen(24, 0);
        for (int r = 0; r < 24; ++r) {
            int index = 0;
            for (const Axis a : {Axis::pp, Axis::dp, Axis::cp, Axis::tp})
                index = index * grid.size(a) + grid.place(a, r).rank;
            ++seen[size_t(index)];
        }
        EXPECT_EQ(seen, std::vector<int>(24, 1));
        EXPECT_EQ(grid.members(order[0], 0)[1], 1) << "the first axis is innermost";
        EXPECT_EQ(grid.members(order[3], 0)[1], 24 / grid.size(order[3])) << "the last one is outermost";
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_TRUE(says(refusal(4, {.order = {Axis::tp, Axis::tp, Axis::dp, Axis::pp}}), "stands in it once"));
}

TEST(Grid, RefusalsNameWhatWasAskedAndTheNearestThatWorks) {
    EXPECT_EQ(refusal(8, {.tp = 2, .pp = 3}),
              "pp 3 x tp 2 with 8 ranks: 6 does not divide 8\n  nearest: pp 4 x tp 2 or pp 2 x tp 2");
    EXPECT_EQ(refusal(6, {.tp = 4}), "tp 4 with 6 ranks: 4 does not divide 6\n  nearest: tp 3 or tp 6");
    EXPECT_EQ(refusal(1, {.pp = 2}), "pp 2 with 1 rank: 2 does not divide 1\n  nearest: pp 1");
    EXPECT_EQ(refusal(4, {.cp = 0}), "cp 0: an axis has at least one rank\n  nearest: cp 1");
    EXPECT_EQ(refusal(6, {.shard_size = 4}), "shard size 4 does not divide 6 ranks\n  nearest: 3 or 6");
    EXPECT_EQ(refusal(8, {.tp = 2, .shard_size = 8}),
              "shard size 8 does not divide 4 data ranks (of 8 ranks)\n  nearest: 4");
    EXPECT_EQ(refusal(8, {.tp = 2, .cp = 2, .pp = 2}), "");
}

float sum_over(Collectives& group, int rank) {
    Stream stream({DeviceKind::cpu, 0}, "test");
    float x = float(1 << rank);
    const auto offsets = even_offsets(1, group.size());
    group.all_reduce(stream, sum_in_place(&x, offsets));
    stream.synchronize();
    return x;
}

TEST(MeshOfThreads, EveryAxisSumsOverItsOwnRanks) {
    const std::array<int, 4> shapes[] = {{1, 1, 4, 1}, {2, 1, 2, 2}, {1, 2, 2, 3}, {3, 1, 1, 2}};
    for (const auto& [tp, cp, dp, pp] : shapes) {
        const std::vector<Coordinates> at = by_loops(tp, cp, dp, pp);
        const int shard = dp % 2 == 0 ? cp * dp / 2 : cp;
        LoopbackHub hub(int(at.size()));
        hub.run([&, tp = tp, cp = cp, pp = pp](int rank) {
            Mesh mesh(hub, rank, {.grid = {.tp = tp, .cp = cp, .pp = pp, .shard_size = shard}});
            Collectives* groups[] = {&mesh.tp(),    &mesh.cp(),        &mesh.pp(),   &mesh.data(),
                                     &mesh.shard(), &mesh.replicate(), &mesh.model()};
            for (size_t g = 0; g < std::size(kGroups); ++g) {
                int want = 0;
                for (size_t r = 0; r < at.size(); ++r)
                    if (together(kGroups[g], at[size_t(rank)], at[r], cp, shard)) want |= 1 << r;
                EXPECT_EQ(int(sum_over(*groups[g], rank)), want) << name_of(kGroups[g]) << " of rank " << rank;
                EXPECT_EQ(groups[g]->rank(), mesh.place(kGroups[g]).rank);
            }
            const Coordinates& own = at[size_t(rank)];
            EXPECT_EQ(mesh.counts_samples(), own.tp == 0 && own.cp == 0 && own.pp == 0);
        });
    }
}

// Every rank asks for what comes from both neighbours before it sends anything: on one stream that would hang.
TEST(MeshOfThreads, LinksOfADirectionWaitForNoOther) {
    for (const int pp : {2, 3, 4, 5}) {
        LoopbackHub hub(2 * pp);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.grid = {.pp = pp}});
            const int own = mesh.pp().rank(), next = (own + 1) % pp, previous = (own + pp - 1) % pp;
            std::vector<int> out = {100 + rank, 200 + rank}, in = {0, 0};
            mesh.link_from(previous).recv(&in[0], 4);
            if (pp > 2) mesh.link_from(next).recv(&in[1], 4);
            mesh.link_to(next).send(&out[0], 4);
            if (pp > 2) mesh.link_to(previous).send(&out[1], 4);
            for (const int peer : {next, previous}) {
                mesh.link_from(peer).stream().synchronize();
                mesh.link_to(peer).stream().synchronize();
            }
            EXPECT_EQ(in[0], 100 + rank % 2 + 2 * previous);
            EXPECT_EQ(in[1], pp > 2 ? 200 + rank % 2 + 2 * next : 0);
            EXPECT_EQ(mesh.bytes_sent(), pp > 2 ? 8 : 4);
            EXPECT_THROW(mesh.link_to(own), Error);
            EXPECT_THROW(mesh.link_to(next).recv(&in[0], 4), Error);
            if (pp > 3) {
                EXPECT_THROW(mesh.link_to((own + 2) % pp), Error);
            }
        });
    }
}

TEST(MeshOfThreads, OneLanePutsAllLinksOnTheMeshesStream) {
    LoopbackHub hub(3);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = 3}, .one_lane = true});
        const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
        EXPECT_EQ(&mesh.link_to(next).stream(), &mesh.stream());
        EXPECT_EQ(&mesh.link_from(next).stream(), &mesh.stream());
        int token = rank == 0 ? 1 : 0;  // travels around once, in one order of all messages
        if (rank != 0) mesh.link_from(previous).recv(&token, 4);
        mesh.stream().enqueue_host([&] { token *= 2; });
        mesh.link_to(next).send(&token, 4);
        if (rank == 0) mesh.link_from(previous).recv(&token, 4);
        mesh.stream().synchronize();
        EXPECT_EQ(token, rank == 0 ? 8 : 2 << rank);
    });
}

// On H200, A100, L4 and the emulated GPU: what can be under way at once stays within a quarter of the GPU, or is one
// thread block each.
TEST(NcclBlocks, LanesAndGroupsTogetherStayWithinAQuarter) {
    for (const int multiprocessors : {132, 108, 58, 4})
        for (const int lanes : {2, 4})
            for (int groups = 1; groups <= 5; ++groups)
                for (const int hands : {0, 1}) {
                    const NcclBlocks blocks = nccl_blocks(multiprocessors, lanes, groups, 0, hands);
                    EXPECT_GE(blocks.lane, 1);
                    EXPECT_GE(blocks.group, 1);
                    EXPECT_LE(lanes * blocks.lane + groups * blocks.group + hands,
                              std::max(multiprocessors / 4, lanes + groups + hands));
                }
    EXPECT_EQ(nccl_blocks(132, 4, 3).lane, 2);
    EXPECT_EQ(nccl_blocks(132, 4, 3).group, 8);
    EXPECT_EQ(nccl_blocks(132, 0, 1).lane, 0);
    EXPECT_EQ(nccl_blocks(132, 0, 1).group, 0) << "one group: NCCL's own choice";
    EXPECT_EQ(nccl_blocks(132, 0, 3).group, 11) << "data, tp and cp";
    EXPECT_EQ(nccl_blocks(132, 0, 2, 0, 1).group, 16) << "data and tp, and model with one block";
    EXPECT_EQ(nccl_blocks(132, 0, 1, 0, 1).group, 16) << "tp beside model";
    EXPECT_EQ(nccl_blocks(132, 0, 1, 24, 1).group, 23) << "--comm-sms";
    EXPECT_EQ(nccl_blocks(4, 0, 3).group, 1);
}

// NVIDIA/nccl#1685: an all-to-all of 8 H100 allocates buffers of 10,485,760 and 2,097,152 bytes on 32 channels of each
// pair. The log of nccl#1453, 24 H100 on three nodes: "16 p2p channels, 2 p2p channels per peer".
TEST(NcclMemory, PairsHaveBuffersOnEachChannel) {
    const auto first = [](int n) {
        std::vector<int> ranks(static_cast<size_t>(n));
        std::iota(ranks.begin(), ranks.end(), 0);
        return ranks;
    };
    const auto bytes = [&](int size, int to, int from, int max_ctas = 0, const NcclModel& nccl = {}) {
        NcclNeeds needs;
        needs.add({{Axis::data}, first(size), first(to), first(from), {max_ctas}}, 0, nccl);
        return needs.bytes;
    };
    constexpr int64_t kSends = 2097152, kReceives = 10485760, kBoth = kSends + kReceives, kNet = 16 * 131072;
    EXPECT_EQ(bytes(8, 7, 7), 7 * 32 * kBoth);
    EXPECT_EQ(bytes(8, 1, 1), 32 * kBoth) << "a ring";
    EXPECT_EQ(bytes(8, 7, 7, 8), 7 * 8 * kBoth);
    EXPECT_EQ(bytes(8, 7, 7, 11), 7 * 16 * kBoth) << "rounded up";
    EXPECT_EQ(bytes(8, 7, 7, 1), 7 * kBoth) << "handshakes";
    EXPECT_EQ(bytes(2, 1, 0), 32 * kSends) << "a link of a pipeline, where it begins";
    EXPECT_EQ(bytes(8, 7, 7, 0, {.nvlink = false}), 7 * 2 * kBoth);
    EXPECT_EQ(bytes(8, 7, 7, 0, {.buffer = 8 << 20}), 7 * 32 * (kBoth + (4 << 20)));
    // Channels of a pair of the node, with 8 on the node and 2 beyond it.
    const auto channels = [&](int size, const NcclModel& nccl = {}) {
        return (bytes(size, 10, 10, 0, nccl) - 2 * 16 * kNet) / (8 * kBoth);
    };
    EXPECT_EQ(channels(24), 2);
    EXPECT_EQ(channels(64), 2);
    EXPECT_EQ(channels(65), 1) << "beyond 64 ranks";
    EXPECT_EQ(channels(32, {.version = 23007}), 4) << "2.30: a channel for each 14 GB/s of the card";
}

// enqueue.cc: of 32 channels a hop of a ring of 8 takes 4 until each has 16 MiB; over a network 128 KiB fill one.
TEST(NcclMemory, AMessageHasItsChannels) {
    constexpr int64_t kKiB = 1024, kMiB = kKiB * kKiB;
    const auto on_node = [](int64_t bytes, int ranks, NcclChannels asked = {}) {
        return message_channels(bytes, ranks, true, asked, {});
    };
    EXPECT_EQ(on_node(64 * kMiB, 8), 4);
    EXPECT_EQ(on_node(64 * kMiB + 1, 8), 8);
    EXPECT_EQ(on_node(kMiB << 10, 8), 32) << "no more than the pair has";
    EXPECT_EQ(on_node(100 * kKiB, 8), 2) << "64 KiB at least";
    EXPECT_EQ(on_node(1, 8), 1);
    EXPECT_EQ(on_node(0, 8), 1);
    EXPECT_EQ(on_node(kMiB, 2), 16);
    EXPECT_EQ(on_node(16 * kMiB, 8, {.max_ctas = 8}), 1);
    EXPECT_EQ(message_channels(kMiB, 8, true, {}, {.nvlink = false}), 2) << "PCIe";
    const auto over_net = [](int64_t bytes, int ranks, NcclChannels asked = {}) {
        return message_channels(bytes, ranks, false, asked, {});
    };
    EXPECT_EQ(over_net(128 * kKiB, 24), 1);
    EXPECT_EQ(over_net(129 * kKiB, 24), 2);
    EXPECT_EQ(over_net(kMiB, 64), 2);
    EXPECT_EQ(over_net(kMiB, 65), 1) << "beyond 64 ranks";
    EXPECT_EQ(over_net(kMiB, 128, {.net_peer = kColumnChannels}), 4) << "a column";
}

TEST(NcclMemory, OnlyMessagesHaveTheChannelsOfMessages) {
    using enum Algorithm;
    using enum GroupKind::Span;
    for (const Algorithm how : {ring, direct, hier})
        EXPECT_TRUE(sends_messages({.data = how}, {Axis::shard})) << int(how);
    for (const Algorithm how : {library, symmetric}) {
        EXPECT_FALSE(sends_messages({.data = how}, {Axis::data})) << int(how);
        EXPECT_FALSE(sends_messages({.tp = how}, {Axis::tp})) << int(how);
        EXPECT_TRUE(sends_messages({.data = how, .tp = direct}, {Axis::tp})) << int(how);
        EXPECT_TRUE(sends_messages({.data = how, .tp = how}, {Axis::cp})) << int(how);
        EXPECT_TRUE(sends_messages({.data = how, .tp = how}, {Axis::pp, link, 0, 1})) << int(how);
    }
    EXPECT_FALSE(sends_messages({.data = hier_symmetric}, {Axis::data, row}));
    EXPECT_TRUE(sends_messages({.data = hier_symmetric}, {Axis::data, column}));
}

// tp gets 8 to 16 channels, the norm's block sums and the handshakes of symmetric memory one.
TEST(NcclMemory, GroupsHaveTheirChannels) {
    const auto ctas = [](const GridOptions& grid, const GroupKind& group, Algorithm data = Algorithm::ring) {
        return nccl_channels(Grid(64, grid), {.data = data}, group, 132, 0).max_ctas;
    };
    EXPECT_EQ(ctas({}, {Axis::data}), 0) << "alone: NCCL's own choice";
    EXPECT_EQ(ctas({.tp = 8}, {Axis::tp}), 16);
    EXPECT_EQ(ctas({.tp = 8}, {Axis::data}), 16);
    EXPECT_EQ(ctas({.tp = 8, .cp = 2}, {Axis::tp}), 8);
    EXPECT_EQ(ctas({.tp = 8}, {Axis::model}), 1);
    EXPECT_EQ(ctas({.tp = 8, .pp = 4}, {Axis::pp, GroupKind::Span::link, 0, 1}), 2);
    EXPECT_EQ(ctas({}, {Axis::data}, Algorithm::symmetric), 1);
    EXPECT_EQ(ctas({}, {Axis::data, GroupKind::Span::row}, Algorithm::hier_symmetric), 1);
    EXPECT_EQ(ctas({}, {Axis::data, GroupKind::Span::column}, Algorithm::hier_symmetric), 0);
    // Row and column of hier are under way together. Where each node holds one rank of a group there is no row.
    GridOptions nodes{.by_columns = true};
    for (int r = 0; r < 64; ++r) nodes.nodes.push_back(r / 8);
    EXPECT_EQ(ctas(nodes, {Axis::data, GroupKind::Span::row}, Algorithm::hier), 16);
    EXPECT_EQ(ctas(nodes, {Axis::data, GroupKind::Span::column}, Algorithm::hier), 16);
    nodes.tp = 8;
    EXPECT_EQ(ctas(nodes, {Axis::data}, Algorithm::hier), 16) << "beside tp";
    EXPECT_EQ(nccl_channels(Grid(64, nodes), {.data = Algorithm::hier}, {Axis::data}, 132, 0).net_peer, kColumnChannels)
        << "a rank on each node is a column";
    nodes.tp = 2;
    EXPECT_EQ(ctas(nodes, {Axis::data, GroupKind::Span::row}, Algorithm::hier), 8) << "beside tp, model and column";
    for (const auto span : {GroupKind::Span::all, GroupKind::Span::row, GroupKind::Span::column})
        EXPECT_EQ(nccl_channels(Grid(64, nodes), {.data = Algorithm::hier}, {Axis::data, span}, 132, 0).net_peer,
                  span == GroupKind::Span::column ? kColumnChannels : 0);
}

// --comm-sms: no more than compute leaves free, whatever is under way together.
TEST(NcclBlocks, StayWithinWhatComputeLeavesFree) {
    for (const int lanes : {0, 2, 4})
        for (int groups = 1; groups <= 5; ++groups)
            for (const int hands : {0, 1})
                for (const int reserved_sms : {lanes + groups + hands, 16, 40}) {
                    const NcclBlocks blocks = nccl_blocks(132, lanes, groups, reserved_sms, hands);
                    EXPECT_GE(blocks.group, 1);
                    EXPECT_EQ(blocks.lane > 0, lanes > 0);
                    EXPECT_LE(lanes * blocks.lane + groups * blocks.group + hands, reserved_sms)
                        << lanes << " " << groups;
                }
    EXPECT_EQ(nccl_blocks(132, 0, 1, 16).group, 16);
    EXPECT_EQ(nccl_blocks(132, 0, 0, 16).group, 0) << "one rank";
}

TEST(RoomForCommunication, AContextHasItAsLongAsTheMesh) {
    RankContext context;
    const Device gpu{DeviceKind::planned, 0, &context};
    {
        const Mesh mesh(gpu, 1, 4, PlannedLink{}, {.reserved_sms = 12});
        EXPECT_EQ(context.beside.reserved_sms, 12);
        EXPECT_NE(context.beside.next_tile, nullptr);
    }
    EXPECT_EQ(context.beside, SmBudget{});
    const Mesh alone(gpu, 0, 1, PlannedLink{}, {.reserved_sms = 12});
    EXPECT_EQ(context.beside.reserved_sms, 12);
    EXPECT_NE(context.beside.next_tile, nullptr) << "one GPU draws too: its tiles are balanced so";
}

// Asked for before there is a GPU to ask (the plan), and by the mesh of a run.
TEST(RoomForCommunication, IsRefusedWhereItCannotBeMet) {
    const Grid data(4, {}), staged(4, {.pp = 2});
    const auto refusal = [](int reserved_sms, int multiprocessors, bool cpu, bool nccl, const Grid& grid) {
        return error_of([&] { check_reserved_sms(reserved_sms, multiprocessors, cpu, nccl, grid, {}); });
    };
    EXPECT_TRUE(says(refusal(132, 132, false, true, data), "has 132 multiprocessors"));
    EXPECT_EQ(refusal(131, 132, false, true, data), "");
    EXPECT_EQ(refusal(131, 0, false, true, data), "") << "a GPU of which nothing is known";
    EXPECT_TRUE(says(refusal(2, 132, false, true, staged), "nearest: --comm-sms 5"));
    EXPECT_EQ(refusal(2, 132, false, false, staged), "") << "not over NCCL";
    EXPECT_EQ(refusal(5, 132, false, true, staged), "") << "two lanes, three groups";
    EXPECT_TRUE(says(refusal(2, 0, true, false, data), "on the CPU"));
    EXPECT_EQ(refusal(0, 132, false, true, staged), "");
}

TEST(RoomForCommunication, IsRefusedOnACpu) {
    RankContext context;
    context.one_memory = true;
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::planned}) {
        const Device cpu{kind, 0, &context};
        EXPECT_THROW(Mesh(cpu, MeshOptions{.reserved_sms = 2}), Error);
        EXPECT_EQ(context.beside, SmBudget{});
    }
}

TEST(MeshOfOneProcess, HasEveryAxisWithOneRank) {
    const Mesh mesh({DeviceKind::cpu, 0}, {});
    EXPECT_EQ(mesh.world(), (AxisRank{0, 1}));
    for (Collectives* group : {&mesh.tp(), &mesh.cp(), &mesh.pp(), &mesh.data(), &mesh.shard(), &mesh.model()})
        EXPECT_EQ(sum_over(*group, 3), 8);
    EXPECT_THROW(mesh.link_to(0), Error);
    EXPECT_THROW(Mesh({DeviceKind::cpu, 0}, {.grid = {.shard_size = 2}}), Error);
}

}  // namespace
}  // namespace rz
