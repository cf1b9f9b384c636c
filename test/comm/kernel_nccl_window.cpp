// Addresses of each other's windows in an NCCL communicator: NVIDIA's function for kernels, as nvcc compiles it,
// on the window's record. A rank for each GPU; on the models of CUDA and NCCL three.

#include "comm/nccl_window.h"

#ifdef RZ_NCCL_DEVICE_API

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/runtime/cuda_check.h"
#include "kernels/runtime/load.h"
#include "kernels/runtime/memory.h"

namespace rz {
namespace {

// Every rank writes its number into its own part, and reads those of all through the addresses that its kernel found.
TEST(NcclWindowParts, LeadToTheMemoryOfEachRank) {
    setenv("SIMT_DEVICES", "3", 1);
    int ranks = 0;
    if (cudaGetDeviceCount(&ranks) != cudaSuccess || ranks == 0) GTEST_SKIP() << "no CUDA device";
    struct Member {
        ncclComm_t comm = nullptr;
        void* memory = nullptr;
        ncclWindow_t window = nullptr;
    };
    std::vector<Member> members(static_cast<size_t>(ranks));
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    constexpr size_t kBytes = 2 << 20;
    const auto join = [&](int rank) {
        Member& m = members[size_t(rank)];
        CUDA_CHECK(cudaSetDevice(rank));
        ASSERT_EQ(ncclCommInitRank(&m.comm, ranks, id, rank), ncclSuccess);
        ASSERT_EQ(ncclMemAlloc(&m.memory, kBytes), ncclSuccess);
        CUDA_CHECK(cudaMemset(m.memory, rank + 1, kBytes));
        CUDA_CHECK(cudaDeviceSynchronize());
        ASSERT_EQ(ncclCommWindowRegister(m.comm, m.memory, kBytes, &m.window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
    };
    const auto all_together = [&](const auto& body) {
        std::vector<std::thread> threads;
        for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
        for (std::thread& t : threads) t.join();
    };
    all_together(join);
    for (int rank = 0; rank < ranks; ++rank) {
        const Device device{DeviceKind::cuda, rank};
        device.make_current();
        load_kernels(device);
        Stream stream(device, "test");
        const Buffer found(device, ranks * int64_t(sizeof(char*)), MemKind::comm, "parts");
        std::vector<char*> parts(members.size());
        stream.zero(found.data(), found.bytes());
        nccl_window_parts(found.as<char*>(), members[size_t(rank)].window, ranks, stream.cuda());
        stream.copy(parts.data(), found.data(), found.bytes());
        stream.synchronize();
        for (int r = 0; r < ranks; ++r) {
            char last = 0;
            CUDA_CHECK(cudaMemcpy(&last, parts[size_t(r)] + kBytes - 1, 1, cudaMemcpyDeviceToHost));
            EXPECT_EQ(int(last), r + 1) << "rank " << rank << " of " << ranks;
        }
    }
    all_together([&](int rank) {
        const Member& m = members[size_t(rank)];
        CUDA_CHECK(cudaSetDevice(rank));
        EXPECT_EQ(ncclCommWindowDeregister(m.comm, m.window), ncclSuccess);
        EXPECT_EQ(ncclMemFree(m.memory), ncclSuccess);
        EXPECT_EQ(ncclCommDestroy(m.comm), ncclSuccess);
    });
    unsetenv("SIMT_DEVICES");
}

}  // namespace
}  // namespace rz

#endif
