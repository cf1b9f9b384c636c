// Collectives in virtual time: planned ranks in one process, and one rank without the others.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "comm/loopback.h"
#include "comm/mesh.h"
#include "comm/watch.h"
#include "kernels/elementwise.h"
#include "kernels/runtime/context.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

constexpr Ticks kLatency = 1000, kAdd = 77;
const PlannedLink kLink = even_link(kLatency, /*bytes per second=*/kTicksPerSecond);

Ticks adds_only(const OpCall& op, const Stream&) { return op.as<ReduceAdd>() ? kAdd : 0; }

// Clocks of all ranks after body(rank, device, transport, stream).
template <class Body>
std::vector<Ticks> clocks(int ranks, const PlannedLink& link, const Body& body) {
    LoopbackHub hub(ranks, link, /*timeout_s=*/20);
    std::vector<Ticks> out(static_cast<size_t>(ranks));
    hub.run([&](int rank) {
        hub.device(rank).context->planned.cost = adds_only;
        auto transport = hub.transport(rank);
        Stream stream(hub.device(rank), "comm");
        body(rank, *transport, stream);
        out[size_t(rank)] = stream.clock();
    });
    return out;
}

TEST(PlannedTransport, AMessageMovesTheReceiversClockToItsArrival) {
    // rank 0 sends 500 bytes at time 100; rank 1 asks for them at `asks`
    for (const Ticks asks : {Ticks(0), Ticks(100), Ticks(9999)}) {
        const auto t = clocks(2, kLink, [&](int rank, Transport& transport, Stream& stream) {
            char nothing = 0;
            stream.wait_until(rank == 0 ? 100 : asks);
            rank == 0 ? transport.send(stream, &nothing, 500, 1) : transport.recv(stream, &nothing, 500, 0);
        });
        EXPECT_EQ(t[0], 100 + kLatency + 500);
        EXPECT_EQ(t[1], std::max(asks, 100 + kLatency + 500));
    }
}

// Work between start and finish overlaps the message: the longer of the two counts.
TEST(PlannedTransport, WorkOverlapsATransfer) {
    for (const Ticks work : {Ticks(10), Ticks(5000)}) {
        const auto t = clocks(2, kLink, [&](int rank, Transport& transport, Stream& stream) {
            char memory[2] = {};
            MessageGroup group;
            group.send(&memory[0], 500, 1 - rank);
            group.recv(&memory[1], 500, 1 - rank);
            const Transfer transfer = transport.start(stream, group);
            stream.wait_until(stream.clock() + work);
            transport.finish(stream, transfer);
        });
        for (const Ticks time : t) EXPECT_EQ(time, std::max(work, kLatency + 500));
    }
}

// A ring of N with one lane: 2 (N - 1) hops of a slice, and N - 1 additions. One rank alone tells the time of a large
// ring from a few of its hops; it is that of all of them, and so are the bytes.
TEST(PlannedTransport, RingAllReduceTakesItsClosedForm) {
    constexpr int64_t kSlice = 1 << 12;  // elements
    for (const int N : {2, 3, 8, 64, 128, 1000, 16384}) {
        const Ticks want = 2 * (N - 1) * (kLatency + 4 * kSlice) + (N - 1) * kAdd;
        const auto offsets = even_offsets(N * kSlice, N);
        const auto all_reduce = [&](Collectives& ring, Stream& stream) {
            const Buffer x(stream.device(), 4 * N * kSlice, MemKind::data, "x");
            ring.all_reduce(stream, sum_in_place(x.data(), offsets));
        };
        const CollectiveOptions one_lane{.chunk_bytes = 4 * kSlice, .lanes = 1};
        if (N <= 64) {
            const auto t = clocks(N, kLink, [&](int, Transport& transport, Stream& stream) {
                auto ring = make_collectives(Algorithm::ring, transport, one_lane);
                all_reduce(*ring, stream);
                EXPECT_EQ(transport.bytes_sent(), 2 * (N - 1) * 4 * kSlice);
            });
            for (const Ticks time : t) EXPECT_EQ(time, want) << N << " ranks";
        }
        RankContext context;
        context.planned.cost = adds_only;
        const Device device{DeviceKind::planned, 0, &context};
        Mesh mesh(device, N / 2, N, kLink, {.algorithms = {Algorithm::ring}, .collectives = one_lane});
        Stream stream(device, "comm");
        all_reduce(mesh.data(), stream);
        EXPECT_EQ(stream.clock(), want) << "one of " << N << " ranks";
        EXPECT_EQ(mesh.bytes_sent(), 2 * (N - 1) * 4 * kSlice);
    }
}

// Dissemination: a barrier of 1,000 ranks is ten rounds of one-byte messages, and no rank leaves before the last came.
TEST(PlannedTransport, ABarrierOfAThousandRanksEndsAfterTheLast) {
    constexpr int kRanks = 1000;
    constexpr Ticks kRound = kLatency + 1, kLate = 123456;
    const auto t = clocks(kRanks, kLink, [&](int rank, Transport& transport, Stream& stream) {
        if (rank == 617) stream.wait_until(kLate);
        make_collectives(Algorithm::ring, transport)->barrier(stream);
    });
    for (int r = 0; r < kRanks; ++r) {
        EXPECT_GE(t[size_t(r)], kLate + (r == 617 ? 0 : kRound));
        EXPECT_LE(t[size_t(r)], kLate + 10 * kRound);
    }
}

// Links that keep state: a rank's messages share its port.
TEST(PlannedTransport, ALinkMayMakeMessagesWaitForEachOther) {
    std::vector<Ticks> port_free(3);
    const PlannedLink link = [&](int from, int, int64_t bytes, Ticks ready) {
        Ticks& free = port_free[size_t(from)];
        free = std::max(free, ready) + bytes;
        return free + kLatency;
    };
    const auto t = clocks(3, link, [&](int rank, Transport& transport, Stream& stream) {
        char nothing = 0;
        MessageGroup group;
        if (rank == 0)
            for (const int to : {1, 2}) group.send(&nothing, 300, to);
        else
            group.recv(&nothing, 300, 0);
        transport.exchange(stream, group);
    });
    EXPECT_EQ(t, (std::vector<Ticks>{600 + kLatency, 300 + kLatency, 600 + kLatency}));
}

// With executed ops the sums are those of the CPU's ring, to the bit.
TEST(PlannedTransport, ExecutedCollectivesGiveTheCpusBits) {
    constexpr int N = 3;
    constexpr int64_t n = 1000;
    const auto offsets = even_offsets(n, N);
    const auto sums = [&](LoopbackHub& hub) {
        std::vector<std::vector<float>> out(N, std::vector<float>(n));
        hub.run([&](int rank) {
            hub.device(rank).context->planned.executes = true;
            auto transport = hub.transport(rank);
            auto ring = make_collectives(Algorithm::ring, *transport, {.chunk_bytes = 400, .lanes = 2});
            Stream stream(hub.device(rank), "comm");
            std::vector<float>& x = out[size_t(rank)];
            for (int64_t i = 0; i < n; ++i) x[size_t(i)] = float(std::sin(double(i * (rank + 3)))) * float(i % 13);
            ring->all_reduce(stream, sum_in_place(x.data(), offsets));
            ring->broadcast(stream, x.data(), 40, 1);
            stream.synchronize();
        });
        return out;
    };
    LoopbackHub cpu(N), planned(N, PlannedLink{});
    EXPECT_EQ(sums(planned), sums(cpu));
}

TEST(PlannedTransport, SizesThatDisagreeAndMessagesThatNeverComeAreErrors) {
    EXPECT_THROW(clocks(2, PlannedLink{},
                        [](int rank, Transport& transport, Stream& stream) {
                            char nothing = 0;
                            rank == 0 ? transport.send(stream, &nothing, 5, 1) : transport.recv(stream, &nothing, 6, 0);
                        }),
                 Error);
    LoopbackHub hub(2, PlannedLink{}, /*timeout_s=*/0.1);
    auto transport = hub.transport(1);
    Stream stream(hub.device(1), "comm");
    char nothing = 0;
    EXPECT_THROW(transport->recv(stream, &nothing, 5, 0), DeadlineError);
    EXPECT_THROW(make_planned_transport("world", 0, {0}, Device{}, PlannedLink{}), Error);
}

}  // namespace
}  // namespace rz
