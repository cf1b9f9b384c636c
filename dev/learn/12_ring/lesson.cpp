// Ring all-reduce from send and receive.
#include "comm/transport.h"

// data (N * slice floats) becomes the sum over all N ranks; scratch has `slice` floats. Slice c of the data starts at
// rank c + 1, goes once around, each rank adding its values, and comes home to rank c.
void ring_all_reduce(rz::Transport& transport, rz::Stream& stream, float* data, int64_t slice, float* scratch) {
    const int N = transport.size(), rank = transport.rank();
    const int right = (rank + 1) % N, left = (rank + N - 1) % N;
    const auto exchange = [&](const float* from, float* to) {  // one hop: to the right, from the left
        rz::MessageGroup group;
        group.send(from, slice * 4, right);
        group.recv(to, slice * 4, left);
        transport.exchange(stream, group);
        stream.synchronize();
    };
    for (int s = 0; s < N - 1; ++s) {  // reduce-scatter
        // >>> hole 1: in hop 0 rank r sends slice r - 1; then always what it has just added to
#ifdef HOLE
        const int out = s, in = s;
#else
        const int out = (rank - s - 1 + N) % N, in = (rank - s - 2 + 2 * N) % N;
#endif
        // <<<
        exchange(data + out * slice, scratch);
        for (int64_t i = 0; i < slice; ++i) data[in * slice + i] += scratch[i];
    }
    for (int s = 0; s < N - 1; ++s) {  // all-gather
        // >>> hole 2: in hop 0 rank r sends its finished slice r; then always what has just arrived
#ifdef HOLE
        const int out = rank, in = left;
#else
        const int out = (rank - s + N) % N, in = (rank - s - 1 + N) % N;
#endif
        // <<<
        exchange(data + out * slice, data + in * slice);
    }
}
