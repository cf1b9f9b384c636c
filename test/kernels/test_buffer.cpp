// A Buffer may go while work that uses it is still queued: the memory stays until that work is done.
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "kernels/runtime/memory.h"

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

}  // namespace
}  // namespace rz
