#pragma once
// Ranks that are threads of this process, and calls in the type that most tests have.

#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "comm/loopback.h"
#include "comm/process.h"

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

}  // namespace rz
