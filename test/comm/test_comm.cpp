// Communication without MPI: ranks are threads over the loopback transport. Built with -fsanitize=thread this is the
// race test of the ring, the streams and the events.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "comm/deadline.h"
#include "comm/loopback.h"
#include "comm/mesh.h"
#include "comm/meter.h"
#include "comm/process.h"
#include "comm/watch.h"
#include "kernels/elementwise.h"
#include "test/kernels/cpu_device.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

float total(int ranks, int64_t i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += exact_value(r, i);
    return sum;
}

TEST(Offsets, EvenSlicesCoverTheRangeInWholeBlocks) {
    EXPECT_EQ(even_offsets(10, 3), (std::vector<int64_t>{0, 4, 7, 10}));
    EXPECT_EQ(even_offsets(10, 3, 4), (std::vector<int64_t>{0, 4, 8, 10}));
    EXPECT_EQ(even_offsets(1, 3, 4), (std::vector<int64_t>{0, 1, 1, 1}));
    EXPECT_EQ(even_offsets(0, 2), (std::vector<int64_t>{0, 0, 0}));
    EXPECT_THROW(even_offsets(-1, 2), Error);
}

class LoopbackTest : public testing::TestWithParam<int> {};

TEST_P(LoopbackTest, RingAndDirectSumExactly) {
    const int N = GetParam();
    LoopbackHub hub(N);
    hub.run([&](int rank) {
        auto transport = hub.transport(rank);
        Stream stream(kCpu, "comm");
        for (const Algorithm algorithm : {Algorithm::ring, Algorithm::direct}) {
            auto how = make_collectives(algorithm, *transport, {.chunk_bytes = 1024, .lanes = 2, .meter = nullptr});
            std::mt19937 random(7);
            for (int round = 0; round < 12; ++round) {
                std::vector<int64_t> offsets{0};
                for (int r = 0; r < N; ++r)
                    offsets.push_back(offsets.back() + int64_t(random() % 3 ? random() % 900 : 0));
                const int64_t n = offsets.back();
                std::vector<float> in, out(size_t(n), NAN);
                for (int64_t i = 0; i < n; ++i) in.push_back(exact_value(rank, i));
                how->all_reduce(stream, all_reduce_f32(out.data(), in.data(), offsets));
                how->barrier(stream);
                stream.synchronize();
                for (int64_t i = 0; i < n; ++i)
                    ASSERT_EQ(out[size_t(i)], total(N, i)) << name_of(algorithm) << " element " << i;
            }
        }
    });
}

// As ZeRO does it: gradients of unit after unit are made on one stream and reduced on another while the next unit is
// computed; a unit's buffer is used again once its reduction is over.
TEST_P(LoopbackTest, ReductionsOverlapComputeThroughEvents) {
    const int N = GetParam();
    static constexpr int64_t kUnit = 3001;
    constexpr int kUnits = 6, kBuffers = 2;
    LoopbackHub hub(N);
    hub.run([&](int rank) {
        auto transport = hub.transport(rank);
        Stream compute(kCpu, "compute"), comm(kCpu, "comm");
        CommMeter meter;
        auto ring = make_collectives(Algorithm::ring, *transport, {.chunk_bytes = 2048, .lanes = 2, .meter = &meter});
        const auto offsets = even_offsets(kUnit, N, 64);
        const int64_t first = offsets[size_t(rank)], own = offsets[size_t(rank) + 1] - first;
        std::vector<std::vector<float>> grads(kBuffers, std::vector<float>(kUnit)), sums(kUnits);
        std::vector<Event> free(kBuffers);
        for (int u = 0; u < kUnits; ++u) {
            float* grad = grads[size_t(u % kBuffers)].data();
            sums[size_t(u)].assign(size_t(own), NAN);
            meter.wait(compute, free[size_t(u % kBuffers)]);  // the reduction of unit u - 2 has read this buffer
            compute.enqueue_host([grad, rank, u] {
                for (int64_t i = 0; i < kUnit; ++i) grad[i] = exact_value(rank, i + u);
            });
            comm.wait(compute.record());  // the gradients are complete
            ring->reduce_scatter(comm, reduce_scatter_f32(sums[size_t(u)].data(), grad, offsets));
            free[size_t(u % kBuffers)] = comm.record();
        }
        comm.synchronize();
        compute.synchronize();
        for (int u = 0; u < kUnits; ++u)
            for (int64_t i = 0; i < own; ++i) ASSERT_EQ(sums[size_t(u)][size_t(i)], total(N, first + i + u));
        if (N > 1) {
            EXPECT_EQ(meter.take().ops.at("reduce_scatter").calls, kUnits);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LoopbackTest, testing::Values(1, 2, 3, 5));

// A rank that never comes: the others say within the deadline for whom they wait and in what.
TEST(Loopback, AMissingRankIsNamedAtTheDeadline) {
    LoopbackHub hub(3, /*timeout_s=*/1);
    std::atomic<int> named{0};
    hub.run([&](int rank) {
        if (rank == 1) return;
        hub.watch(rank)->set_step(12);
        auto transport = hub.transport(rank);
        Stream stream(kCpu, "comm");
        auto ring = make_collectives(Algorithm::ring, *transport);
        const auto offsets = even_offsets(3000, 3);
        std::vector<float> x(3000);
        const auto began = std::chrono::steady_clock::now();
        ring->all_reduce(stream, sum_in_place(x.data(), offsets));
        const std::string text = error_of([&] { stream.synchronize(); });
        EXPECT_TRUE(says(text, "step 12"));
        EXPECT_TRUE(says(text, "all_reduce #1"));
        named += says(text, "to rank 1") || says(text, "from rank 1");
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 5);
    });
    EXPECT_EQ(named, 2);
}

TEST(Loopback, SizesThatDisagreeAreAnError) {
    LoopbackHub hub(2, 1);
    EXPECT_THROW(hub.run([&](int rank) {
        auto transport = hub.transport(rank);
        Stream stream(kCpu, "comm");
        char bytes[8] = {};
        if (rank == 0)
            transport->send(stream, bytes, 8, 1);
        else
            transport->recv(stream, bytes, 4, 0);
        stream.synchronize();
    }),
                 Error);
}

TEST(SelfTransport, MessagesToOneselfAreCopies) {
    SelfTransport self(kCpu);
    Stream stream(kCpu, "test");
    int from = 42, to = 0;
    MessageGroup group;
    group.send(&from, sizeof from, 0);
    group.recv(&to, sizeof to, 0);
    self.exchange(stream, group);
    stream.synchronize();
    EXPECT_EQ(to, 42);
    EXPECT_EQ(self.bytes_sent(), 0);
    EXPECT_THROW(self.send(stream, &from, sizeof from, 0), Error);
    EXPECT_THROW(self.send(stream, &from, sizeof from, 1), Error);
}

// One rank: values are scaled and converted, and nothing is sent.
TEST(SelfTransport, CollectivesOfOneRankAreCopies) {
    SelfTransport self(kCpu);
    Stream stream(kCpu, "test");
    const std::vector<int64_t> offsets{0, 3};
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::direct, Algorithm::library}) {
        auto how = make_collectives(algorithm, self);
        const float x[3] = {1, 2, 4};
        bf16 y[3];
        how->reduce_scatter(stream, {.out = y,
                                     .in = x,
                                     .offsets = offsets,
                                     .dtype = DType::f32,
                                     .wire = DType::f32,
                                     .out_dtype = DType::bf16,
                                     .scale = 0.5f});
        float z[3] = {3, 5, 7};
        how->all_reduce(stream, {.out = z, .in = z, .offsets = offsets, .dtype = DType::f32, .wire = DType::bf16});
        how->barrier(stream);
        stream.synchronize();
        EXPECT_EQ(float(y[2]), 2);
        EXPECT_EQ(z[1], 5);
    }
}

// Started plainly: no launcher, no MPI, one rank.
TEST(Process, OneProcessNeedsNoLibrary) {
    for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID"})
        if (std::getenv(name)) GTEST_SKIP() << "started by a launcher";
    Process process;
    EXPECT_EQ(process.size(), 1);
    EXPECT_FALSE(process.uses_mpi());
    EXPECT_EQ(process.sum(2.5), 2.5);
    EXPECT_EQ(process.max(-3), -3);
    EXPECT_EQ(process.all_gather_text("a"), std::vector<std::string>{"a"});
    std::string note;
    const Device device = process.choose_device(DeviceChoice::cpu, TransportKind::automatic, &note);
    EXPECT_STREQ(process.make_transport(TransportKind::automatic, device, 0, 0, "world")->name(), "self");
    EXPECT_THROW(process.make_transport(TransportKind::nccl, device, 0, 0, "world"), Error);
    EXPECT_EQ(process.run([] { return 5; }), 5);
}

TEST(Process, OneProcessLeavesAReasonWhereItFails) {
    if (std::getenv("PMI_RANK")) GTEST_SKIP() << "started by a launcher";
    const TempFolder folder;
    const ProcessOptions options{.timeout_s = 10, .run_directory = folder.path};
    EXPECT_EQ(Process(options).run([]() -> int { fail("no such file"); }), kExitError);
    EXPECT_TRUE(says(text_in(folder / "failure.txt"), "no such file"));
    EXPECT_EQ(Process(options).run([] { return 0; }), 0);
    EXPECT_FALSE(std::filesystem::exists(folder / "failure.txt"));
}

Watch::Options watch_options(int rank, int ranks, const std::string& folder) {
    Watch::Options options;
    options.rank = rank, options.size = ranks, options.directory = folder;
    return options;
}

// Both have ended step 3; the first is in an operation of step 4.
void leave_behind(Watch& first, Watch& second) {
    for (Watch* w : {&second, &first}) {
        w->set_step(3);
        w->done(w->queue("all_gather", "world", 0, 1 << 20));
    }
    first.set_step(4);
    first.running(first.queue("reduce_scatter", "world", 0, 4096), 1, 1);
}

TEST(Watch, PagesOutliveTheProcessAndTellWhoIsBehind) {
    const TempFolder folder;
    std::string reason;
    {
        Watch::Options options = watch_options(0, 2, folder.path);
        options.grace_s = 0.1;
        options.on_failure = [&](const std::string& text) { reason = text; };
        Watch first(options);
        options.rank = 1;
        Watch second(options);
        leave_behind(first, second);
        const std::string job = first.job_report();
        EXPECT_TRUE(says(job, "rank 1"));
        EXPECT_TRUE(says(job, "verdict: a host that does not come on: rank 1 ("));
        EXPECT_TRUE(says(job, "has not issued [reduce_scatter #2 of group world (step 4, 4.00 KiB)]"));
        EXPECT_THROW(first.fail_deadline("waited 1 s"), Error);
        EXPECT_TRUE(says(reason, "reduce_scatter #2 of group world (step 4"));
    }
    EXPECT_TRUE(says(text_in(folder / "failure.txt"), "waited 1 s"));
    EXPECT_TRUE(std::filesystem::exists(folder / "rank1.status"));
}

// Two hosts that have one folder in common: the first gives up, the second hears of it, and the table has both.
TEST(Watch, RecordsOfAnotherHostAreBrought) {
    const TempFolder top;
    for (const char* folder : {"a", "b", "shared"}) std::filesystem::create_directories(top / folder);
    {
        Watch::Options of_first = watch_options(0, 2, top / "a"), of_second = watch_options(1, 2, top / "b");
        of_first.grace_s = of_second.grace_s = 1;
        of_first.on_failure = of_second.on_failure = [](const std::string&) {};
        Watch first(of_first), second(of_second);
        for (Watch* w : {&first, &second}) w->share(top / "shared");
        leave_behind(first, second);
        EXPECT_TRUE(says(first.job_report(), "rank 1: cannot be seen"));
        EXPECT_THROW(first.fail_deadline("waited 1 s"), Error);
    }
    for (const char* file : {"a/failure.txt", "shared/failure.txt"}) {
        const std::string text = text_in(top / file);
        EXPECT_TRUE(says(text, "waited 1 s")) << file;
        const size_t table = text.find("all ranks:"), row = text.find("rank 1 (", table);
        ASSERT_NE(row, std::string::npos) << file << ": " << text;
        EXPECT_TRUE(says(text.substr(row), "step 3, issued 1 operations, 0 open")) << file;
        EXPECT_TRUE(says(text, "  rank 1: all 1 done\nverdict: a host that does not come on: rank 1 (")) << file;
    }
    EXPECT_TRUE(says(text_in(top / "b/failure.txt"), "rank 1 of 2")) << "the second did not report";
}

TEST(Watch, OperationsThatDisagreeAreNamed) {
    const TempFolder folder;
    {
        Watch first(watch_options(0, 2, folder.path)), second(watch_options(1, 2, folder.path));
        first.queue("all_reduce", "world", 0, 100);
        second.queue("all_gather", "world", 0, 100);
        EXPECT_TRUE(says(first.job_report(), "verdict: different operations: #1 of group world is [all_reduce #1"));
    }
}

// Stages of a pipeline: each issues other operations, as many as it has neighbours and micro-batches. The first one
// stopped; the second waits for it, and the third for the second.
TEST(Watch, TheStageThatWaitsForNobodyIsTheOneBehind) {
    const TempFolder folder;
    {
        std::vector<std::unique_ptr<Watch>> ranks;
        for (int r = 0; r < 4; ++r) {
            ranks.push_back(std::make_unique<Watch>(watch_options(r, 4, folder.path)));
            ranks.back()->join("data", {0, 1, 2, 3});
            ranks.back()->done(ranks.back()->queue("all_reduce", "data", 0, 100));
        }
        const auto transfer = [&](int from, int to, bool sent, bool received) {
            const std::string group = format("pp %d>%d", from, to);
            for (const int r : {from, to}) ranks[size_t(r)]->join(group.c_str(), {from, to});
            uint64_t s = 0, r = 0;
            if (sent) s = ranks[size_t(from)]->queue("transfer", group.c_str(), from, 64);
            if (received)
                ranks[size_t(to)]->running(r = ranks[size_t(to)]->queue("transfer", group.c_str(), from, 64), -1, from);
            if (sent && received) ranks[size_t(from)]->done(s), ranks[size_t(to)]->done(r);
        };
        for (int i = 0; i < 3; ++i) transfer(0, 1, true, true);
        for (int i = 0; i < 2; ++i) transfer(1, 2, true, true);
        transfer(2, 3, true, true);
        EXPECT_EQ(ranks[3]->job_report().find("verdict"), std::string::npos) << "numbers differ, and no rank is behind";
        transfer(0, 1, false, true);
        transfer(1, 2, false, true);
        const std::string text = ranks[3]->job_report();
        EXPECT_TRUE(says(text, "verdict: a host that does not come on: rank 0 ("));
        EXPECT_TRUE(says(text, "has not issued [transfer #4 of group pp 0>1"));
        ranks[3]->queue("transfer", "pp 2>3", 2, 128);
        ranks[2]->queue("transfer", "pp 2>3", 2, 64);
        EXPECT_TRUE(
            says(ranks[0]->job_report(), "verdict: different size: rank 3 issued [transfer #2 of group pp 2>3"));
    }
}

// The operation that hangs, behind it what the host has issued ahead and what others have done.
TEST(Watch, ARecordLivesUntilItsOperationIsDoneAndManyMoreAre) {
    Watch watch({});
    const uint64_t hangs = watch.queue("all_gather", "data", 0, 100);
    watch.running(hangs, 1, 1);
    for (uint64_t i = 1; i < kMostOpen; ++i) watch.done(watch.queue("all_reduce", "tp", 0, 8));
    EXPECT_EQ(watch.record(hangs).state, OpState::running);
    EXPECT_TRUE(says(watch.own_report(""), "all_gather #1 of group data (step -1, 100 B): running, hop 1, to rank 1"));
    watch.done(hangs);
    for (uint64_t i = 1; i < kKeptDone; ++i) watch.done(watch.queue("all_reduce", "tp", 0, 8));
    EXPECT_EQ(watch.record(hangs).state, OpState::done);
}

TEST(Watch, TheHostWaitsWhereTooManyOperationsAreOpen) {
    Watch watch({});
    for (uint64_t i = 0; i < kMostOpen; ++i) watch.queue("all_reduce", "tp", 0, 8);
    std::atomic<bool> issued = false;
    std::thread host([&] {
        watch.queue("all_reduce", "tp", 0, 8);
        issued = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(issued);
    watch.done(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(issued) << "the oldest is still open";
    watch.done(1);
    host.join();
    EXPECT_TRUE(issued);
}

// Whatever stands in the file.
TEST(Flight, ADamagedPageIsNoneAndADamagedRecordIsLeftOut) {
    const TempFolder folder;
    const std::string path = folder / "flight";
    auto page = std::make_unique<StatusPage>();
    page->magic = status_magic(), page->channels_used = 1 << 30, page->last_seq = 2;
    page->channels[0].at = kMembers - 1, page->channels[0].size = 1 << 20;
    std::memset(page->host, 'x', sizeof page->host);
    OpRecord records[3];
    for (OpRecord& r : records)
        r.seq = 1, r.channel = 99, r.state = OpState::queued, std::memset(r.op, 'x', sizeof r.op);
    records[1].state = OpState(77);
    records[2].seq = 9;
    const auto write = [&] {
        std::ofstream file(path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(page.get()), sizeof *page);
        file.write(reinterpret_cast<const char*>(records), sizeof records);
    };
    write();
    Flight flight;
    ASSERT_TRUE(read_flight(path, &flight));
    EXPECT_EQ(std::strlen(flight.page.host), sizeof flight.page.host - 1);
    EXPECT_EQ(flight.page.channels_used, kChannels);
    EXPECT_EQ(flight.page.channels[0].size, 0);
    ASSERT_EQ(flight.records.size(), 1u);
    EXPECT_EQ(flight.records[0].channel, -1);
    EXPECT_EQ(std::strlen(flight.records[0].op), sizeof flight.records[0].op - 1);
    EXPECT_NE(hang_report({{0, flight}}, 0) + pickle_of(flight), "");
    page->magic += 1;
    write();
    EXPECT_FALSE(read_flight(path, &flight));
    EXPECT_FALSE(read_flight(path + ".none", &flight));
}

// A wait of 2 s that is looked at every second, with a stop of a minute between.
TEST(Watch, APauseOfTheWholeJobDoesNotCount) {
    using std::chrono::seconds;
    WaitClock clock;
    const auto start = WaitClock::Clock::now();
    clock.restart(start);
    EXPECT_NEAR(clock.look(start + seconds(1)), 1, 1e-9);
    EXPECT_NEAR(clock.look(start + seconds(61)), 1, 1e-9);
    EXPECT_NEAR(clock.look(start + seconds(62)), 2, 1e-9);
    EXPECT_NEAR(clock.look(start + seconds(66)), 6, 1e-9) << "a slow look is no pause";
}

TEST(Watch, DiskWorkHasADeadlineOfItsOwn) {
    Watch::Options options;
    options.timeout_s = 3;
    options.disk_timeout_s = 50;
    Watch watch(options);
    EXPECT_EQ(watch.timeout_s(), 3);
    watch.begin_disk_work();
    watch.begin_disk_work();
    watch.end_disk_work();
    EXPECT_EQ(watch.timeout_s(), 50);
    watch.end_disk_work();
    EXPECT_EQ(watch.timeout_s(), 3);
    options.disk_timeout_s = 1;
    Watch shorter(options);
    shorter.begin_disk_work();
    EXPECT_EQ(shorter.timeout_s(), 3) << "never less than the other";
}

// How a job ends for what the watchdog finds: by fault or deadline, and by the guard where the watchdog itself hangs.
struct Watched {
    explicit Watched(std::function<void()> poll, double timeout_s = 60) {
        Watch::Options options;
        options.directory = folder.path;
        options.timeout_s = timeout_s;
        options.grace_s = 0;
        options.on_failure = [this](const std::string& reason) { ended.set_value("deadline: " + reason); };
        options.on_fault = [this](const std::string& reason) { ended.set_value("fault: " + reason); };
        watch = std::make_unique<Watch>(options);
        watch->add_poll([poll, once = std::make_shared<bool>()] {
            if (!std::exchange(*once, true)) poll();
        });
    }
    std::string reason() {
        auto future = ended.get_future();
        return future.wait_for(std::chrono::seconds(20)) == std::future_status::ready ? future.get() : "nothing";
    }
    const TempFolder folder;
    std::promise<std::string> ended;
    std::unique_ptr<Watch> watch;
};

TEST(Watch, AFaultThatAPollFindsIsNoDeadline) {
    Watched fault([] { throw Error("cudaErrorIllegalAddress"); });
    EXPECT_EQ(fault.reason(), "fault: cudaErrorIllegalAddress");
    Watched late([] { throw DeadlineError("waited 3 s for NCCL"); });
    EXPECT_TRUE(says(late.reason(), "deadline: rank 0 of 1"));
}

TEST(Watch, AWatchdogThatHangsIsFoundByTheGuard) {
    std::promise<void> release;
    Watched hung([held = release.get_future().share()] { held.wait(); }, 0.1);
    EXPECT_TRUE(says(hung.reason(), "the watchdog has not moved"));
    release.set_value();
}

// An operation ends 20 ms after compute began to wait for it: 20 ms are exposed, and not what went before. Each
// part waits for the other's state, and no bound depends on when a thread gets a core.
TEST(Meter, ExposedTimeIsWhatComputeStandsStill) {
    CommMeter meter;
    Stream compute(kCpu, "compute"), comm(kCpu, "comm");
    const auto pause = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    std::promise<void> waits;
    Event computed;
    const Event began = comm.record(true);
    comm.enqueue_host([&, waiting = waits.get_future().share()] {
        pause(40);
        waiting.wait();
        pause(20);
    });
    const Event ended = comm.record(true);
    meter.add("all_gather", 1000, began, ended);
    compute.wait(began);
    compute.enqueue_host([&] { pause(30); });
    const Event before = compute.record(true);
    meter.wait(compute, ended);
    before.synchronize();
    waits.set_value();
    const Event after = compute.record(true);
    after.synchronize();
    const CommTotals totals = meter.take();
    EXPECT_GE(totals.total_s, 0.06);
    EXPECT_GT(totals.exposed_s, 0);
    EXPECT_LE(totals.exposed_s, after.seconds_since(before)) << "from the first look to the last";
    EXPECT_LE(totals.exposed_s, after.seconds_since(began) - 0.03) << "compute worked for 30 ms";
    EXPECT_GE(totals.hidden_s, 0.03) << "compute worked for 30 ms while it ran";
    EXPECT_GE(totals.hidden_s, totals.busy_s - totals.exposed_s - 1e-9);
    EXPECT_LT(totals.hidden_s, totals.busy_s);
    EXPECT_NEAR(totals.overlap_efficiency(), totals.hidden_s / totals.busy_s, 1e-12);
    EXPECT_EQ(totals.bytes_sent, 1000);
}

TEST(Meter, TakesWhatIsCompleteAndLeavesTheRest) {
    CommMeter meter;
    Stream comm(kCpu, "comm"), compute(kCpu, "compute");
    const auto measure = [&](int64_t bytes, std::function<void()> work) {
        const Event began = comm.record(true);
        comm.enqueue_host(std::move(work));
        const Event ended = comm.record(true);
        meter.add("op", bytes, began, ended);
        return ended;
    };
    measure(10, [] {}).synchronize();
    std::atomic<bool> go{false};
    const Event late = measure(20, [&] {
        while (!go) std::this_thread::yield();
    });
    meter.wait(compute, late);
    const CommTotals first = meter.take_complete(meter.cut());
    EXPECT_EQ(first.bytes_sent, 10);
    EXPECT_EQ(first.exposed_s, 0);
    go = true;
    compute.synchronize();
    const CommTotals second = meter.take_complete(meter.cut());
    EXPECT_EQ(second.bytes_sent, 20);
    EXPECT_GT(second.exposed_s, 0);
    EXPECT_EQ(meter.take().bytes_sent, 0);
}

}  // namespace
}  // namespace rz
