// The planned device: clocks in integer ticks, memory that is counted and not there, ops costed or executed.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/op_timer.h"
#include "test/checks.h"

namespace rz {
namespace {

struct Work {
    Ticks ticks;
    int* runs;
};
void work(const Work& w) { ++*w.runs; }

// Copies and fills take a tick per byte, Work what it says, products one per multiplication.
Ticks cost(const OpCall& op, const Stream&) {
    if (const Work* w = op.as<Work>()) return w->ticks;
    if (const Gemm* g = op.as<Gemm>()) return g->M * g->N * g->K;
    return op.bytes;
}

struct Planned : testing::Test {
    Planned() { context.planned.cost = cost; }
    Device device() { return {DeviceKind::planned, 0, &context}; }

    RankContext context;
    int runs = 0;
};

TEST_F(Planned, AStreamAddsUpWhatItsWorkCosts) {
    Stream stream(device(), "s");
    Gemm g{};
    float a[6] = {}, b[6] = {}, c[4] = {};
    g.c = c, g.a = a, g.b = b, g.M = g.N = 2, g.K = 3, g.dtype = g.c_dtype = DType::f32;
    stream.run(Work{7, &runs}, work, nullptr);
    EXPECT_EQ(stream.clock(), 7);
    stream.copy(c, a, 16);
    EXPECT_EQ(stream.clock(), 23);
    stream.zero(c, 4);
    EXPECT_EQ(stream.clock(), 27);
    gemm(stream, g);
    EXPECT_EQ(stream.clock(), 39);
    stream.enqueue_host([&] { ++runs; });
    EXPECT_EQ(stream.clock(), 39);
    EXPECT_EQ(runs, 0) << "ops were executed";
    EXPECT_EQ(context.planned.host, 0) << "none waited";
}

// Two streams: b's second work needs a's first; the host then waits for b and gives a more.
//   a  [0 10]            [33 34]
//   b  [0 3]    [10 33]
TEST_F(Planned, EventsJoinClocksAndTheHostStartsNothingBeforeItsOwn) {
    Stream a(device(), "a"), b(device(), "b");
    a.run(Work{10, &runs}, work, nullptr);
    const Event ready = a.record(true);
    b.run(Work{3, &runs}, work, nullptr);
    const Event early = b.record(true);
    b.wait(ready);
    EXPECT_EQ(b.clock(), 10);
    b.run(Work{23, &runs}, work, nullptr);
    a.wait(early);
    EXPECT_EQ(a.clock(), 10) << "an event of the past moves no clock";
    const Event late = b.record(true);
    EXPECT_DOUBLE_EQ(late.seconds_since(ready), 23e-12);
    EXPECT_TRUE(late.done());
    EXPECT_EQ(context.planned.host, 0);
    late.synchronize();
    EXPECT_EQ(context.planned.host, 33);
    a.run(Work{1, &runs}, work, nullptr);
    EXPECT_EQ(a.clock(), 34);
    a.synchronize();
    EXPECT_EQ(context.planned.host, 34);
    b.synchronize();
    EXPECT_EQ(context.planned.host, 34);
}

TEST_F(Planned, OpTimersSeeVirtualTime) {
    Stream stream(device(), "s");
    OpTimer timer;
    stream.set_op_timer(&timer);
    for (int i = 0; i < 3; ++i) stream.run(Work{5, &runs}, work, nullptr);
    stream.zero(nullptr, 4);
    stream.set_op_timer(nullptr);
    const auto totals = timer.take();
    ASSERT_EQ(totals.size(), 2u);
    EXPECT_EQ(totals.at("Work").calls, 3);
    EXPECT_DOUBLE_EQ(totals.at("Work").seconds, 15e-12);
    EXPECT_DOUBLE_EQ(totals.at("zero").seconds, 4e-12);
}

TEST_F(Planned, CostsThatAreNegativeOrPassTheEndOfTimeAreErrors) {
    Stream stream(device(), "s");
    EXPECT_THROW(stream.run(Work{-1, &runs}, work, nullptr), Error);
    stream.run(Work{INT64_MAX, &runs}, work, nullptr);
    EXPECT_THROW(stream.run(Work{1, &runs}, work, nullptr), Error);
}

// More than any machine has is counted; the addresses are aligned, distinct, and must not be read or written.
TEST_F(Planned, MemoryIsCountedAndNotThere) {
    constexpr int64_t kTera = int64_t(1) << 40;
    {
        const Buffer a(device(), 20 * kTera, MemKind::parameters, "a"), b(device(), 3, MemKind::gradients, "b");
        const Buffer host = Buffer::host_for(device(), 1000, MemKind::workspace, "host");
        EXPECT_EQ(context.memory.now(DeviceKind::planned, MemKind::parameters), 20 * kTera);
        EXPECT_EQ(context.memory.now(DeviceKind::planned), 20 * kTera + 3);
        EXPECT_EQ(context.memory.now(DeviceKind::cpu, MemKind::workspace), 1000);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
        EXPECT_NE(a.data(), b.data());
        for (int i = 0; i < 1000; ++i) ASSERT_EQ(host.as<char>()[i], 0);
        EXPECT_DEATH(*b.as<volatile char>() = 1, "");
    }
    EXPECT_EQ(context.memory.now(DeviceKind::planned), 0);
    EXPECT_EQ(context.memory.peak(DeviceKind::planned), 20 * kTera + 3);
}

TEST_F(Planned, MoreThanTheDeviceHasIsOutOfMemory) {
    context.planned.memory_bytes = 1000;
    const Buffer a(device(), 600, MemKind::parameters, "a");
    EXPECT_TRUE(says(error_of([&] { Buffer(device(), 401, MemKind::gradients, "b"); }),
                     "out of memory: 401 B for 'b' (gradients), 400 B free"));
    const Buffer b(device(), 400, MemKind::gradients, "b");
    EXPECT_EQ(device().free_bytes(), 0);
}

TEST_F(Planned, OpsAreExecutedOnRealMemoryIfAskedFor) {
    context.planned.executes = true;
    Stream stream(device(), "s");
    std::vector<float> in(100), out(100);
    std::iota(in.begin(), in.end(), 1.0f);
    const Buffer x(device(), 400, MemKind::data, "x"), y(device(), 200, MemKind::data, "y");
    stream.copy(x.data(), in.data(), 400);
    cast(stream, {.out = y.data(), .x = x.data(), .n = 100, .out_dtype = DType::bf16, .dtype = DType::f32});
    cast(stream, {.out = x.data(), .x = y.data(), .n = 100, .out_dtype = DType::f32, .dtype = DType::bf16});
    stream.copy(out.data(), x.data(), 400);
    stream.enqueue_host([&] { ++runs; });
    EXPECT_EQ(out, in) << "100 fits bf16";
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(stream.clock(), 800);
    stream.zero(x.data(), 400);
    EXPECT_EQ(x.as<float>()[99], 0.0f);
}

// A device without a context: each stream keeps time for itself, events still join.
TEST_F(Planned, WorksWithoutAContext) {
    Event e;
    {
        Stream a(Device{DeviceKind::planned}, "a");
        a.wait_until(5);
        e = a.record();
    }
    Stream b(Device{DeviceKind::planned}, "b");
    b.wait(e);
    EXPECT_EQ(b.clock(), 5);
    e.synchronize();
    const Buffer buffer(Device{DeviceKind::planned}, 100, MemKind::data, "b");
    EXPECT_NE(buffer.data(), nullptr);
}

}  // namespace
}  // namespace rz
