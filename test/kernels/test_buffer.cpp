// A Buffer may go while work that uses it is still queued: the memory stays until that work is done.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <stdexcept>

#include "kernels/runtime/context.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/memory.h"
#include "test/checks.h"

namespace rz {
namespace {

constexpr int64_t kBytes = int64_t(1) << 20;  // its own mapping: freed too early, a write to it would end the process

Buffer make_buffer() { return Buffer(Device{}, kBytes, MemKind::workspace, "buffer of the test"); }

// Work that is queued behind a gate, so that it runs only once the test lets it.
struct GatedStream {
    std::promise<void> gate;
    Stream stream{Device{}, "gated"};
    GatedStream() {
        stream.enqueue_host([opened = std::make_shared<std::future<void>>(gate.get_future())] { opened->wait(); });
    }
    void open_and_wait() {
        gate.set_value();
        stream.synchronize();
    }
};

TEST(BufferTest, OutlivesTheWorkThatIsQueuedOnIt) {
    GatedStream gated;
    void* address = nullptr;
    bool seen = false;
    {
        Buffer b = make_buffer();
        address = b.data();
        gated.stream.zero(b.data(), b.bytes());
        gated.stream.enqueue_host([p = b.as<char>(), &seen] { seen = p[kBytes - 1] == 0; });
    }
    const Buffer other = make_buffer();
    EXPECT_NE(other.data(), address) << "handed out again while work was queued on it";
    gated.open_and_wait();
    EXPECT_TRUE(seen);
}

TEST(BufferTest, OutlivesItWhenAConstructorThrows) {
    struct Owner {
        Buffer first, second;
        explicit Owner(Stream& stream) : first(make_buffer()), second(make_buffer()) {
            stream.zero(first.data(), first.bytes());
            stream.zero(second.data(), second.bytes());
            throw std::runtime_error("no more memory");
        }
    };
    GatedStream gated;
    EXPECT_THROW(Owner{gated.stream}, std::runtime_error);
    gated.open_and_wait();
}

TEST(BufferTest, OutlivesWorkOfTheSecondOfTwoStreams) {
    Stream idle(Device{}, "idle");
    GatedStream gated;
    {
        Buffer b = make_buffer();
        idle.zero(b.data(), b.bytes());
        idle.synchronize();
        gated.stream.zero(b.data(), b.bytes());
    }
    gated.open_and_wait();
}

TEST(BufferTest, MayBeFreedByQueuedWorkItself) {
    Stream stream(Device{}, "frees");
    auto held = std::make_shared<Buffer>(make_buffer());
    stream.zero(held->data(), held->bytes());
    stream.enqueue_host([held] {});
    held.reset();
    stream.synchronize();
}

// Large ranges are filled by several threads, in pieces.
TEST(Stream, ZeroFillsEveryByteAndNoOther) {
    for (const int64_t bytes : {int64_t(1), (int64_t(2) << 20) - 1, (int64_t(9) << 20) + 4097}) {
        std::vector<unsigned char> x(size_t(bytes) + 2, 0xff);
        Stream stream(Device{}, "fills");
        stream.zero(x.data() + 1, bytes);
        stream.synchronize();
        EXPECT_EQ(x.front(), 0xff);
        EXPECT_EQ(x.back(), 0xff);
        EXPECT_EQ(std::count(x.begin(), x.end(), 0), bytes);
    }
}

// Linux would hand it out, and end the process when it is used.
TEST(BufferTest, MoreThanTheHostHasIsRefused) {
    const int64_t bytes = available_host_memory() / 4 * 5;
    EXPECT_TRUE(says(error_of([&] { Buffer(Device{}, bytes, MemKind::activations, "too large"); }), "out of memory: "));
    // Also in pieces that fit by themselves, none of which is in use yet.
    RankContext context;
    std::vector<Buffer> pieces;
    EXPECT_THROW(for (int i = 0; i < 12; ++i)
                     pieces.emplace_back(Device{.context = &context}, bytes / 8, MemKind::activations, "piece"),
                 Error);
}

struct FakeHost {
    TempFolder root;
    void add(const std::string& path, const std::string& text) { write_text(root.path + path, text); }
    int64_t available() { return available_host_memory(root / "proc", root / "cgroup"); }
};

TEST(HostMemory, TheTightestGroupCounts) {
    FakeHost host;
    EXPECT_EQ(host.available(), INT64_MAX) << "nothing can be read";
    host.add("/proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:    1000 kB\n");
    EXPECT_EQ(host.available(), 1000 * 1024);
    host.add("/proc/self/cgroup", "0::/user/job\n");
    host.add("/cgroup/user/job/memory.max", "max\n");
    host.add("/cgroup/user/job/memory.current", "5\n");
    EXPECT_EQ(host.available(), 1000 * 1024) << "no limit";
    host.add("/cgroup/user/memory.max", "600000\n");
    host.add("/cgroup/user/memory.current", "500000\n");
    host.add("/cgroup/user/memory.stat", "anon 1\ninactive_file 30000\n");
    EXPECT_EQ(host.available(), 130000) << "the limit of a level above, file cache not counted";
    host.add("/proc/self/cgroup", "12:cpu:/x\n4:memory:/docker/a\n");
    host.add("/cgroup/memory/docker/a/memory.limit_in_bytes", "90000\n");
    host.add("/cgroup/memory/docker/a/memory.usage_in_bytes", "95000\n");
    EXPECT_EQ(host.available(), 0) << "version 1, used up";
}

}  // namespace
}  // namespace rz
