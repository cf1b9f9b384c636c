#pragma once
// Symmetric collectives must give, for ranks of any kind: the bits of `direct`, in memory of their own and in
// memory that the ranks map.

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "test/comm/ranks.h"

namespace rz {

// Slices: equal, unequal, some empty, all with one rank.
inline std::vector<std::vector<int64_t>> slices_of(int ranks) {
    std::vector<std::vector<int64_t>> cases = {even_offsets(7, ranks), even_offsets(30000, ranks, 16)};
    std::vector<int64_t> unequal = {0}, one = {0};
    for (int r = 0; r < ranks; ++r) {
        unequal.push_back(unequal.back() + (r % 3 == 1 ? 0 : 1 + 997 * r));
        one.push_back(r == ranks - 1 ? 20000 : 0);
    }
    cases.push_back(unequal);
    cases.push_back(one);
    return cases;
}

struct SymmetricCase {
    std::vector<int64_t> offsets;
    DType dtype, wire;
    char *in, *out;
    bool shared;  // they are
};

// Every call, one after the other, against `direct` on the same values. In fp32 values whose sums round: another order
// would show on three ranks and more.
inline void compare_calls(Collectives& symmetric, Collectives& direct, Stream& stream, const SymmetricCase& c,
                          std::vector<char>& want_memory) {
    const auto& [offsets, dtype, wire, in, out, shared] = c;
    const int rank = symmetric.rank(), size = symmetric.size();
    const int64_t n = offsets.back(), e = size_of(dtype), first = offsets[size_t(rank)];
    const int64_t own = offsets[size_t(rank) + 1] - first;
    std::vector<float> floats;
    for (int64_t i = 0; i < n; ++i) floats.push_back(rough_value(rank, i));
    const std::vector<char> values = to_bytes(floats, dtype);
    const auto fill = [&] {
        stream.synchronize();
        std::memcpy(in, values.data(), values.size());
        std::memset(out, 0xff, size_t(n * e));
    };
    const auto expect_same = [&](const char* got, int64_t bytes, const char* what) {
        stream.synchronize();
        EXPECT_EQ(std::memcmp(got, want_memory.data(), size_t(bytes)), 0)
            << what << " of " << n << " " << name_of(dtype) << " over " << name_of(wire)
            << (shared ? " in shared memory" : "") << ", rank " << rank;
    };
    const auto scatter_to = [&](void* to) { return ReduceScatter{to, in, offsets, dtype, wire, DType::f32, 0.3f}; };
    fill();
    direct.reduce_scatter(stream, scatter_to(want_memory.data()));
    // Once the call is over its input may change, however late a rank is.
    stream.enqueue_host([late = rank == size - 1 && dtype == wire] {
        if (late) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    symmetric.reduce_scatter(stream, scatter_to(out));
    stream.zero(in, n * e);
    expect_same(out, own * 4, "reduce_scatter");

    fill();
    const auto sum = [&](void* to) {
        return AllReduce{.out = to, .in = in, .offsets = offsets, .dtype = dtype, .wire = wire};
    };
    direct.all_reduce(stream, sum(want_memory.data()));
    symmetric.all_reduce(stream, sum(out));
    expect_same(out, n * e, "all_reduce");
    symmetric.all_reduce(stream, sum(in));
    expect_same(in, n * e, "all_reduce in place");

    fill();
    const auto gather = [&](void* to) {
        return AllGather{.out = to, .in = in + first * e, .offsets = offsets, .dtype = dtype};
    };
    direct.all_gather(stream, gather(want_memory.data()));
    symmetric.all_gather(stream, gather(in));
    expect_same(in, n * e, "all_gather in place");
    symmetric.all_gather(stream, gather(out));
    stream.copy(want_memory.data(), out, n * e);
    stream.zero(out, n * e);
    direct.all_gather(stream, gather(out));
    expect_same(out, n * e, "all_gather");

    fill();
    const int root = int(n) % size;
    if (rank == root) std::memcpy(want_memory.data(), values.data(), values.size());
    direct.broadcast(stream, want_memory.data(), n * e, root);
    symmetric.broadcast(stream, in, n * e, root);
    expect_same(in, n * e, "broadcast");
}

// All slices and types, so that memory and phases are used again; also in memory that is mapped, where any is.
inline void compare_with_direct(Collectives& symmetric, Collectives& direct, Stream& stream) {
    const int rank = symmetric.rank();
    const int64_t most = 200000 * 4;
    SharedMemory* in_window = symmetric.allocate(most, Alloc::per_rank);
    SharedMemory* out_window = symmetric.allocate(most, Alloc::per_rank);
    ASSERT_EQ(in_window == nullptr, symmetric.through().starts_with("through pinned"));
    std::vector<char> in_heap(static_cast<size_t>(most)), out_heap(in_heap), want_memory(in_heap);
    for (const std::vector<int64_t>& offsets : slices_of(symmetric.size()))
        for (const DType dtype : {DType::f32, DType::bf16})
            for (const DType wire : {DType::f32, DType::bf16})
                for (const bool shared : {false, true}) {
                    if (offsets.back() * 4 > most || (shared && !in_window)) continue;
                    const SymmetricCase c{.offsets = offsets,
                                          .dtype = dtype,
                                          .wire = wire,
                                          .in = shared ? in_window->part(rank) : in_heap.data(),
                                          .out = shared ? out_window->part(rank) : out_heap.data(),
                                          .shared = shared};
                    compare_calls(symmetric, direct, stream, c, want_memory);
                }
    symmetric.barrier(stream);
    stream.synchronize();
}

// After a gather all see what its owner wrote into memory that all have in common, without a copy.
inline void gather_in_common_memory(Collectives& symmetric, Stream& stream) {
    const int rank = symmetric.rank(), size = symmetric.size();
    const std::vector<int64_t> offsets = even_offsets(5000, size);
    SharedMemory* common = symmetric.allocate(5000 * 4, Alloc::shared);
    float* x = reinterpret_cast<float*>(common->part(rank));
    EXPECT_EQ(common->part(0), common->part(size - 1));
    const int64_t sent_before = symmetric.transport().bytes_sent();
    for (int step = 1; step <= 20; ++step) {
        stream.enqueue_host([&, step] {
            for (int64_t i = offsets[size_t(rank)]; i < offsets[size_t(rank) + 1]; ++i) x[i] = float(step * 10000 + i);
        });
        symmetric.all_gather(stream, all_gather_f32(x, x + offsets[size_t(rank)], offsets));
        int wrong = 0;
        stream.enqueue_host([&] {
            for (int64_t i = 0; i < 5000; ++i) wrong += x[i] != float(step * 10000 + i);
        });
        symmetric.barrier(stream);  // all have read
        stream.synchronize();
        EXPECT_EQ(wrong, 0) << "step " << step << ", rank " << rank;
    }
    int64_t rounds = 0;  // of the barriers, a byte each
    while (1 << rounds < size) ++rounds;
    EXPECT_EQ(symmetric.transport().bytes_sent() - sent_before, 20 * rounds) << "nothing else moves";
}

}  // namespace rz
