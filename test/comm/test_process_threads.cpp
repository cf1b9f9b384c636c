// Ranks that are threads of one process: the control plane, groups, and what an error of one rank does to the others.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/loopback.h"
#include "comm/mesh.h"
#include "comm/process.h"
#include "kernels/runtime/memory.h"
#include "kernels/runtime/request.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

TEST(ProcessOfAThread, AgreesThroughTheSameControlPlane) {
    LoopbackHub hub(5);
    hub.run([&](int rank) {
        Process process(hub, rank);
        const int code = process.run([&] {
            EXPECT_EQ(process.rank(), rank);
            EXPECT_EQ(process.size(), 5);
            EXPECT_FALSE(process.uses_mpi());
            EXPECT_EQ(process.max((rank * 3) % 5), 4);
            EXPECT_EQ(process.sum(0.5 * rank), 5.0);
            int64_t value = rank == 3 ? 42 : 0;
            process.broadcast(&value, 8, 3);
            EXPECT_EQ(value, 42);
            process.barrier();
            return 3;
        });
        EXPECT_EQ(code, 3);
    });
}

// Every call, on numbers of ranks that are powers of two and not: the result, and at most ceil(log2 N) messages of a
// rank, twice that where lengths go first.
TEST(ProcessOfAThread, ControlPlaneSendsLogarithmicallyManyMessages) {
    for (const int ranks : {2, 3, 8, 13}) {
        const int rounds = int(std::ceil(std::log2(ranks)));
        run_processes(ranks, [&](Process& process) {
            const int rank = process.rank();
            int64_t before = 0;
            const auto messages = [&] {
                return process.control_messages() - std::exchange(before, process.control_messages());
            };
            const auto all = process.all_gather(100 + rank);
            for (int r = 0; r < ranks; ++r) EXPECT_EQ(all[size_t(r)], 100 + r);
            EXPECT_LE(messages(), rounds) << "all_gather";
            const std::string own(size_t(rank % 5 * 3), char('a' + rank));
            const auto texts = process.all_gather_text(own);
            const auto gathered = process.gather_text(own);
            for (int r = 0; r < ranks; ++r) {
                const std::string want(size_t(r % 5 * 3), char('a' + r));
                EXPECT_EQ(texts[size_t(r)], want);
                if (rank == 0) {
                    EXPECT_EQ(gathered[size_t(r)], want);
                }
            }
            EXPECT_EQ(gathered.size(), rank == 0 ? size_t(ranks) : 0);
            EXPECT_LE(messages(), 4 * rounds) << "all_gather_text and gather_text";
            for (const int root : {0, ranks - 1}) {
                EXPECT_EQ(process.broadcast_text(rank == root ? "a manifest" : "", root), "a manifest");
                EXPECT_LE(messages(), 2 * rounds) << "broadcast_text";
            }
            const uint64_t n = uint64_t(ranks);
            EXPECT_EQ(process.sums({uint64_t(rank), 1, ~uint64_t(0)}),
                      (std::vector<uint64_t>{n * (n - 1) / 2, n, 0 - n}));
            EXPECT_LE(messages(), rounds + 1) << "sums";
            process.barrier();
            EXPECT_LE(messages(), rounds) << "barrier";
        });
    }
}

TEST(ProcessOfAThread, GroupsAreMadeByColorAndKeyAndNoTwoAreTheSame) {
    LoopbackHub hub(4);
    run_processes(hub, [&](Process& process) {
        const int rank = process.rank();
        const Device device = process.choose_device(DeviceChoice::automatic, TransportKind::automatic, nullptr);
        EXPECT_EQ(device.context, hub.device(rank).context) << "what it counts is this rank's";
        const auto make = [&](int color, int key) {
            return process.make_transport(TransportKind::automatic, device, color, key, "pair");
        };
        const auto outer = make(rank % 3 == 0 ? 0 : -1, -rank);  // 3, then 0
        const auto inner = make(rank % 3 == 0 ? -1 : 7, rank);   // 1, then 2
        EXPECT_EQ(bool(outer), rank % 3 == 0);
        EXPECT_EQ(bool(inner), rank % 3 != 0);
        const Transport& mine = outer ? *outer : *inner;
        EXPECT_EQ(mine.size(), 2);
        EXPECT_EQ(mine.rank(), rank == 3 || rank == 1 ? 0 : 1);
        const auto alone = make(rank, 0);
        EXPECT_STREQ(alone->name(), "self") << "no group has a second member";
        for (int time = 0; time < 2; ++time) {  // two meshes of the same axes at once
            Mesh mesh(process, device, {.grid = {.shard_size = 2}});
            Mesh other(process, device, {.grid = {.shard_size = 2}});
            Buffer x(device, 16, MemKind::workspace, "x");
            x.as<float>()[0] = float(rank), x.as<float>()[1] = 1;
            const std::vector<int64_t> halves = {0, 1, 2}, quarters = {0, 1, 2, 2, 2};
            const auto sum = [&](Collectives& group, Offsets cuts) {
                group.all_reduce(mesh.stream(), sum_in_place(x.data(), cuts));
                mesh.stream().synchronize();
            };
            sum(mesh.shard(), halves);
            EXPECT_EQ(x.as<float>()[0], rank < 2 ? 1 : 5);
            sum(other.data(), quarters);
            EXPECT_EQ(x.as<float>()[0], 12);
            EXPECT_EQ(x.as<float>()[1], 8);
        }
    });
}

TEST(ProcessOfAThread, AnErrorOfOneRankEndsWhatTheOthersWaitForAndNamesIt) {
    const TempFolder directory;
    LoopbackHub hub(3);
    std::atomic<int> codes{0}, hooks{0};
    hub.run([&](int rank) {
        Process process(hub, rank, directory.path);
        process.on_failure([&](int, const std::string& reason) {
            ++hooks;
            EXPECT_EQ(reason, "no room for 5 bytes");
        });
        const int code = process.run([&]() -> int {
            process.barrier();
            if (rank == 1) fail("no room for %d bytes", 5);
            try {
                process.barrier();
            } catch (const Error& error) {
                EXPECT_TRUE(says(error.what(), "rank 1 failed: no room for 5 bytes"));
                throw;
            }
            return 0;
        });
        codes += code;
    });
    EXPECT_EQ(codes, 3 * kExitError);
    EXPECT_EQ(hooks, 1) << "the rank that failed reports, the others end for its sake";
    EXPECT_EQ(text_in(directory / "failure.txt"), "exit code 70\nrank 1 of 3: no room for 5 bytes\n");
}

TEST(ProcessOfAThread, ARefusalIsTwoOnEveryRankAndPrintedByTheFirst) {
    for (const bool all : {true, false}) {  // or rank 1 alone finds it
        LoopbackHub hub(3);
        std::mutex mutex;
        std::vector<std::string> said;
        hub.run([&](int rank) {
            Process process(hub, rank);
            process.on_failure([&](int code, const std::string& reason) {
                std::lock_guard lock(mutex);
                said.push_back(format("rank %d, %d: %s", rank, code, reason.c_str()));
            });
            EXPECT_EQ(process.run([&] {
                process.barrier();
                require_request(!all && rank != 1, "cp 2 with 3 ranks");
                process.barrier();
                return 0;
            }),
                      kExitRequest);
        });
        EXPECT_EQ(said, std::vector{format("rank %d, 2: cp 2 with 3 ranks", all ? 0 : 1)});
    }
}

TEST(ProcessOfAThread, LeavingWithoutRunEndsTheOthersToo) {
    LoopbackHub hub(2);
    hub.run([&](int rank) {
        Process process(hub, rank);
        if (rank == 0) return;
        EXPECT_EQ(process.run([&] {
            process.barrier();
            return 0;
        }),
                  kExitError);
    });
}

TEST(ProcessOfAThread, WhatOnlyProcessesCanDoIsRefusedWithTheNearest) {
    run_processes(2, [](Process& process) {
        EXPECT_THROW(process.choose_device(DeviceChoice::cuda, TransportKind::automatic, nullptr), Error);
        EXPECT_THROW(process.choose_device(DeviceChoice::cpu, TransportKind::mpi, nullptr), Error);
    });
    LoopbackHub planned(2, PlannedLink{});
    EXPECT_THROW(Process(planned, 0), Error);
}

}  // namespace
}  // namespace rz
