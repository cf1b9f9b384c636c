#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>

#include "comm/loopback.h"
#include "test/llama/virtual_time.h"

namespace rz {
namespace {

int64_t makespan_on_threads(const PipelineSchedule& s, const PipelineCosts& costs, bool one_lane = false) {
    const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
    LoopbackHub hub(s.ranks, /*timeout_s=*/20);
    std::vector<int64_t> clocks(size_t(s.ranks));
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = s.ranks}, .one_lane = one_lane});
        clocks[size_t(rank)] = virtual_clock(programs, costs, mesh, 1);
    });
    return *std::max_element(clocks.begin(), clocks.end());
}

TEST(PipelineExecutor, EndsAtTheSimulatorsMakespan) {
    for (const PipelineKind kind : pipeline_kinds())
        for (const auto& [P, M] : {std::pair{1, 3}, {2, 4}, {3, 6}, {4, 8}, {8, 16}}) {
            if (!find_pipeline_refusal(kind, {P, M}).empty()) continue;
            const PipelineSchedule s = make_pipeline(kind, {P, M});
            for (const int64_t message : {0, 3}) {
                const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6, message);
                ASSERT_EQ(makespan_on_threads(s, costs), simulate(unfused(s), costs).makespan)
                    << name_of(kind) << ", " << P << " ranks, message " << message;
            }
        }
}

TEST(PipelineExecutor, OneLaneComesToItsEndWithTheRightTensors) {
    for (const PipelineKind kind : pipeline_kinds()) {
        if (!find_pipeline_refusal(kind, {4, 8}).empty()) continue;
        const PipelineSchedule s = make_pipeline(kind, {4, 8});
        PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6);
        costs.one_lane = true;
        EXPECT_GT(makespan_on_threads(s, costs, /*one_lane=*/true), 0);
    }
}

TEST(PipelineExecutor, StepsRunOneAfterAnother) {
    const PipelineSchedule s = make_pipeline(PipelineKind::zb_v, {3, 6});
    const PipelineCosts costs = PipelineCosts::even(s, 4, 4, 4, 1);
    const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
    LoopbackHub hub(3);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = 3}});
        EXPECT_GE(virtual_clock(programs, costs, mesh, 3), 3 * 6 * 12);
    });
}

// Nothing waits on the host: a rank enqueues its whole step before any other has begun.
TEST(PipelineExecutor, EnqueuesAStepThatNobodyMeetsYet) {
    constexpr int kRanks = 4;
    for (const PipelineKind kind : pipeline_kinds()) {
        const PipelineSchedule s = make_pipeline(kind, {kRanks, 8});
        const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6, 3);
        const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
        LoopbackHub hub(kRanks, /*timeout_s=*/20);
        std::vector<std::promise<void>> turn(kRanks + 1);
        turn[0].set_value();
        std::vector<int64_t> clocks(kRanks);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.grid = {.pp = kRanks}});
            turn[size_t(rank)].get_future().wait();
            clocks[size_t(rank)] = virtual_clock(programs, costs, mesh, 1, [&] { turn[size_t(rank) + 1].set_value(); });
        });
        EXPECT_EQ(*std::max_element(clocks.begin(), clocks.end()), simulate(unfused(s), costs).makespan)
            << name_of(kind);
    }
}

// Compute of each micro-batch waits for the message of the next one in its direction, where that comes later in the
// program.
class HeldCompute : public VirtualTime {
   public:
    HeldCompute(const RankProgram& rank, const PipelineCosts& costs, Stream& compute)
        : VirtualTime(rank, costs, compute), compute_(compute) {
        std::map<Key, bool> computed;
        for (const Instr& i : rank.program.code) {
            if (i.computes()) computed[{i.what == Do::forward, i.micro_batch + 1}] = true;
            if (i.what == Do::recv && computed.count(key_of_message(i))) come_[key_of_message(i)];
        }
    }
    void compute(const Instr& i) override {
        if (const auto it = come_.find({i.what == Do::forward, i.micro_batch + 1}); it != come_.end())
            compute_.enqueue_host([this, come = it->second.get_future().share()] {
                late_ += late_ == 0 && come.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
            });
        VirtualTime::compute(i);
    }
    void after_message(const Instr& i, Stream& lane) override {
        if (const auto it = come_.find(key_of_message(i)); i.what == Do::recv && it != come_.end())
            lane.enqueue_host([&come = it->second] { come.set_value(); });
    }
    int held() const { return int(come_.size()); }
    int late() const { return late_; }  // after the compute stream is synchronised

   private:
    using Key = std::pair<bool, int>;  // forward, micro-batch
    static Key key_of_message(const Instr& i) { return {i.last_unit > i.first_unit, i.micro_batch}; }

    Stream& compute_;
    std::map<Key, std::promise<void>> come_;
    int late_ = 0;
};

// A recv waits for its slot and for nothing else that was enqueued before it.
TEST(PipelineExecutor, AMessageComesWhileComputeBeforeItIsHeld) {
    constexpr int kRanks = 3, kMicroBatches = 4;
    const PipelineSchedule s = make_pipeline(PipelineKind::gpipe, {kRanks, kMicroBatches});
    const PipelineCosts costs = PipelineCosts::even(s, 8, 12, 6);
    const auto programs = pipeline_programs(s, costs, two_blocks_a_stage(s));
    LoopbackHub hub(kRanks);
    std::vector<int> held(kRanks), late(kRanks);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = kRanks}});
        Stream compute({DeviceKind::cpu, 0}, "compute");
        HeldCompute host(programs[size_t(rank)], costs, compute);
        run_to_end(programs[size_t(rank)], host, compute, mesh);
        held[size_t(rank)] = host.held(), late[size_t(rank)] = host.late();
    });
    const int once = kMicroBatches - 1;  // the first rank receives gradients only, the last one activations only
    EXPECT_EQ(held, std::vector({once, 2 * once, once}));
    EXPECT_EQ(late, std::vector<int>(kRanks)) << "a recv waited for compute";
}

// Each send waits for a while whether the next forward pass runs before it.
class LateSends : public VirtualTime {
   public:
    LateSends(const RankProgram& rank, const PipelineCosts& costs, Stream& compute)
        : VirtualTime(rank, costs, compute), compute_(compute), ran_(size_t(rank.shape.micro_batches) + 1) {}
    void compute(const Instr& i) override {
        VirtualTime::compute(i);
        compute_.enqueue_host([this, m = size_t(i.micro_batch)] { ran_[m].set_value(); });
    }
    void before_message(const Instr& i, Stream& lane) override {
        if (i.what == Do::send)
            lane.enqueue_host([this, next = ran_[size_t(i.micro_batch) + 1].get_future().share()] {
                early_ += next.wait_for(std::chrono::milliseconds(20)) == std::future_status::ready;
            });
        VirtualTime::before_message(i, lane);
    }
    int early() const { return early_; }  // after the lanes are synchronised

   private:
    Stream& compute_;
    std::vector<std::promise<void>> ran_;  // by micro-batch
    int early_ = 0;
};

// Two stages of a validation with one slot each. In training a slot's gradient comes back from where its output went
// before the slot is used again; here a forward pass has nothing but the event of the send to wait for.
std::vector<RankProgram> forward_passes(int micro_batches) {
    std::vector<RankProgram> out(2);
    for (int rank = 0; rank < 2; ++rank) {
        RankProgram& p = out[size_t(rank)];
        const int first = 2 * rank, last = first + 1;
        p.shape = {.stages = {{rank, first, last}},
                   .unit_bytes = {100, 300, 300, 110},
                   .trains = false,
                   .micro_batches = micro_batches};
        p.program.slots = {{rank, 1, 0}};
        const Instr message{.what = Do::recv, .stage = rank, .first_unit = 1, .last_unit = 2, .slot = 0};
        for (int m = 0; m < micro_batches; ++m) {
            Instr recv = message, send = message;
            recv.micro_batch = send.micro_batch = m;
            recv.lane = 0, send.lane = 1, send.what = Do::send;
            if (rank == 1) p.program.code.push_back(recv);
            p.program.code.push_back({.what = Do::forward,
                                      .stage = rank,
                                      .first_unit = first,
                                      .last_unit = last,
                                      .micro_batch = m,
                                      .slot = 0});
            if (rank == 0) p.program.code.push_back(send);
        }
        check_program(p.program, p.shape, rank);
    }
    return out;
}

TEST(PipelineExecutor, AnOutputIsSentBeforeItsSlotIsWrittenAgain) {
    const auto programs = forward_passes(4);
    const PipelineCosts costs = PipelineCosts::even(make_pipeline(PipelineKind::f1b1, {2, 4}), 1, 1, 1);
    LoopbackHub hub(2);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.pp = 2}});
        Stream compute({DeviceKind::cpu, 0}, "compute");
        LateSends host(programs[size_t(rank)], costs, compute);  // looks at the micro-batch that each message holds
        run_to_end(programs[size_t(rank)], host, compute, mesh);
        EXPECT_EQ(host.early(), 0) << "a forward pass wrote an output that was not sent yet";
    });
}

TEST(PipelineExecutor, MessagesNeedAMesh) {
    const PipelineSchedule s = make_pipeline(PipelineKind::f1b1, {2, 2});
    const auto programs = pipeline_programs(s, PipelineCosts::even(s, 1, 1, 1), two_blocks_a_stage(s));
    Stream compute({DeviceKind::cpu, 0}, "compute");
    VirtualTime host(programs[0], PipelineCosts::even(s, 1, 1, 1), compute);
    Executor alone(compute);
    EXPECT_THROW(alone.run(programs[0], host), Error);
}

}  // namespace
}  // namespace rz
