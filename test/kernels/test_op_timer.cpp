// Ops, copies and fills are timed by name while a stream has a timer, and only then.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/gemm/gemm.h"
#include "kernels/runtime/op_timer.h"

namespace rz {
namespace {

struct SlowOp {
    int* runs;
};
void slow(const SlowOp& a) {
    ++*a.runs;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(OpTimerTest, AddsUpByName) {
    Stream stream(Device{}, "timed");
    OpTimer timer;
    int runs = 0;
    float a[4] = {1, 2, 3, 4}, b[4] = {}, c[4] = {};
    stream.run(SlowOp{&runs}, slow, nullptr);
    const auto begin = std::chrono::steady_clock::now();
    stream.set_op_timer(&timer);
    for (int i = 0; i < 3; ++i) stream.run(SlowOp{&runs}, slow, nullptr);
    stream.copy(b, a, sizeof a);
    stream.zero(c, sizeof c);
    Gemm g{};
    g.c = c, g.a = a, g.b = b, g.M = g.N = g.K = 2, g.trans_b = true, g.dtype = g.c_dtype = DType::f32;
    gemm(stream, g);
    stream.set_op_timer(nullptr);
    stream.run(SlowOp{&runs}, slow, nullptr);
    const auto totals = timer.take();
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    stream.synchronize();

    EXPECT_EQ(runs, 5);
    ASSERT_EQ(totals.size(), 4u);
    EXPECT_EQ(totals.at("SlowOp").calls, 3);
    EXPECT_GE(totals.at("SlowOp").seconds, 0.06);
    EXPECT_EQ(totals.at("copy").calls, 1);
    EXPECT_EQ(totals.at("zero").calls, 1);
    EXPECT_EQ(totals.at("Gemm y = x W^T").calls, 1);
    double sum = 0;
    for (const auto& [name, total] : totals) sum += total.seconds;
    EXPECT_LE(sum, wall);
    EXPECT_TRUE(timer.take().empty());
    EXPECT_EQ(b[3], 4.0f);
    EXPECT_EQ(c[0], 5.0f);  // 1*1 + 2*2
}

}  // namespace
}  // namespace rz
