// Collectives over memory that threads share.

#include "test/comm/symmetric_cases.h"

#include <algorithm>
#include <barrier>

#include "comm/watch.h"
#include "test/checks.h"
#include "test/comm/ranks.h"

namespace rz {
namespace {

// A rank with collectives of its own, over all ranks of the hub.
struct Member {
    Member(LoopbackHub& hub, int rank, int64_t chunk_bytes = 1 << 16)
        : transport(hub.transport(rank)),
          stream(hub.device(rank), "comm"),
          symmetric(make_symmetric(*transport, {.chunk_bytes = chunk_bytes, .lanes = 2})) {}
    template <class T>
    T* allocate(int64_t count) {
        return reinterpret_cast<T*>(
            symmetric->allocate(count * int64_t(sizeof(T)), Alloc::per_rank)->part(transport->rank()));
    }
    const std::unique_ptr<Transport> transport;
    Stream stream;
    std::unique_ptr<Collectives> symmetric;
};

class SymmetricTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SymmetricTest, testing::Values(2, 3, 4, 8), testing::PrintToStringParamName());

TEST_P(SymmetricTest, GivesTheBitsOfDirect) {
    LoopbackHub hub(GetParam());
    hub.run([&](int rank) {
        Member m(hub, rank);
        const auto direct = make_direct(*m.transport, {.chunk_bytes = 1 << 16, .lanes = 2});
        compare_with_direct(*m.symmetric, *direct, m.stream);
        m.stream.synchronize();
    });
}

TEST_P(SymmetricTest, MemoryInCommonIsGatheredWithoutACopy) {
    LoopbackHub hub(GetParam());
    hub.run([&](int rank) {
        Member m(hub, rank);
        gather_in_common_memory(*m.symmetric, m.stream);
    });
}

// A rank with much to sum is still reading when the others, who own nothing, are through: their values must stay until
// it is done.
TEST(Symmetric, ValuesStayUntilTheSlowestRankHasReadThem) {
    constexpr int64_t kCount = 1 << 22;
    LoopbackHub hub(3);
    hub.run([&](int rank) {
        Member m(hub, rank);
        auto& [transport, stream, symmetric] = m;
        auto* x = m.allocate<float>(kCount);
        const std::vector<int64_t> offsets = {0, 0, 0, kCount};
        std::vector<float> sum(rank == 2 ? size_t(kCount) : 0);
        for (int time = 0; time < 3; ++time) {
            stream.synchronize();
            std::fill(x, x + kCount, float(rank + 1));
            symmetric->reduce_scatter(stream, reduce_scatter_f32(sum.data(), x, offsets));
            stream.zero(x, kCount * 4);
            stream.synchronize();
            EXPECT_EQ(std::count(sum.begin(), sum.end(), 6.0f), int64_t(sum.size()));
            symmetric->barrier(stream);
        }
        stream.synchronize();
    });
}

// A rank's memory is its own until it comes to the call, and complete when the call is over: others write into it in
// between. One rank is late, with what it does before the call on the stream.
TEST(Symmetric, MemoryIsWrittenByOthersDuringTheCallOnly) {
    constexpr int64_t kEach = 1000;
    LoopbackHub hub(3);
    const std::vector<int64_t> offsets = even_offsets(3 * kEach, 3);
    hub.run([&](int rank) {
        Member m(hub, rank);
        auto& [transport, stream, symmetric] = m;
        auto* x = m.allocate<float>(3 * kEach);
        for (int late = 0; late < 3; ++late) {
            const auto set = [&, late] {
                if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(10));
                std::fill(x, x + 3 * kEach, float(rank + 1));
            };
            int64_t wrong = 0;
            const auto expect = [&](auto want) {
                for (int64_t i = 0; i < 3 * kEach; ++i) wrong += x[i] != want(i);
            };
            stream.enqueue_host(set);
            symmetric->all_gather(stream, all_gather_f32(x, x + kEach * rank, offsets));
            stream.enqueue_host([&] { expect([&](int64_t i) { return float(i / kEach + 1); }); });
            stream.enqueue_host(set);
            symmetric->all_reduce(stream, sum_in_place(x, offsets));
            stream.enqueue_host([&] { expect([](int64_t) { return 6.0f; }); });
            stream.synchronize();
            EXPECT_EQ(wrong, 0) << "rank " << rank << ", rank " << late << " is late";
        }
    });
}

// More than the caches hold goes past them, by stores of its own: slices that begin and end within a line, in shared
// memory and in memory of the ranks' own.
TEST(Symmetric, LargeRangesGoPastTheCaches) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "stores that the sanitizer does not see: it has none of them";
#endif
    constexpr int64_t kCount = (int64_t(9) << 20) + 5;  // bf16 of two ranks: more than 32 MiB
    const std::vector<int64_t> offsets = {0, kCount / 2 + 3, kCount};
    LoopbackHub hub(2);
    hub.run([&](int rank) {
        Member m(hub, rank, 1 << 20);
        auto& [transport, stream, symmetric] = m;
        bf16 *shared = m.allocate<bf16>(kCount), *input = m.allocate<bf16>(kCount);
        std::vector<bf16> own(static_cast<size_t>(kCount));
        const auto value = [](int r, int64_t i) { return bf16(float((i * 5 + r * 11) % 61)); };
        for (bf16* out : {shared, own.data()}) {
            int64_t wrong = 0;
            stream.synchronize();
            for (int64_t i = 0; i < kCount; ++i) input[i] = value(rank, i), out[i] = bf16(-1);
            symmetric->all_gather(
                stream, {.out = out, .in = input + offsets[size_t(rank)], .offsets = offsets, .dtype = DType::bf16});
            stream.synchronize();
            for (int64_t i = 0; i < kCount; ++i) wrong += out[i].bits != value(i >= offsets[1], i).bits;
            symmetric->all_reduce(
                stream, {.out = out, .in = input, .offsets = offsets, .dtype = DType::bf16, .wire = DType::bf16});
            stream.synchronize();
            for (int64_t i = 0; i < kCount; ++i) wrong += float(out[i]) != float(value(0, i)) + float(value(1, i));
            EXPECT_EQ(wrong, 0) << (out == shared ? "shared" : "own") << " memory, rank " << rank;
        }
        symmetric->barrier(stream);
        stream.synchronize();
    });
}

// A rank that is through frees what it has of the memory; the others still read its values. Freed early, so many bytes
// would be no memory any more.
TEST(Symmetric, MemoryStaysUntilTheLastRankHasLeft) {
    constexpr int64_t kCount = 1 << 20;
    LoopbackHub hub(3);
    std::barrier<> written(3), left(3);
    hub.run([&](int rank) {
        Member m(hub, rank);
        SharedMemory* memory = m.symmetric->allocate(kCount * 4, Alloc::per_rank);
        std::fill_n(reinterpret_cast<float*>(memory->part(rank)), kCount, float(rank + 1));
        written.arrive_and_wait();
        if (rank == 0) m.symmetric.reset();
        left.arrive_and_wait();
        for (int r = 0; r < 3 && rank != 0; ++r) {
            const auto* x = reinterpret_cast<const float*>(memory->part(r));
            EXPECT_EQ(std::count(x, x + kCount, float(r + 1)), kCount) << "rank " << r << "'s, read by " << rank;
        }
        written.arrive_and_wait();
    });
}

// A rank that never comes: the others name it at the deadline. One that has failed: they end at once.
TEST(Symmetric, AMissingRankIsNamedAtTheDeadline) {
    LoopbackHub hub(3, /*timeout_s=*/1);
    const auto error = error_of<DeadlineError>([&] {
        hub.run([&](int rank) {
            Member m(hub, rank);
            std::vector<float> x(1000, 1);
            const auto offsets = even_offsets(1000, 3);
            if (rank != 1)
                m.symmetric->all_gather(m.stream, all_gather_f32(x.data(), x.data() + offsets[size_t(rank)], offsets));
            m.stream.synchronize();
        });
    });
    EXPECT_TRUE(says(error, "for rank 1 in shared memory"));
}

TEST(Symmetric, AFailedRankEndsTheWaitOfTheOthers) {
    LoopbackHub hub(2, /*timeout_s=*/60);
    EXPECT_THROW(hub.run([&](int rank) {
        Member m(hub, rank);
        if (rank == 1) {
            hub.fail(1, "its disk is full");
            fail("its disk is full");
        }
        std::vector<float> x(1000, 1);
        const auto offsets = even_offsets(1000, 2);
        m.symmetric->all_gather(m.stream, all_gather_f32(x.data(), x.data(), offsets));
        m.stream.synchronize();
    }),
                 Error);
}

}  // namespace
}  // namespace rz
