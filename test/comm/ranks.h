#pragma once
// Ranks that are threads of this process, calls in the type that most tests have, and values whose sums are known.

#include <gtest/gtest.h>

#include <vector>

#include "comm/collectives.h"
#include "comm/loopback.h"
#include "comm/process.h"
#include "kernels/runtime/dtype.h"

namespace rz {

// Calls body(process) on each rank; every rank must end with exit code 0.
template <class Body>
void run_processes(LoopbackHub& hub, const Body& body) {
    hub.run([&](int rank) {
        Process process(hub, rank);
        EXPECT_EQ(process.run([&] {
            body(process);
            return 0;
        }),
                  0);
    });
}
template <class Body>
void run_processes(int ranks, const Body& body) {
    LoopbackHub hub(ranks);
    run_processes(hub, body);
}

inline AllReduce all_reduce_f32(void* out, const void* in, Offsets offsets) {
    return {.out = out, .in = in, .offsets = offsets, .dtype = DType::f32, .wire = DType::f32};
}
inline AllReduce sum_in_place(void* x, Offsets offsets) { return all_reduce_f32(x, x, offsets); }
inline ReduceScatter reduce_scatter_f32(void* out, const void* in, Offsets offsets) {
    const DType f32 = DType::f32;
    return {.out = out, .in = in, .offsets = offsets, .dtype = f32, .wire = f32, .out_dtype = f32};
}
inline AllGather all_gather_f32(void* out, const void* in, Offsets offsets) {
    return {.out = out, .in = in, .offsets = offsets, .dtype = DType::f32};
}

// Bytes that member r of a ring sends: its hops carry every slice but one, its own in a reduce-scatter, the right
// neighbour's in an all-gather.
inline int64_t sent_by_scatter(Offsets slices, int r, int64_t element) {
    return (slices.back() - (slices[size_t(r) + 1] - slices[size_t(r)])) * element;
}
inline int64_t sent_by_gather(Offsets slices, int r, int64_t element) {
    return sent_by_scatter(slices, (r + 1) % int(slices.size() - 1), element);
}

// Small integers stored as floats: every partial sum of a few ranks is exact, in bf16 and fp16 too, so any order of
// summation gives the same bits and results are compared with no tolerance. Depends on rank and index.
inline float exact_value(int rank, int64_t i) { return float((i * 7 + rank * 13 + (i >> 7) * 3) % 17 - 8); }

// Values of all magnitudes: the order of summation shows.
inline float rough_value(int rank, int64_t i) {
    uint64_t x = uint64_t(i) * 0x9e3779b97f4a7c15ull + uint64_t(rank + 1) * 0xd1b54a32d192ed03ull;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebull;
    x ^= x >> 29;
    return (float(x & 0xffffff) / float(0x800000) - 1) * float(1 << ((x >> 24) % 12));
}

inline std::vector<char> to_bytes(const std::vector<float>& values, DType t) {
    std::vector<char> bytes(values.size() * size_t(size_of(t)));
    with_dtype(t, [&]<class T>() {
        T* p = reinterpret_cast<T*>(bytes.data());
        for (size_t i = 0; i < values.size(); ++i) p[i] = T(values[i]);
    });
    return bytes;
}

inline std::vector<float> to_floats(const void* data, int64_t n, DType t) {
    std::vector<float> values(static_cast<size_t>(n));
    with_dtype(t, [&]<class T>() {
        const T* p = static_cast<const T*>(data);
        for (int64_t i = 0; i < n; ++i) values[size_t(i)] = float(p[i]);
    });
    return values;
}

}  // namespace rz
