// Symmetric collectives of GPUs on the model of NCCL: ranks as threads of this process, each on a GPU of its own.

#include <gtest/gtest.h>
#include <nccl.h>
#include <nccl_device.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "comm/loopback.h"
#include "comm/nccl_comm.h"
#include "comm/nccl_transport.h"
#include "comm/watch.h"
#include "kernels/runtime/load.h"
#include "test/comm/symmetric_cases.h"
#include "test/simt/control.h"

// NVIDIA's is for kernels alone; this is the model's.
void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer);

namespace rz {
namespace {

// Makes the devices such, for as long as this is there.
struct Gpus {
    explicit Gpus(bool reach_each_other = true) {
        setenv("SIMT_DEVICES", "4", 1);
        setenv("SIMT_P2P", reach_each_other ? "1" : "0", 1);
    }
    ~Gpus() {
        unsetenv("SIMT_DEVICES");
        unsetenv("SIMT_P2P");
    }
};

struct Member {
    Member(LoopbackHub& hub, int rank, const std::string& id) : device(hub.device(rank)), stream(device, "comm") {
        std::vector<int> all(static_cast<size_t>(hub.size()));
        std::iota(all.begin(), all.end(), 0);
        load_kernels(device);
        transport = make_nccl_transport(id, rank, all, "world", device, nullptr);
        symmetric = make_symmetric(*transport, options);
    }
    CollectiveOptions options{.chunk_bytes = 1 << 16, .lanes = 2, .meter = nullptr};
    Device device;
    Stream stream;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Collectives> symmetric;
};

// body(rank, member) on as many threads.
template <class Body>
void on_gpus(int ranks, Body body) {
    LoopbackHub hub(ranks, DeviceKind::cuda, 60);
    const std::string id = nccl_unique_id();
    hub.run([&](int rank) {
        Member member(hub, rank, id);
        body(rank, member);
        member.stream.synchronize();
    });
}

class SymmetricOnGpus : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SymmetricOnGpus, testing::Values(2, 3, 4), testing::PrintToStringParamName());

TEST_P(SymmetricOnGpus, WindowsGiveTheBitsOfDirect) {
    const Gpus gpus;
    on_gpus(GetParam(), [&](int, Member& m) {
        EXPECT_EQ(m.symmetric->through(), "by memory that all GPUs map");
        const auto direct = make_direct(*m.transport, m.options);
        compare_with_direct(*m.symmetric, *direct, m.stream);
    });
}

TEST_P(SymmetricOnGpus, PinnedMemoryOfTheHostGivesTheBitsOfDirect) {
    const Gpus gpus(/*reach_each_other=*/false);
    on_gpus(GetParam(), [&](int rank, Member& m) {
        const std::string note = m.symmetric->through();
        EXPECT_TRUE(note.starts_with("through pinned memory of the host: GPU ")) << note;
        if (rank == 0) {
            EXPECT_NE(note.find("GPU 0 does not reach GPUs 1, 2, 3: "), std::string::npos) << note;
        }
        EXPECT_EQ(m.symmetric->allocate(4096, Alloc::per_rank), nullptr);
        const auto direct = make_direct(*m.transport, m.options);
        compare_with_direct(*m.symmetric, *direct, m.stream);
    });
}

// A call is over when the others have read this rank's values too: what follows on its stream may change them. Streams
// of the emulator run in any order that events allow.
TEST_P(SymmetricOnGpus, ValuesStayUntilAllHaveReadThem) {
    const Gpus gpus;
    const int ranks = GetParam();
    const std::vector<int64_t> offsets = even_offsets(64 * ranks, ranks);
    on_gpus(ranks, [&](int rank, Member& m) {
        auto* x = reinterpret_cast<float*>(m.symmetric->allocate(offsets.back() * 4, Alloc::per_rank)->part(rank));
        constexpr int kTimes = 50;
        Buffer sums(m.device, kTimes * 256, MemKind::comm, "sums"),
            ones(m.device, offsets.back() * 4, MemKind::comm, "ones");
        std::fill_n(ones.as<float>(), offsets.back(), 1.0f);
        for (int time = 0; time < kTimes; ++time) {
            m.stream.copy(x, ones.data(), offsets.back() * 4);
            m.symmetric->reduce_scatter(m.stream, {.out = sums.bytes_at(time * 256),
                                                   .in = x,
                                                   .offsets = offsets,
                                                   .dtype = DType::f32,
                                                   .wire = DType::f32,
                                                   .out_dtype = DType::f32});
            m.stream.zero(x, offsets.back() * 4);
        }
        m.stream.synchronize();
        for (int i = 0; i < kTimes * 64; ++i) ASSERT_EQ(sums.as<float>()[i], float(ranks)) << i << ", rank " << rank;
        m.symmetric->barrier(m.stream);
        for (int time = 0; time < kTimes; ++time) {
            m.stream.copy(x + 64 * rank, ones.data(), 256);
            m.symmetric->all_gather(m.stream, {.out = x, .in = x + 64 * rank, .offsets = offsets, .dtype = DType::f32});
            m.stream.zero(x + 64 * rank, 256);
            m.stream.copy(sums.bytes_at(time * 256), x + 64 * ((rank + 1) % ranks), 256);
        }
        m.stream.synchronize();
        for (int i = 0; i < kTimes * 64; ++i) ASSERT_EQ(sums.as<float>()[i], 1) << i << ", rank " << rank;
    });
}

// Collectives may go while what they have queued is not done: their windows wait for it.
TEST_P(SymmetricOnGpus, AWindowStaysUntilWhatIsQueuedHasReadIt) {
    const Gpus gpus;
    const int ranks = GetParam();
    const std::vector<int64_t> offsets = even_offsets(1000 * ranks, ranks);
    on_gpus(ranks, [&](int rank, Member& m) {
        auto* x = reinterpret_cast<float*>(m.symmetric->allocate(offsets.back() * 4, Alloc::per_rank)->part(rank));
        std::vector<float> got(size_t(offsets.back()));
        for (int i = 0; i < 1000; ++i) x[1000 * rank + i] = float(rank + 1);
        m.symmetric->all_gather(m.stream, {.out = x, .in = x + 1000 * rank, .offsets = offsets, .dtype = DType::f32});
        m.stream.copy(got.data(), x, offsets.back() * 4);
        m.symmetric.reset();
        m.stream.synchronize();
        for (int r = 0; r < ranks; ++r) EXPECT_EQ(got[size_t(1000 * r)], float(r + 1));
    });
}

// ---- NcclComm's windows, and the model's ----------------------------------------------------------------------------

// A member that does not come to a window is reported by the watchdog, as any call that does not return.
TEST(NcclWindow, AMemberThatDoesNotComeIsReportedAtTheDeadline) {
    const Gpus gpus;
    LoopbackHub hub(2, DeviceKind::cuda, /*timeout_s=*/0.2);
    const std::string id = NcclComm::unique_id();
    std::string reported;
    std::atomic<bool> is_reported = false;
    hub.run([&](int rank) {
        NcclComm comm(id, rank, 2, hub.device(rank), {.group = "pair", .watch = hub.watch(rank)});
        if (rank == 0) {
            std::thread waiting([&] { comm.window(4096); });
            while (!is_reported) try {
                    comm.poll();
                    std::this_thread::sleep_for(std::chrono::milliseconds(5));
                } catch (const DeadlineError& e) {
                    reported = e.what();
                    is_reported = true;
                }
            waiting.join();  // the other one comes now
        } else {
            while (!is_reported) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            comm.window(4096);
        }
    });
    EXPECT_NE(reported.find("in ncclCommWindowRegister of group pair, which has not returned"), std::string::npos)
        << reported;
}

// NCCL's own collectives take what ZeRO has allocated where it lies, and give the values of those without.
TEST(NcclCollectives, FlatBuffersAreRegisteredWithNccl) {
    const Gpus gpus;
    constexpr int kRanks = 3;
    const std::vector<int64_t> offsets = even_offsets(64 * kRanks, kRanks);
    const std::array names = {"ncclReduceScatter-registered", "ncclAllGather-registered"};
    const std::array before = {simt::nccl_calls(names[0]), simt::nccl_calls(names[1])};
    on_gpus(kRanks, [&](int rank, Member& m) {
        const auto library = make_collectives(Algorithm::library, *m.transport, m.options);
        SharedMemory* memory = library->allocate(offsets.back() * 4, Alloc::per_rank);
        ASSERT_NE(memory, nullptr);
        EXPECT_EQ(library->through(), "summed in NCCL's order, buffers registered with it");
        auto* x = reinterpret_cast<float*>(memory->part(library->shared_rank()));
        for (int64_t i = 0; i < offsets.back(); ++i) x[i] = float(i + rank);
        float* own = x + 64 * rank;
        library->reduce_scatter(m.stream, {.out = own,
                                           .in = x,
                                           .offsets = offsets,
                                           .dtype = DType::f32,
                                           .wire = DType::f32,
                                           .out_dtype = DType::f32});
        library->all_gather(m.stream, {.out = x, .in = own, .offsets = offsets, .dtype = DType::f32});
        m.stream.synchronize();
        for (int64_t i = 0; i < offsets.back(); ++i) ASSERT_EQ(x[i], float(3 * i + 3)) << i;
    });
    for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(simt::nccl_calls(names[i]), before[i] + kRanks) << names[i];
}

struct WindowModel : testing::Test {
    WindowModel() {
        GTEST_FLAG_SET(death_test_style, "threadsafe");
        ncclUniqueId id;
        ncclGetUniqueId(&id);
        ncclCommInitRankConfig(&comm, 1, id, 0, nullptr);
        ncclMemAlloc(&memory, 4096);
    }
    ncclComm_t comm = nullptr;
    void* memory = nullptr;
    ncclWindow_t window = nullptr;
};
using WindowModelDeath = WindowModel;

TEST_F(WindowModel, OnlyMemoryOfNcclBecomesAWindow) {
    std::vector<char> other(4096);
    EXPECT_EQ(ncclCommWindowRegister(comm, other.data(), 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
              ncclUnhandledCudaError);
    EXPECT_EQ(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
    EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// As NCCL 2.28: success, and no window.
TEST_F(WindowModel, WithoutP2pRegistrationSucceedsAndMapsNothing) {
    const Gpus gpus(/*reach_each_other=*/false);
    EXPECT_EQ(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
    EXPECT_EQ(static_cast<void*>(window), memory);
    ncclDevCommRequirements nothing = {};
    ncclDevComm made = {};
    EXPECT_EQ(ncclDevCommCreate(comm, &nothing, &made), ncclInvalidUsage);
    ncclMemFree(memory);
    ncclCommDestroy(comm);
}

TEST_F(WindowModelDeath, UsedAfterItWasDeregistered) {
    EXPECT_EXIT(
        {
            ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC);
            cudaStream_t stream;
            cudaStreamCreate(&stream);
            cudaMemcpyAsync(memory, ncclGetLsaPointer(window, 0, 0), 64, cudaMemcpyDefault, stream);
            ncclCommWindowDeregister(comm, window);
            fprintf(stderr, "%s\n", cudaGetErrorName(cudaStreamSynchronize(stream)));
            _exit(7);
        },
        testing::ExitedWithCode(7), "cudaErrorIllegalAddress");
}

TEST_F(WindowModelDeath, AKernelAsksForWhatIsNotThere) {
    ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC);
    EXPECT_NE(ncclGetLsaPointer(window, 4095, 0), nullptr);
    EXPECT_DEATH(ncclGetLsaPointer(window, size_t(1) << 20, 0), "beyond the end of a window");
    EXPECT_DEATH(ncclGetLsaPointer(window, 0, 1), "of a peer that is not there");
    EXPECT_DEATH(ncclGetLsaPointer(static_cast<ncclWindow_t>(memory), 0, 0), "of what is no window");
    ncclCommWindowDeregister(comm, window);
    EXPECT_DEATH(ncclGetLsaPointer(window, 0, 0), "of what is no window");
    ncclMemFree(memory);
    ncclCommDestroy(comm);
}

// Two ranks gather in a window, of which rank 1 takes another place, or memory that it has not registered.
TEST_F(WindowModelDeath, GatheredAtDifferentPlaces) {
    const auto gather = [](bool registered) {
        ncclUniqueId id;
        ncclGetUniqueId(&id);
        LoopbackHub(2).run([&](int rank) {
            ncclComm_t c = nullptr;
            ncclCommInitRankConfig(&c, 2, id, rank, nullptr);
            void *p = nullptr, *other = nullptr;
            ncclWindow_t w = nullptr;
            ncclMemAlloc(&p, 8192);
            ncclMemAlloc(&other, 8192);
            ncclCommWindowRegister(c, p, 8192, &w, NCCL_WIN_COLL_SYMMETRIC);
            char* out = static_cast<char*>(rank == 1 && !registered ? other : p) + (rank == 1 && registered ? 64 : 0);
            cudaStream_t stream;
            cudaStreamCreate(&stream);
            ncclAllGather(out + 64 * rank, out, 64, ncclInt8, c, stream);
            cudaStreamSynchronize(stream);
        });
    };
    EXPECT_DEATH(gather(true), "do not lie at one place of a window on all ranks");
    EXPECT_DEATH(gather(false), "do not lie at one place of a window on all ranks");
}

TEST_F(WindowModelDeath, LeftBehind) {
    ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC);
    EXPECT_DEATH(ncclCommDestroy(comm), "ncclCommDestroy of a communicator that has windows");
    EXPECT_DEATH(ncclMemFree(memory), "ncclMemFree of memory that is registered");
    EXPECT_DEATH(ncclCommWindowDeregister(comm, reinterpret_cast<ncclWindow_t>(this)),
                 "what is no window of this communicator");
    ncclCommWindowDeregister(comm, window);
    ncclCommDestroy(comm);
}

TEST_F(WindowModelDeath, OfDifferentSizes) {
    EXPECT_DEATH(
        {
            ncclUniqueId id;
            ncclGetUniqueId(&id);
            LoopbackHub(2).run([&](int rank) {
                ncclComm_t c = nullptr;
                ncclCommInitRankConfig(&c, 2, id, rank, nullptr);
                void* p = nullptr;
                ncclWindow_t w = nullptr;
                ncclMemAlloc(&p, size_t(1 + rank) << 20);
                ncclCommWindowRegister(c, p, 4096, &w, NCCL_WIN_COLL_SYMMETRIC);
            });
        },
        "ranks register windows of different sizes");
}

}  // namespace
}  // namespace rz
