// NcclComm on the model of NCCL: two ranks as threads of this process, and what happens where NCCL's contract is
// broken.

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "comm/loopback.h"
#include "comm/nccl_comm.h"
#include "comm/nccl_transport.h"
#include "comm/watch.h"
#include "kernels/bit_sum.h"
#include "kernels/fp8/prepare_products.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/load.h"
#include "kernels/runtime/memory.h"
#include "test/simt/control.h"
#include "test/simt/streams.h"
#include "zero/unit_layout.h"

namespace rz {
namespace {

const Device kGpu{DeviceKind::cuda, 0};

struct Member {
    Member(const std::string& id, int rank, int max_ctas = 0)
        : comm(id, rank, 2, kGpu, {.group = "pair", .watch = nullptr, .channels = {.max_ctas = max_ctas}}) {}
    template <class Calls>
    void group(Calls calls) {
        NcclComm::Group g(comm, stream);
        calls(g);
        g.end();
    }
    NcclComm comm;
    Stream stream{kGpu, "test"};
    Buffer memory{kGpu, 4096, MemKind::comm, "test"};
};

// body(rank, member) on two threads.
template <class Body>
void on_two_ranks(Body body) {
    load_kernels(kGpu);
    const std::string id = NcclComm::unique_id();
    LoopbackHub(2).run([&](int rank) {
        Member member(id, rank);
        body(rank, member);
        member.stream.synchronize();
    });
}

std::vector<float> values(const Buffer& memory, int64_t first, int64_t n) {
    return {memory.as<float>() + first, memory.as<float>() + first + n};
}

TEST(NcclComm, EveryCallGivesWhatItSays) {
    on_two_ranks([](int rank, Member& m) {
        float* x = m.memory.as<float>();
        std::iota(x, x + 8, float(10 * rank));
        m.group([&](auto& calls) { calls.all_reduce(x, x + 100, 8, DType::f32); });
        m.group([&](auto& calls) { calls.reduce_scatter(x, x + 200, 4, DType::f32); });
        m.group([&](auto& calls) { calls.all_gather(x, x + 300, 8, DType::f32); });
        m.group([&](auto& calls) { calls.send(x, 32, 1 - rank), calls.recv(x + 400, 32, 1 - rank); });
        m.group([&](auto& calls) {
            calls.reduce(x, x + 500, 8, DType::f32, 1);
            calls.broadcast(x + 100, 8, DType::f32, 0);
        });
        m.stream.synchronize();
        for (int i = 0; i < 8; ++i) {
            EXPECT_EQ(x[100 + i], float(2 * i + 10));
            EXPECT_EQ(x[300 + i], float(i));
            EXPECT_EQ(x[308 + i], float(10 + i));
            EXPECT_EQ(x[400 + i], float(10 * (1 - rank) + i));
            if (rank == 1) {
                EXPECT_EQ(x[500 + i], float(2 * i + 10));
            }
        }
        EXPECT_EQ(values(m.memory, 200, 4), values(m.memory, 100 + 4 * rank, 4)) << "rank " << rank;
    });
}

// The slices of a unit, as ZeRO cuts it, on three ranks: NCCL's own collectives where they are equal, else a reduction
// to and a broadcast from each owner.
TEST(NcclCollectives, EqualSlicesOfAUnitAreOneReduceScatterAndOneAllGather) {
    constexpr int kRanks = 3;
    const auto calls = [](const UnitLayout& unit) {
        const auto counts = [] {
            std::vector<int> n;
            for (const char* name : {"ncclReduceScatter", "ncclAllGather", "ncclReduce", "ncclBroadcast"})
                n.push_back(simt::nccl_calls(name));
            return n;
        };
        const std::vector<int> before = counts();
        const std::string id = nccl_unique_id();
        LoopbackHub(kRanks).run([&](int rank) {
            const auto transport = make_nccl_transport(id, rank, {0, 1, 2}, "data", kGpu, nullptr);
            const auto library = make_collectives(Algorithm::library, *transport, {});
            const std::vector<int64_t> offsets = unit.slice_offsets(kRanks);
            const int64_t first = offsets[size_t(rank)];
            Stream stream(kGpu, "test");
            Buffer memory(kGpu, unit.padded * 4, MemKind::comm, "test");
            float* x = memory.as<float>();
            for (int64_t i = 0; i < unit.padded; ++i) x[i] = float(i % 61 + 100 * rank);
            library->reduce_scatter(stream, {.out = x + first,
                                             .in = x,
                                             .offsets = offsets,
                                             .dtype = DType::f32,
                                             .wire = DType::f32,
                                             .out_dtype = DType::f32});
            library->all_gather(stream, {.out = x, .in = x + first, .offsets = offsets, .dtype = DType::f32});
            stream.synchronize();
            int64_t wrong = 0;
            for (int64_t i = 0; i < unit.padded; ++i) wrong += x[i] != float(3 * (i % 61) + 300);
            EXPECT_EQ(wrong, 0) << "rank " << rank;
        });
        std::vector<int> after = counts();
        for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
        return after;
    };
    const UnitLayout equal = make_unit("unit", 0, 49'000, kRanks), dear = make_unit("unit", 0, 10'000, kRanks);
    ASSERT_TRUE(equal.equal && !dear.equal);
    EXPECT_EQ(calls(equal), (std::vector<int>{kRanks, kRanks, 0, 0}));
    EXPECT_EQ(calls(dear), (std::vector<int>{0, 0, kRanks * kRanks, kRanks * kRanks}));
}

TEST(NcclTransport, MessagesMakeNoEvents) {
    load_kernels(kGpu);
    const std::string id = nccl_unique_id();
    LoopbackHub(2).run([&](int rank) {
        const auto transport = make_nccl_transport(id, rank, {0, 1}, "data", kGpu, nullptr);
        Stream stream(kGpu, "test");
        Buffer memory(kGpu, 8, MemKind::comm, "test");
        uint64_t warm = 0;
        for (int i = 0; i < 60; ++i) {
            MessageGroup both;
            both.send(memory.bytes_at(0), 4, 1 - rank);
            both.recv(memory.bytes_at(4), 4, 1 - rank);
            transport->exchange(stream, both);
            const Event timed = stream.record(/*timing=*/true);
            timed.synchronize();
            if (i == 20) warm = simt::events_made();
        }
        const uint64_t made = simt::events_made() - warm;
        EXPECT_LE(made, 20u) << "rank " << rank << " of 240 for 40 messages of two ranks";
    });
}

// Several threads use a communicator as they like, and the watchdog looks at it: NcclComm lets in one at a time. The
// fake aborts where it does not.
TEST(NcclComm, ThreadsOfARankTakeTurns) {
    on_two_ranks([](int, Member& m) {
        const auto many = [&] {
            for (int i = 0; i < 50; ++i)
                m.group([&](auto& calls) {
                    calls.all_reduce(m.memory.data(), m.memory.data(), 4, DType::f32);
                    calls.all_reduce(m.memory.data(), m.memory.data(), 4, DType::f32);
                });
        };
        std::thread second(many), watchdog([&] {
            for (int i = 0; i < 200; ++i) m.comm.poll();
        });
        many();
        second.join();
        watchdog.join();
    });
}

// As above, but sure to find a communicator without its mutex: the watchdog looks while this thread is in a group. It
// does not wait for the group's end, which it may be there to report.
TEST(NcclComm, TheWatchdogStaysOutWhileAThreadIsInAGroup) {
    on_two_ranks([](int, Member& m) {
        m.group([&](auto& calls) {
            calls.all_reduce(m.memory.data(), m.memory.data(), 4, DType::f32);
            std::thread([&] { m.comm.poll(); }).join();
        });
        std::thread([&] { m.comm.poll(); }).join();
    });
}

// Calls before the exception are launched or dropped, but the group is closed: the next one works.
TEST(NcclComm, AnExceptionClosesTheGroup) {
    on_two_ranks([](int, Member& m) {
        EXPECT_THROW(m.group([&](auto& calls) {
            calls.all_reduce(m.memory.data(), m.memory.data(), 4, DType::f32);
            fail("the second message can't be made");
        }),
                     Error);
        float* x = m.memory.as<float>() + 64;
        x[0] = 1;
        m.group([&](auto& calls) { calls.all_reduce(x, x, 1, DType::f32); });
        m.stream.synchronize();
        EXPECT_EQ(x[0], 2);
    });
}

// A peer has gone. The watchdog's thread aborts; who waits for the device meanwhile hears of it.
TEST(NcclComm, AnAbortEndsWhatIsUnderWay) {
    load_kernels(kGpu);
    RankContext context;
    const Device device{DeviceKind::cuda, 0, &context};
    const std::string id = NcclComm::unique_id();
    NcclComm comm(id, 0, 2, device, {.group = "pair", .watch = nullptr}), silent(id, 1, 2, device, {});
    const Buffer memory(device, 64, MemKind::comm, "test");
    Stream stream(device, "test");
    NcclComm::Group calls(comm, stream);
    calls.recv(memory.data(), 4, 1);
    calls.end();
    const Event received = stream.record();
    std::thread watchdog([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_FALSE(received.done());
        context.given_up = true;
        comm.abort();
    });
    EXPECT_THROW(stream.synchronize(), Error);
    watchdog.join();
    EXPECT_TRUE(received.done());
    EXPECT_THROW(received.synchronize(), Error);
    EXPECT_THROW(NcclComm::Group(comm, stream), Error);
}

TEST(NcclComm, AnErrorOfACallIsThrownAndClosesTheGroup) {
    on_two_ranks([](int, Member& m) {
        NcclComm::Group calls(m.comm, m.stream);
        EXPECT_THROW(calls.send(m.memory.data(), 4, 7), Error);
    });
}

// Two lanes in opposite directions; each rank asks for what comes before it sends. The ranks, threads of this process,
// share the device's thread blocks: four operations of three each.
TEST(NcclComm, LanesStayWithinTheirThreadBlocks) {
    setenv("SIMT_NCCL_BLOCKS", "12", 1);
    const std::string up = NcclComm::unique_id(), down = NcclComm::unique_id();
    LoopbackHub(2).run([&](int rank) {
        Member first(up, rank, 3), second(down, rank, 3);
        Member &in = rank == 0 ? second : first, &out = rank == 0 ? first : second;
        int* x = in.memory.as<int>();
        x[0] = -1, x[1] = 10 + rank;
        in.group([&](auto& calls) { calls.recv(x, 4, 1 - rank); });
        out.group([&](auto& calls) { calls.send(x + 1, 4, 1 - rank); });
        in.stream.synchronize();
        out.stream.synchronize();
        EXPECT_EQ(x[0], 10 + 1 - rank);
    });
    unsetenv("SIMT_NCCL_BLOCKS");
}

// ---- the model itself -----------------------------------------------------------------------------------------------

ncclComm_t alone(int blocking) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
    return comm;
}

struct NcclModel : testing::Test {
    NcclModel() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using NcclModelDeath = NcclModel;

TEST_F(NcclModelDeath, TwoThreadsInOneCommunicator) {
    EXPECT_DEATH(
        {
            ncclComm_t comm = alone(1);
            float x[4] = {};
            ncclGroupStart();
            ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr);
            std::thread([&] { ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr); }).join();
        },
        "two threads in one communicator: one calls ncclAllReduce");
}

TEST_F(NcclModelDeath, AGroupThatIsLeftOpen) {
    EXPECT_DEATH(std::thread([] { ncclGroupStart(); }).join(), "a thread ends with an open group");
    EXPECT_DEATH(
        {
            ncclComm_t comm = alone(1);
            ncclGroupStart();
            ncclCommDestroy(comm);
        },
        "ncclCommDestroy with an open group");
}

TEST_F(NcclModelDeath, AsyncErrorIsNoQuery) {
    EXPECT_DEATH(
        {
            ncclComm_t comm = alone(0);
            float x[4] = {};
            ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr);
            const auto poll = [&] {
                for (ncclResult_t state;;) ncclCommGetAsyncError(comm, &state);
            };
            std::thread watchdog(poll);
            poll();
        },
        "two threads in one communicator: one calls ncclCommGetAsyncError");
    EXPECT_DEATH(
        {
            ncclComm_t comm = alone(0);
            float x[4] = {};
            ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr);
            ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr);
        },
        "while the job of the last group is pending");
}

// Rank 1 waits for a message on the device that a kernel is to be loaded on.
TEST_F(NcclModelDeath, AKernelThatIsLoadedWhileACollectiveIsOpen) {
    const auto launch_while_open = [](bool load) {
        if (load) load_kernels(kGpu);
        ncclComm_t comm = alone(1);
        Stream stream(kGpu, "waits"), other(kGpu, "launches");
        Buffer x(kGpu, 256, MemKind::comm, "test");
        ncclRecv(x.data(), 4, ncclFloat32, 0, comm, stream.cuda());
        bit_sum(other, {.sum = x.as<uint64_t>() + 8, .data = x.bytes_at(128), .bytes = 64});
        std::_Exit(7);
    };
    EXPECT_DEATH(launch_while_open(false), "kernel .*bit_sum.* is loaded while 1 operations of NCCL are under way");
    EXPECT_EXIT(launch_while_open(true), testing::ExitedWithCode(7), "");
}

// A shape that prepare_products() has run is loaded, another is not.
TEST_F(NcclModelDeath, AProductThatIsLoadedWhileACollectiveIsOpen) {
    const auto multiply_while_open = [](int64_t prepared) {
        RankContext context;
        const Device device{DeviceKind::cuda, 0, &context};
        Buffer x(device, 4096, MemKind::comm, "test");
        Gemm g{.c = x.bytes_at(2048),
               .a = x.data(),
               .b = x.bytes_at(1024),
               .M = prepared,
               .N = 8,
               .K = 8,
               .dtype = DType::f32,
               .c_dtype = DType::f32};
        ProductShapes shapes;
        shapes.add({.label = nullptr, .type = &typeid(Gemm), .args = &g});
        prepare_products(device, shapes);
        ncclComm_t comm = alone(1);
        Stream stream(kGpu, "waits"), other(device, "multiplies");
        ncclRecv(x.data(), 4, ncclFloat32, 0, comm, stream.cuda());
        g.M = 16;
        gemm(other, g);
        std::_Exit(7);
    };
    EXPECT_DEATH(multiply_while_open(8), "the code of a product of 8 x 16 x 8, .* is loaded while 1 operations");
    EXPECT_EXIT(multiply_while_open(16), testing::ExitedWithCode(7), "");
}

TEST_F(NcclModelDeath, MoreThreadBlocksThanThereAre) {
    EXPECT_DEATH(
        {
            setenv("SIMT_NCCL_BLOCKS", "31", 1);
            ncclComm_t comm = alone(1);
            float x[4] = {};
            ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr);
        },
        "an operation of 32 thread blocks, there are 31 for NCCL");
}

TEST_F(NcclModel, AsyncErrorCompletesTheJob) {
    ncclComm_t comm = alone(0);
    Stream stream(kGpu, "test");
    Buffer memory(kGpu, 64, MemKind::comm, "test");
    float* x = memory.as<float>();
    x[0] = 3;
    ASSERT_EQ(ncclAllReduce(x, x + 1, 1, ncclFloat32, ncclSum, comm, stream.cuda()), ncclInProgress);
    stream.synchronize();
    EXPECT_NE(x[1], 3) << "nothing is launched yet";
    ncclResult_t state = ncclSuccess;
    do ncclCommGetAsyncError(comm, &state);
    while (state == ncclInProgress);
    stream.synchronize();
    EXPECT_EQ(x[1], 3);
    ncclCommDestroy(comm);
}

}  // namespace
}  // namespace rz
