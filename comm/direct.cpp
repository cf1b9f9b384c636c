// Direct reduction: every rank sends slice j of its values straight to rank j, which adds the N contributions in
// ascending rank order in fp32 and rounds once. All-gather: every rank sends its slice to all. The bytes are the
// ring's, in one step instead of N - 1; the bits do not depend on the slices.

#include <algorithm>

#include "comm/collectives.h"
#include "kernels/elementwise.h"

namespace rz {

namespace {

class Direct : public Collectives {
   public:
    using Collectives::Collectives;
    const char* name() const override { return "direct"; }

   protected:
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override;

   private:
    struct Lane {
        char* rows = nullptr;  // (N, chunk) of wire type: the contributions to this rank's slice
        char* sent = nullptr;  // (N, chunk) of wire type: own values converted; only if wire != dtype
        Transfer transfer;
    };

    struct Chunks {
        int64_t elements;  // of one
        int64_t count;     // in the longest slice
    };
    Chunks chunks_of(Offsets offsets, DType moved) const {
        const int64_t most = std::max<int64_t>(64, options_.chunk_bytes / size_of(moved));
        const int64_t elements = std::min(most, round_up(std::max<int64_t>(longest(offsets), 1), 64));
        return {elements, ceil_div(longest(offsets), elements)};
    }
    void start_chunk(Stream& stream, const ReduceScatter& a, int64_t chunk, int64_t c, Lane& lane);
    void finish_chunk(Stream& stream, const ReduceScatter& a, int64_t chunk, int64_t c, Lane& lane);
};

void Direct::start_chunk(Stream& stream, const ReduceScatter& a, int64_t chunk, int64_t c, Lane& lane) {
    const int64_t wire = size_of(a.wire), row = chunk * wire;
    const Part own = part(a.offsets, chunk, c, rank());
    const char* in = static_cast<const char*>(a.in);
    MessageGroup group = hop();
    for (int d = 0; d < size(); ++d) {  // rank + d: no two ranks send to the same one at once
        const int peer = wrap(rank() + d);
        const Part out = part(a.offsets, chunk, c, peer);
        const char* values = in + out.begin * size_of(a.dtype);
        if (peer == rank()) {
            scale_into(stream, lane.rows + row * peer, a.wire, values, a.dtype, own.n, 1);
            continue;
        }
        if (a.wire != a.dtype) {
            scale_into(stream, lane.sent + row * peer, a.wire, values, a.dtype, out.n, 1);
            values = lane.sent + row * peer;
        }
        group.send(values, out.n * wire, peer);
        const int source = wrap(rank() - d);
        group.recv(lane.rows + row * source, own.n * wire, source);
    }
    lane.transfer = transport_.start(stream, group);
}

void Direct::finish_chunk(Stream& stream, const ReduceScatter& a, int64_t chunk, int64_t c, Lane& lane) {
    transport_.finish(stream, lane.transfer);
    lane.transfer = {};
    const Part own = part(a.offsets, chunk, c, rank());
    if (own.n == 0) return;
    const int64_t in_own = own.begin - offset(a.offsets, rank());
    sum_rows(stream, {.out = static_cast<char*>(a.out) + in_own * size_of(a.out_dtype),
                      .x = lane.rows,
                      .rows = size(),
                      .n = own.n,
                      .stride = chunk,
                      .scale = a.scale,
                      .out_dtype = a.out_dtype,
                      .dtype = a.wire});
}

void Direct::do_reduce_scatter(Stream& stream, const ReduceScatter& a) {
    const auto [chunk, chunks] = chunks_of(a.offsets, a.wire);
    const int lane_count = int(std::min<int64_t>(options_.lanes, chunks));
    std::vector<Lane> lanes(static_cast<size_t>(lane_count));
    const int64_t rows = round_up(size() * chunk * size_of(a.wire), 256);
    const bool convert = a.wire != a.dtype;
    char* memory = lane_count ? static_cast<char*>(scratch(stream, lane_count * rows * (convert ? 2 : 1))) : nullptr;
    for (Lane& lane : lanes) {
        lane.rows = memory;
        lane.sent = memory + rows;
        memory += rows * (convert ? 2 : 1);
    }
    for (int64_t c = 0; c < lane_count; ++c) start_chunk(stream, a, chunk, c, lanes[size_t(c)]);
    for (int64_t c = 0; c < chunks; ++c) {
        Lane& lane = lanes[size_t(c % lane_count)];
        finish_chunk(stream, a, chunk, c, lane);
        if (c + lane_count < chunks) start_chunk(stream, a, chunk, c + lane_count, lane);
    }
}

// This rank's slice lies in place. Chunk c + lanes travels while chunk c is waited for.
void Direct::do_all_gather(Stream& stream, const AllGather& a) {
    const auto [chunk, chunks] = chunks_of(a.offsets, a.dtype);
    const int64_t bytes = size_of(a.dtype);
    char* out = static_cast<char*>(a.out);
    std::vector<Transfer> transfers(static_cast<size_t>(chunks));
    for (int64_t c = 0; c < chunks + options_.lanes; ++c) {
        if (c >= options_.lanes && c - options_.lanes < chunks)
            transport_.finish(stream, transfers[size_t(c - options_.lanes)]);
        if (c >= chunks) continue;
        MessageGroup group = hop();
        for (int d = 1; d < size(); ++d) {
            const int to = wrap(rank() + d), from = wrap(rank() - d);
            const Part own = part(a.offsets, chunk, c, rank()), theirs = part(a.offsets, chunk, c, from);
            group.send(out + own.begin * bytes, own.n * bytes, to);
            group.recv(out + theirs.begin * bytes, theirs.n * bytes, from);
        }
        transfers[size_t(c)] = transport_.start(stream, group);
    }
}

}  // namespace

std::unique_ptr<Collectives> make_direct(Transport& transport, const CollectiveOptions& options) {
    return std::make_unique<Direct>(transport, options);
}

}  // namespace rz
