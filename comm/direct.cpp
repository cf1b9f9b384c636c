// Direct reduction: every rank sends slice j of its values straight to rank j, which adds the N contributions in ascending rank
// order in fp32 and rounds once. The bytes are the ring's; the bits do not depend on the slices. All-gather is the ring's.

#include <algorithm>

#include "comm/collectives.h"
#include "kernels/elementwise.h"

namespace rz {

namespace {

class Direct : public Collectives {
   public:
    Direct(Transport& transport, const CollectiveOptions& options)
        : Collectives(transport, options), ring_(make_ring(transport, {options.chunk_bytes, options.lanes, nullptr})) {}
    const char* name() const override { return "direct"; }

   protected:
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override {
        ring_->all_gather(stream, a);
        mark_done(stream);
    }

   private:
    struct Lane {
        char* rows = nullptr;  // (N, chunk) of wire type: the contributions to the own slice
        char* sent = nullptr;  // (N, chunk) of wire type: own values converted; only if wire != dtype
        Transfer transfer;
    };

    int64_t chunk_elements(const ReduceScatter& a) const {
        return std::max<int64_t>(64, options_.chunk_bytes / size_of(a.wire));
    }
    void start_chunk(Stream& stream, const ReduceScatter& a, int64_t c, Lane& lane);
    void finish_chunk(Stream& stream, const ReduceScatter& a, int64_t c, Lane& lane);

    // Chunk c of slice r.
    struct Part {
        int64_t begin, n;
    };
    Part part(const ReduceScatter& a, int64_t c, int r) const {
        const int64_t chunk = chunk_elements(a), end = offset(a.offsets, r + 1);
        const int64_t begin = std::min(offset(a.offsets, r) + c * chunk, end);
        return {begin, std::min(chunk, end - begin)};
    }

    std::unique_ptr<Collectives> ring_;
};

void Direct::start_chunk(Stream& stream, const ReduceScatter& a, int64_t c, Lane& lane) {
    const int64_t wire = size_of(a.wire), row = chunk_elements(a) * wire;
    const Part own = part(a, c, rank());
    const char* in = static_cast<const char*>(a.in);
    MessageGroup group = hop();
    for (int d = 0; d < size(); ++d) {  // rank + d: no two ranks send to the same one at once
        const int peer = wrap(rank() + d);
        const Part out = part(a, c, peer);
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

void Direct::finish_chunk(Stream& stream, const ReduceScatter& a, int64_t c, Lane& lane) {
    transport_.finish(stream, lane.transfer);
    lane.transfer = {};
    const Part own = part(a, c, rank());
    if (own.n == 0) return;
    const int64_t in_own = own.begin - offset(a.offsets, rank());
    sum_rows(stream, {.out = static_cast<char*>(a.out) + in_own * size_of(a.out_dtype),
                      .x = lane.rows,
                      .rows = size(),
                      .n = own.n,
                      .stride = chunk_elements(a),
                      .scale = a.scale,
                      .out_dtype = a.out_dtype,
                      .dtype = a.wire});
}

void Direct::do_reduce_scatter(Stream& stream, const ReduceScatter& a) {
    int64_t longest = 0;
    for (int r = 0; r < size(); ++r) longest = std::max(longest, count(a.offsets, r));
    const int64_t chunks = ceil_div(longest, chunk_elements(a));
    const int lane_count = int(std::min<int64_t>(options_.lanes, chunks));
    std::vector<Lane> lanes(static_cast<size_t>(lane_count));
    const int64_t rows = size() * chunk_elements(a) * size_of(a.wire);
    const bool convert = a.wire != a.dtype;
    char* memory = lane_count ? static_cast<char*>(scratch(stream, lane_count * rows * (convert ? 2 : 1))) : nullptr;
    for (Lane& lane : lanes) {
        lane.rows = memory;
        lane.sent = memory + rows;
        memory += rows * (convert ? 2 : 1);
    }
    for (int64_t c = 0; c < lane_count; ++c) start_chunk(stream, a, c, lanes[size_t(c)]);
    for (int64_t c = 0; c < chunks; ++c) {
        Lane& lane = lanes[size_t(c % lane_count)];
        finish_chunk(stream, a, c, lane);
        if (c + lane_count < chunks) start_chunk(stream, a, c + lane_count, lane);
    }
    mark_done(stream);
}

void Direct::do_all_reduce(Stream& stream, const AllReduce& a) {
    char* own = static_cast<char*>(a.out) + offset(a.offsets, rank()) * size_of(a.dtype);
    do_reduce_scatter(stream, {.out = own, .in = a.in, .offsets = a.offsets, .dtype = a.dtype, .wire = a.wire,
                               .out_dtype = a.dtype, .scale = a.scale});
    ring_->all_gather(stream, {.out = a.out, .in = own, .offsets = a.offsets, .dtype = a.dtype});
}

}  // namespace

std::unique_ptr<Collectives> make_direct(Transport& transport, const CollectiveOptions& options) {
    return std::make_unique<Direct>(transport, options);
}

}  // namespace rz
