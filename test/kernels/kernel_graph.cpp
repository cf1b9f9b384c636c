// Graphs: recorded work is not done while it is recorded, and is done at each replay on what memory then holds.
#include "kernels/runtime/graph.h"

#include "kernels/elementwise.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

class GraphTest : public testing::Test {
   protected:
    void SetUp() override {
        std::string why;
        if (cuda_device_count(&why) == 0) GTEST_SKIP() << why;
        device.make_current();
        stream = std::make_unique<Stream>(device, "compute");
        other = std::make_unique<Stream>(device, "other");
        for (Buffer* b : {&x, &y, &sum}) *b = Buffer(device, n * 4, MemKind::workspace, "test");
        set(x, 0), set(y, 0), set(sum, 0);
    }
    void set(Buffer& b, float value) {
        const std::vector<float> host(size_t(n), value);
        stream->copy(b.data(), host.data(), n * 4);
        stream->synchronize();
    }
    std::vector<float> get(const Buffer& b) {
        std::vector<float> host(size_t(n), NAN);
        stream->copy(host.data(), b.data(), n * 4);
        stream->synchronize();
        return host;
    }
    // sum += a, in place
    void add(Stream& s, const Buffer& a) {
        reduce_add(s, {.out = sum.data(),
                       .a = sum.data(),
                       .b = a.data(),
                       .n = n,
                       .out_dtype = DType::f32,
                       .a_dtype = DType::f32,
                       .b_dtype = DType::f32});
    }
    std::vector<float> all(float value) const { return std::vector<float>(size_t(n), value); }

    const int64_t n = 1000;
    const Device device{DeviceKind::cuda, 0};
    std::unique_ptr<Stream> stream, other;
    Buffer x, y, sum;
};

TEST_F(GraphTest, ReplaysOnWhatMemoryHolds) {
    const Graph graph(*stream, [&] {
        add(*stream, x);
        stream->copy(y.data(), sum.data(), n * 4);
        stream->zero(x.data(), n * 2);  // half of it
    });
    EXPECT_EQ(graph.nodes(), 3);
    EXPECT_EQ(get(sum), all(0)) << "recording is not doing";
    set(x, 1);
    graph.launch(*stream);
    graph.launch(*stream);  // the first half has become 0
    std::vector<float> want = all(2);
    std::fill(want.begin(), want.begin() + n / 2, 1.0f);
    EXPECT_EQ(get(y), want);
    set(x, 10);
    graph.launch(*stream);
    for (float& w : want) w += 10;
    EXPECT_EQ(get(sum), want);
}

TEST_F(GraphTest, AnotherStreamTakesPart) {
    const Graph graph(*stream, [&] {
        add(*stream, x);
        other->wait(stream->record());
        add(*other, x);
        stream->wait(other->record());
        add(*stream, x);
    });
    EXPECT_EQ(graph.nodes(), 3);
    set(x, 1);
    for (int i = 0; i < 5; ++i) graph.launch(*stream);
    EXPECT_EQ(get(sum), all(15));
}

TEST_F(GraphTest, AFailureLeavesTheStreamUsable) {
    EXPECT_THROW(Graph(*stream,
                       [&] {
                           add(*stream, x);
                           fail("no");
                       }),
                 Error);
    set(x, 3);
    add(*stream, x);
    EXPECT_EQ(get(sum), all(3));
    const Graph graph(*stream, [&] { add(*stream, x); });
    graph.launch(*stream);
    EXPECT_EQ(get(sum), all(6));
}

// Enqueued once, recorded once, then replayed; whatever the key does not share is another piece.
TEST_F(GraphTest, PiecesAreKnownByTheirKeys) {
    GraphSet set;
    int enqueued = 0;
    const auto piece = [&](const Buffer& from, float factor) {
        set.run(*stream, GraphSet::key(1, from.data(), factor), [&] {
            ++enqueued;
            add(*stream, from);
        });
    };
    this->set(x, 1);
    this->set(y, 100);
    for (int i = 0; i < 4; ++i) piece(x, 1.0f);
    EXPECT_EQ(enqueued, 2) << "as it is, and to be recorded";
    EXPECT_EQ(set.recorded(), 1);
    EXPECT_EQ(set.replayed(), 3);
    EXPECT_EQ(get(sum), all(4));
    piece(y, 1.0f);  // another pointer: a graph of x would add 1
    piece(x, 2.0f);
    EXPECT_EQ(set.recorded(), 1);
    EXPECT_EQ(get(sum), all(105));
    piece(y, 1.0f);
    piece(y, 1.0f);
    EXPECT_EQ(set.recorded(), 2);
    EXPECT_EQ(get(sum), all(305));
}

// Two graphs, and between them work on another stream that both wait for; nested calls and an error leave nothing.
TEST_F(GraphTest, WhatComesBetweenGraphsIsDoneAtEachReplay) {
    GraphSet set;
    int enqueued = 0, between = 0;
    bool fails = false;
    const auto piece = [&] {
        set.run(*stream, GraphSet::key(1), [&] {
            ++enqueued;
            add(*stream, x);  // sum + x
            between_graphs(&set, [this, &between] {
                ++between;
                other->wait(stream->record());
                other->copy(y.data(), sum.data(), n * 4);
                stream->wait(other->record());
            });
            if (fails) fail("no");
            add(*stream, y);  // twice that
        });
    };
    this->set(x, 1);
    float want = 0;
    const auto expect = [&](int times_enqueued, int times_between) {
        want = 2 * (want + 1);
        EXPECT_EQ(get(sum), all(want));
        EXPECT_EQ(enqueued, times_enqueued);
        EXPECT_EQ(between, times_between);
    };
    piece();
    expect(1, 1);
    fails = true;  // half of it is done: the recorded graph, and what follows
    EXPECT_THROW(piece(), Error);
    want += 1;
    EXPECT_EQ(get(sum), all(want));
    EXPECT_EQ(set.recorded(), 0);
    fails = false;
    piece();
    expect(3, 3);
    EXPECT_EQ(set.graphs(), 3) << "one of them of the piece that failed";
    for (int i = 0; i < 3; ++i) piece(), expect(3, 4 + i);
    EXPECT_EQ(set.recorded(), 1);
    EXPECT_EQ(set.replayed(), 4);
    between_graphs(&set, [&] { ++between; });  // nothing is recorded: done once
    piece();
    expect(3, 8);
}

TEST_F(GraphTest, KeysThatNeverComeAgainAreNotKept) {
    GraphSet set;
    for (uint64_t i = 0; i < GraphSet::kMostPieces; ++i) set.run(*stream, GraphSet::key(i), [] {});
    for (int i = 0; i < 3; ++i) set.run(*stream, GraphSet::key(-1), [&] { stream->zero(x.data(), 4); });
    EXPECT_EQ(set.recorded(), 0);
    EXPECT_EQ(GraphSet::key(1.0f) == GraphSet::key(1), false);
}

TEST(Graph, ACpuStreamHasNone) {
    Stream cpu({DeviceKind::cpu, 0}, "host");
    EXPECT_THROW(Graph(cpu, [] {}), Error);
    EXPECT_FALSE(bool(Graph()));
    EXPECT_THROW(Graph().launch(cpu), Error);
}

}  // namespace
}  // namespace rz::test
