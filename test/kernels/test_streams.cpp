// A failed stream: nothing that failed work would have made is read, here or on a stream that waits.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/runtime/device.h"
#include "test/checks.h"

namespace rz {
namespace {

void fail_on(Stream& stream) {
    stream.enqueue_host([] { throw std::runtime_error("no memory for a product"); });
}

template <class F>
std::string thrown_by(F&& call) {
    return error_of<std::exception>(call);
}

TEST(StreamFailure, AnEventAfterFailedWorkThrowsWhatTheWorkThrew) {
    Stream stream(Device{}, "compute");
    double loss = 1.5;
    stream.enqueue_host([&] { loss = 2.5; });
    const Event before = stream.record();
    fail_on(stream);
    stream.enqueue_host([&] { loss = 0; });
    const Event after = stream.record();
    EXPECT_EQ(thrown_by([&] { before.synchronize(); }), "") << "what was enqueued before the failure is good";
    EXPECT_EQ(thrown_by([&] { after.synchronize(); }), "no memory for a product");
    EXPECT_EQ(thrown_by([&] { (void)after.done(); }), "no memory for a product");
    EXPECT_TRUE(before.done());
    EXPECT_EQ(loss, 2.5) << "work after the failure does not run";
    EXPECT_EQ(thrown_by([&] { stream.synchronize(); }), "no memory for a product");
    EXPECT_EQ(thrown_by([&] { after.synchronize(); }), "no memory for a product") << "reported or not";
}

TEST(StreamFailure, GoesToEveryStreamThatWaits) {
    Stream compute(Device{}, "compute"), comm(Device{}, "comm"), back(Device{}, "back"), other(Device{}, "other");
    bool sent = false, used = false, apart = false;
    fail_on(compute);
    comm.wait(compute.record());
    comm.enqueue_host([&] { sent = true; });
    back.wait(comm.record());
    back.enqueue_host([&] { used = true; });
    other.enqueue_host([&] { apart = true; });
    EXPECT_EQ(thrown_by([&] { back.synchronize(); }), "no memory for a product");
    EXPECT_EQ(thrown_by([&] { comm.synchronize(); }), "no memory for a product");
    EXPECT_EQ(thrown_by([&] { other.synchronize(); }), "");
    EXPECT_EQ(thrown_by([&] { compute.synchronize(); }), "no memory for a product");
    EXPECT_FALSE(sent);
    EXPECT_FALSE(used);
    EXPECT_TRUE(apart);
}

// A rank that failed may wait for a message that the other rank makes of what it no longer sends.
TEST(StreamFailure, WaitsForNoOtherStreamAnyMore) {
    std::promise<void> gate;
    Stream compute(Device{}, "compute"), recv(Device{}, "recv");
    recv.enqueue_host([opened = std::make_shared<std::future<void>>(gate.get_future())] { opened->wait(); });
    fail_on(compute);
    compute.wait(recv.record());
    EXPECT_EQ(thrown_by([&] { compute.record().synchronize(); }), "no memory for a product");
    gate.set_value();
    EXPECT_EQ(thrown_by([&] { compute.synchronize(); }), "no memory for a product");
}

TEST(StreamFailure, AReportedStreamWorksAgain) {
    Stream stream(Device{}, "compute");
    fail_on(stream);
    EXPECT_EQ(thrown_by([&] { stream.synchronize(); }), "no memory for a product");
    bool ran = false;
    stream.enqueue_host([&] { ran = true; });
    EXPECT_EQ(thrown_by([&] { stream.record().synchronize(); }), "");
    EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace rz
