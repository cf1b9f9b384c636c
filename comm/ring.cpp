// The ring. Rank r sends to r + 1 and receives from r - 1; slice c starts at rank c + 1 and comes home to rank c after
// N - 1 hops, each adding one rank's values; N - 1 more hops take the sum around.
//
// Slices are cut into chunks. A lane carries one chunk through all its hops before it takes the next one, so partial
// sums stay in a scratch of two chunks per lane, in cache; lanes alternate, so one chunk's addition overlaps another's
// transfer. The schedule is the same on all ranks, which is what matches sends with receives.

#include <algorithm>

#include "comm/collectives.h"
#include "kernels/elementwise.h"

namespace rz {

namespace {

constexpr int64_t kMinChunk = 64;                 // elements
constexpr int64_t kGoodChunk = int64_t(1) << 20;  // bytes: smaller ones cost more in messages than a lane hides

class Ring : public Collectives {
   public:
    using Collectives::Collectives;
    const char* name() const override { return "ring"; }
    bool rounds_first() const override { return false; }

   protected:
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override;

   private:
    // One collective: the buffers, and which half or halves of the ring are run.
    struct Plan {
        const char* in = nullptr;  // element 0
        char* own_out = nullptr;   // where the sum of this rank's slice goes
        char* gather = nullptr;    // element 0 of the gathered range
        Offsets offsets;
        DType dtype, wire, out_dtype;
        float scale = 1;
        bool reduce = false, gathers = false;
        int64_t chunk = 0;   // elements
        int64_t chunks = 0;  // of the longest slice
        int half = 0;        // hops of one half of the ring: size() - 1
        int hops = 0;
    };
    struct Lane {
        char* outgoing = nullptr;  // partial sums of the chunk under way, wire type
        char* incoming = nullptr;
        int64_t chunk = 0;  // index in every slice
        int hop = 0;        // the one under way
        Transfer transfer;
    };

    void run(Stream& stream, Plan plan);
    void move(Stream& stream, const Plan& plan);
    void start_hop(Stream& stream, const Plan& plan, Lane& lane);
    void finish_hop(Stream& stream, const Plan& plan, Lane& lane);

    Part part(const Plan& plan, const Lane& lane, int r) const {
        return Collectives::part(plan.offsets, plan.chunk, lane.chunk, r);
    }
    int lanes_of(const Plan& plan) const { return int(std::min<int64_t>(options_.lanes, plan.chunks)); }
    // Bytes of each of a lane's two buffers; 0: it needs none.
    int64_t lane_bytes(const Plan& plan) const {
        return plan.reduce ? round_up(std::min(plan.chunk, longest(plan.offsets)) * size_of(plan.wire), 256) : 0;
    }
    bool reducing(const Plan& plan, int hop) const { return plan.reduce && hop < plan.half; }
    // Step within its half of the ring.
    int step(const Plan& plan, int hop) const { return plan.reduce && hop >= plan.half ? hop - plan.half : hop; }
};

void Ring::start_hop(Stream& stream, const Plan& plan, Lane& lane) {
    const int right = wrap(rank() + 1), left = wrap(rank() - 1), s = step(plan, lane.hop);
    MessageGroup group = hop();
    if (reducing(plan, lane.hop)) {
        const Part out = part(plan, lane, wrap(rank() - s - 1)), in = part(plan, lane, wrap(rank() - s - 2));
        const char* data = lane.outgoing;
        if (s == 0) {  // the slice's first values: sent from where they lie, if they need no conversion
            data = plan.in + out.begin * size_of(plan.dtype);
            if (plan.wire != plan.dtype && out.n > 0) {
                scale_into(stream, lane.outgoing, plan.wire, data, plan.dtype, out.n, 1);
                data = lane.outgoing;
            }
        }
        group.send(data, out.n * size_of(plan.wire), right);
        group.recv(lane.incoming, in.n * size_of(plan.wire), left);
    } else {
        const int64_t bytes = size_of(plan.out_dtype);
        const Part out = part(plan, lane, wrap(rank() - s)), in = part(plan, lane, wrap(rank() - s - 1));
        group.send(plan.gather + out.begin * bytes, out.n * bytes, right);
        group.recv(plan.gather + in.begin * bytes, in.n * bytes, left);
    }
    lane.transfer = transport_.start(stream, group);
}

void Ring::finish_hop(Stream& stream, const Plan& plan, Lane& lane) {
    transport_.finish(stream, lane.transfer);
    lane.transfer = {};
    if (!reducing(plan, lane.hop)) return;
    const int s = step(plan, lane.hop);
    const Part in = part(plan, lane, wrap(rank() - s - 2));
    if (in.n > 0) {
        const bool last = s == plan.half - 1;  // this rank's slice is complete
        const int64_t in_own = in.begin - offset(plan.offsets, rank());
        reduce_add(stream, {.out = last ? plan.own_out + in_own * size_of(plan.out_dtype) : lane.incoming,
                            .a = lane.incoming,
                            .b = plan.in + in.begin * size_of(plan.dtype),
                            .n = in.n,
                            .scale = last ? plan.scale : 1,
                            .out_dtype = last ? plan.out_dtype : plan.wire,
                            .a_dtype = plan.wire,
                            .b_dtype = plan.dtype});
    }
    std::swap(lane.outgoing, lane.incoming);
}

void Ring::run(Stream& stream, Plan plan) {
    const int64_t most = longest(plan.offsets);
    const DType moved = plan.reduce ? plan.wire : plan.out_dtype;
    int64_t chunk = options_.chunk_bytes;
    if (chunk == options_.largest_chunk_bytes)  // nobody asked for another
        chunk = std::min(chunk, std::max(kGoodChunk, ceil_div(most, options_.lanes) * size_of(moved)));
    plan.chunk = std::max(kMinChunk, chunk / size_of(moved));
    plan.chunks = ceil_div(most, plan.chunk);
    plan.half = size() - 1;
    if (const int64_t bytes = lane_bytes(plan); bytes > 0) scratch(stream, 2 * bytes * lanes_of(plan));
    const int64_t bytes = (plan.reduce ? scatter_bytes(plan.offsets, plan.wire) : 0) +
                          (plan.gathers ? gather_bytes(plan.offsets, plan.out_dtype) : 0);
    transport_.make_hops(stream, plan.half, bytes, [&](int hops) {
        if (hops == plan.half) return move(stream, plan);
        // Every link passes every slice on once, so some hops have slices of the mean length, also where more ranks
        // than blocks leave some without.
        const std::vector<int64_t> even = even_offsets(plan.offsets.back(), size(), 1);
        Plan some = plan;
        some.offsets = even;
        some.chunks = ceil_div(count(even, 0), plan.chunk);
        some.half = hops;
        move(stream, some);
    });
}

void Ring::move(Stream& stream, const Plan& plan_) {
    Plan plan = plan_;
    plan.hops = plan.half * (int(plan.reduce) + int(plan.gathers));

    const int lane_count = lanes_of(plan);
    std::vector<Lane> lanes(static_cast<size_t>(lane_count));
    if (const int64_t bytes = lane_bytes(plan); bytes > 0 && lane_count > 0) {
        char* memory = static_cast<char*>(scratch(stream, 2 * bytes * lane_count));
        for (Lane& lane : lanes) {
            lane.outgoing = memory;
            lane.incoming = memory + bytes;
            memory += 2 * bytes;
        }
    }
    for (int64_t i = 0; i < lane_count; ++i) {
        lanes[size_t(i)].chunk = i;
        start_hop(stream, plan, lanes[size_t(i)]);
    }
    for (int64_t running = lane_count; running > 0;)
        for (Lane& lane : lanes) {
            if (lane.chunk >= plan.chunks) continue;
            finish_hop(stream, plan, lane);
            if (++lane.hop == plan.hops) {
                lane.hop = 0;
                lane.chunk += lane_count;
                if (lane.chunk >= plan.chunks) {
                    --running;
                    continue;
                }
            }
            start_hop(stream, plan, lane);
        }
}

void Ring::do_all_reduce(Stream& stream, const AllReduce& a) {
    Plan plan;
    plan.in = static_cast<const char*>(a.in);
    plan.gather = static_cast<char*>(a.out);
    plan.own_out = plan.gather + offset(a.offsets, rank()) * size_of(a.dtype);
    plan.offsets = a.offsets;
    plan.dtype = plan.out_dtype = a.dtype;
    plan.wire = a.wire;
    plan.scale = a.scale;
    plan.reduce = plan.gathers = true;
    run(stream, plan);
}

void Ring::do_reduce_scatter(Stream& stream, const ReduceScatter& a) {
    Plan plan;
    plan.in = static_cast<const char*>(a.in);
    plan.own_out = static_cast<char*>(a.out);
    plan.offsets = a.offsets;
    plan.dtype = a.dtype;
    plan.wire = a.wire;
    plan.out_dtype = a.out_dtype;
    plan.scale = a.scale;
    plan.reduce = true;
    run(stream, plan);
}

void Ring::do_all_gather(Stream& stream, const AllGather& a) {
    Plan plan;
    plan.gather = static_cast<char*>(a.out);
    plan.offsets = a.offsets;
    plan.dtype = plan.wire = plan.out_dtype = a.dtype;
    plan.gathers = true;
    run(stream, plan);
}

}  // namespace

std::unique_ptr<Collectives> make_ring(Transport& transport, const CollectiveOptions& options) {
    return std::make_unique<Ring>(transport, options);
}

}  // namespace rz
