// Collectives in virtual time: formulas to the tick, the bars of two levels at 64 nodes of 8, bits of many ranks.

#include <gtest/gtest.h>

#include <cmath>

#include "comm/mesh.h"
#include "comm/virtual_net.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

enum class Op { reduce_scatter, all_gather, all_reduce };

// Time for `bytes` in fp32 on every rank, each of which has a slice; only time passes.
Ticks time_of(const NetMachine& machine, int ranks, Algorithm algorithm, Op op, int64_t bytes,
              CollectiveOptions options = {}, VirtualNet** kept = nullptr) {
    static std::unique_ptr<VirtualNet> net;
    net = std::make_unique<VirtualNet>(ranks, machine);
    if (kept) *kept = net.get();
    const auto offsets = even_offsets(bytes / 4, ranks);
    const MeshOptions how{.algorithms = {.data = algorithm}, .collectives = options};
    return net->run([&](int rank) {
        Mesh mesh(*net, rank, how);
        Collectives& c = mesh.data();
        const Buffer memory(net->device(rank), bytes, MemKind::comm, "range");
        char* own = memory.bytes_at(4 * offsets[size_t(c.rank())]);
        void* all = memory.data();
        if (op == Op::reduce_scatter)
            c.reduce_scatter(mesh.stream(), reduce_scatter_f32(own, all, offsets));
        else if (op == Op::all_gather)
            c.all_gather(mesh.stream(), all_gather_f32(all, own, offsets));
        else
            c.all_reduce(mesh.stream(), sum_in_place(all, offsets));
        return mesh.stream().clock();
    });
}

constexpr CollectiveOptions kOneChunk{.chunk_bytes = int64_t(1) << 40, .lanes = 1};

TEST(VirtualNet, RingTakesItsFormulaToTheTick) {
    const NetMachine m;
    constexpr int64_t S = 64 << 20;
    for (const int N : {8, 64}) {
        const int64_t slice = S / N;
        const Ticks hop = N == 8 ? m.link_latency + m.link_message + ticks_of(slice, m.link_rate)
                                 : m.card_latency + m.card_message + ticks_of(slice, m.card_rate);
        EXPECT_EQ(time_of(m, N, Algorithm::ring, Op::reduce_scatter, S, kOneChunk),
                  (N - 1) * (m.group_gap + hop + m.op_gap + ticks_of(3 * slice, m.memory_rate)));
        EXPECT_EQ(time_of(m, N, Algorithm::ring, Op::all_gather, S, kOneChunk), (N - 1) * (m.group_gap + hop));
    }
}

TEST(VirtualNet, DirectTakesItsFormulaToTheTick) {
    const NetMachine m;
    constexpr int64_t S = 64 << 20, N = 8, slice = S / N;
    const Ticks wire = m.link_message + ticks_of(slice, m.link_rate);
    const Ticks exchange = m.group_gap + m.link_latency + (N - 1) * wire;
    EXPECT_EQ(time_of(m, N, Algorithm::direct, Op::all_gather, S, kOneChunk), exchange);
    // Before it the rank's own values are copied beside the others', after it all are summed.
    const Ticks ops = 2 * m.op_gap + ticks_of(2 * slice, m.memory_rate) + ticks_of((N + 1) * slice, m.memory_rate);
    EXPECT_EQ(time_of(m, N, Algorithm::direct, Op::reduce_scatter, S, kOneChunk), exchange + ops);
}

TEST(VirtualNet, TwoLevelsInSequenceTakeTheirFormulaToTheTick) {
    const NetMachine m;
    constexpr int64_t S = 64 << 20, P = 8, L = 8, column = S / L, slice = S / (P * L);
    const Ticks row = m.group_gap + m.link_latency + (L - 1) * (m.link_message + ticks_of(column, m.link_rate));
    const Ticks across = m.group_gap + m.card_latency + (P - 1) * (m.card_message + ticks_of(slice, m.card_rate));
    const Ticks sums =
        2 * m.op_gap + ticks_of((L + 1) * column, m.memory_rate) + ticks_of((P + 1) * slice, m.memory_rate);
    const CollectiveOptions whole{.step_bytes = int64_t(1) << 40};
    EXPECT_EQ(time_of(m, P * L, Algorithm::hier, Op::reduce_scatter, S, whole), row + sums + across);
    EXPECT_EQ(time_of(m, P * L, Algorithm::hier, Op::all_gather, S, whole), row + across);
}

// Bytes that must leave a node through its cards leave through them once, each card with as much.
TEST(VirtualNet, TheBusiestCardCarriesTheBytesOfTheBound) {
    constexpr int64_t S = 64 << 20;
    for (const int64_t step : {int64_t(1) << 20, int64_t(1) << 40}) {
        VirtualNet* net = nullptr;
        time_of({}, 64, Algorithm::hier, Op::reduce_scatter, S, {.step_bytes = step}, &net);
        EXPECT_EQ(net->busiest_card_bytes(), S / 8 * 7 / 8);
        EXPECT_EQ(net->busiest_link_bytes(), S * 7 / 8);
        for (int r = 0; r < 64; ++r) EXPECT_EQ(net->bytes_sent(r), S / 64 * 63);
    }
}

// The bars at 64 nodes of 8, in the model's time (build/dev/virtual_net bars has the whole table).
TEST(VirtualNet, TwoLevelsAt512RanksKeepTheirBars) {
    const NetMachine m;
    NetMachine two = m;
    two.ordered = false;  // two groups under way
    const auto bound = [&](int64_t bytes) { return double(collective_bound(m, 512, 1, bytes)); };
    const auto hier = [&](const NetMachine& on, int64_t bytes) {
        return double(time_of(on, 512, Algorithm::hier, Op::reduce_scatter, bytes));
    };
    constexpr int64_t kGiB = int64_t(1) << 30;
    const double at_gib = hier(m, kGiB), small = hier(m, 16 << 20);
    EXPECT_LE(at_gib, 1.25 * bound(kGiB));
    EXPECT_LE(hier(two, kGiB / 2), 1.20 * bound(kGiB / 2));
    const CollectiveOptions one_lane{.chunk_bytes = int64_t(1) << 40, .lanes = 1};
    EXPECT_GE(double(time_of(m, 512, Algorithm::ring, Op::reduce_scatter, 16 << 20, one_lane)), 70 * small);
    EXPECT_GE(double(time_of(m, 512, Algorithm::ring, Op::reduce_scatter, kGiB, one_lane)), 8 * at_gib);
}

template <class Body>
std::string error_of_two(const Body& body) {
    VirtualNet net(2, {});
    return error_of([&] {
        net.run([&](int rank) {
            const auto transport = net.transport(rank);
            Stream stream(net.device(rank), "communication");
            const Buffer memory(net.device(rank), 16, MemKind::comm, "memory");
            body(rank, *transport, stream, memory.data());
            return stream.clock();
        });
    });
}

TEST(VirtualNet, AMessageThatOnlyOneSidePostsIsNamed) {
    EXPECT_TRUE(says(error_of_two([](int rank, Transport& transport, Stream& stream, void* memory) {
                         if (rank == 0) transport.recv(stream, memory, 8, 1);
                     }),
                     "only the receiver posted 8 bytes from rank 1 to rank 0"));
}

TEST(VirtualNet, LengthsThatDifferAreRefused) {
    EXPECT_NE(error_of_two([](int rank, Transport& transport, Stream& stream, void* memory) {
                  rank == 0 ? transport.send(stream, memory, 8, 1) : transport.recv(stream, memory, 16, 0);
              }),
              "");
}

// Real bytes: integers as floats, whose sums are exact in any order; nodes of 3, 7 and 8, more than one card or not.
TEST(VirtualNet, SumsOfManyRanksAreExact) {
    struct Shape {
        int ranks, per_node, cards;
        bool in_turn;
        Algorithm algorithm;
        int64_t step;
    };
    for (const Shape& s : {Shape{1023, 1, 1, false, Algorithm::ring, 0},
                           {1023, 341, 8, false, Algorithm::hier, 256},
                           {512, 8, 8, false, Algorithm::hier, 0},
                           {96, 8, 1, true, Algorithm::hier, 2048},
                           {21, 7, 7, false, Algorithm::hier, 64},
                           {300, 1, 1, false, Algorithm::direct, 0}}) {
        NetMachine m;
        m.ranks_per_node = s.per_node, m.cards = s.cards, m.in_turn = s.in_turn;
        VirtualNet net(s.ranks, m, /*executes=*/true);
        std::vector<int64_t> offsets{0};
        for (int r = 0; r < s.ranks; ++r) offsets.push_back(offsets.back() + (r * 7 % 5 == 0 ? 0 : r % 4));
        const int64_t n = offsets.back();
        const auto value = [](int rank, int64_t i) { return float((rank * 31 + i * 7 + rank * i) % 97 - 40); };
        std::vector<float> want(static_cast<size_t>(n));
        for (int r = 0; r < s.ranks; ++r)
            for (int64_t i = 0; i < n; ++i) want[size_t(i)] += value(r, i);
        const MeshOptions how{.algorithms = {.data = s.algorithm}, .collectives = {.step_bytes = s.step}};
        net.run([&](int rank) {
            Mesh mesh(net, rank, how);
            std::vector<float> x(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; ++i) x[size_t(i)] = value(rank, i);
            const auto [begin, end] =
                std::pair(offsets[size_t(mesh.data().rank())], offsets[size_t(mesh.data().rank()) + 1]);
            std::vector<float> own(size_t(end - begin), NAN), all(size_t(n), NAN);
            mesh.data().reduce_scatter(mesh.stream(), reduce_scatter_f32(own.data(), x.data(), offsets));
            mesh.data().all_gather(mesh.stream(), all_gather_f32(all.data(), own.data(), offsets));
            if (all != want) throw Error(format("rank %d of %d has wrong sums", rank, s.ranks));
            return mesh.stream().clock();
        });
    }
}

TEST(Fibers, AnErrorEndsThoseThatWait) {
    Fibers fibers(3);
    int ended = 0;
    const auto body = [&](int i) {
        struct Count {
            int& n;
            ~Count() { ++n; }
        } count{ended};
        if (i == 1) throw Error("one fails");
        fibers.park();
    };
    EXPECT_THROW(fibers.run(body, [] { return std::string("nothing to do"); }), Error);
    EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace rz
