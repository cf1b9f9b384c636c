#pragma once
// Collectives over slices of a flat range, enqueued on a stream. Nothing blocks the calling thread.
//
// Slices. `offsets` has size()+1 ascending element indices; slice r is [offsets[r], offsets[r+1]) and belongs to rank
// r. Slices may differ in length and may be empty; every rank passes the same offsets. Pointers to whole ranges address
// element 0.
//
// Order of summation, and which calls give equal bits:
//   ring     slice c is summed as (((g[c+1] + g[c+2]) + ...) + g[c]), ranks modulo size(): its owner c chooses the
//            order. Every partial sum is made in fp32 and rounded to `wire`; the last one is multiplied by `scale` in
//            fp32 and rounded once to the output's type. So an element's bits depend on its owner, but on no chunk
//            size, lane count or transport.
//   direct   every element is (((g[0] + g[1]) + g[2]) + ...) * scale in fp32 over the values rounded to `wire`, rounded
//            once to the output's type: its bits depend neither on the slices, nor on chunk size, order of ranks in
//            the network or transport; only on the number of ranks and what each contributed.
//   hier     on several nodes every element is the sum of the nodes' sums, in ascending order of the nodes. Each of
//            those is made of its ranks' values, rounded to `wire`, in ascending order, and rounded to `wire`. Both are
//            in fp32, the last times `scale` and rounded once. The bits depend on the number of nodes, on no slice,
//            step or transport. On one node direct's, or the ring's where rings_on_one_node() (thresholds.h);
//            with one rank on each node direct's.
//   symmetric  direct's bits exactly, without messages: ranks load from each other's memory (symmetric.cpp).
//   hier-symmetric  hier's order and its bits of two levels, of any size: symmetric inside each node, direct across.
//   library  whatever the library does; may differ between all_reduce and reduce_scatter, and between runs.
// In all but library, all_reduce(dtype) is reduce_scatter(out_dtype = dtype) followed by all_gather over the same
// slices, to the bit. With two ranks, or bf16 values on few ranks, all orders give the same bits (so a test there
// proves nothing).
//
// One rank: the values converted and scaled, or nothing at all if they are already in place.
//
// A Collectives object is used from one stream at a time; it must outlive the work enqueued through it.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/shared_memory.h"
#include "comm/transport.h"
#include "kernels/runtime/dtype.h"
#include "kernels/runtime/memory.h"

namespace rz {

class CommMeter;

using Offsets = std::span<const int64_t>;

// `ranks` slices of n elements, cut at multiples of `align` (except at n); the first ones are the longer.
std::vector<int64_t> even_offsets(int64_t n, int ranks, int64_t align = 1);

struct AllReduce {
    void* out;       // (offsets.back()) dtype   =   may be `in`; must not overlap it otherwise
    const void* in;  // (offsets.back()) dtype
    Offsets offsets;
    DType dtype;
    DType wire;       // what partial sums travel as
    float scale = 1;  // 1.0f / size() averages
};

struct ReduceScatter {
    void* out;       // (this rank's slice) out_dtype   =   may be in `in` if out_dtype == dtype
    const void* in;  // (offsets.back()) dtype, unchanged but for this rank's slice if out is there
    Offsets offsets;
    DType dtype, wire, out_dtype;
    float scale = 1;
};

struct AllGather {
    void* out;       // (offsets.back()) dtype   =
    const void* in;  // this rank's slice; may be its place in `out`
    Offsets offsets;
    DType dtype;
};

struct CollectiveOptions {
    int64_t chunk_bytes = 0;  // of one hop, in bytes on the wire; 0: what suits the transport and, on a ring, the
                              // slices: a part for each lane, from 1 MiB on
    int64_t largest_chunk_bytes = 0;  // of those that suit; 0: the transport's
    int lanes = 0;                    // chunks under way at once: one is added while others move; 0: likewise
    CommMeter* meter = nullptr;       // optional; must outlive the object
    const char* axis = "";            // that the meter counts under
    int nodes = 1;                    // of hier: the group's rank is local * nodes + node (Grid puts them so)
    int64_t step_bytes = 0;           // of hier, in one step to one rank of the node; 0: thresholds.h's
    // Two levels, on several nodes: this rank's node and its column, which outlive the object. hier has none where
    // both are reached over the group's own transport.
    Transport *row = nullptr, *column = nullptr;
};

class Collectives {
   public:
    Collectives(Transport& transport, const CollectiveOptions& options) : transport_(transport), options_(options) {}
    virtual ~Collectives() = default;

    virtual const char* name() const = 0;
    int rank() const { return transport_.rank(); }
    int size() const { return transport_.size(); }
    Transport& transport() { return transport_; }
    const CollectiveOptions& options() const { return options_; }

    // From now on `compute` (nullptr: no stream) stands still from each call until it is done: nothing is hidden. It
    // is the calling thread's, and outlives the calls.
    void hold(Stream* compute) { held_ = compute; }

    void all_reduce(Stream& stream, const AllReduce& args);
    void reduce_scatter(Stream& stream, const ReduceScatter& args);
    void all_gather(Stream& stream, const AllGather& args);
    // data[0..bytes) of `root` to all, in a pipelined chain.
    void broadcast(Stream& stream, void* data, int64_t bytes, int root);
    // Messages between members, each of which the other side has too, in the same order of every pair: one operation of
    // the whole group. `op` and `bytes` name it in the flight recorder, the same on all ranks.
    void exchange(Stream& stream, const char* op, const std::vector<Message>& messages, int64_t bytes);
    // Work enqueued after it on any rank's stream starts after the work enqueued before it on every rank's.
    // Dissemination (Hensgen, Finkel and Manber 1988): ceil(log2 N) rounds.
    void barrier(Stream& stream);
    // Memory for buffers that calls of this object move, where they gain by it (symmetric; NCCL's own, with which it is
    // registered); else nullptr, and any memory will do. All ranks call it together, with nothing of this group under
    // way. It goes with this object.
    virtual SharedMemory* allocate(int64_t, Alloc) { return nullptr; }
    // True: a reduce-scatter rounds the values of all ranks to `wire` before it adds any. Values that have that type
    // already then give the same bits.
    virtual bool rounds_first() const { return size() > 1; }
    // Whose part of that memory is this rank's.
    virtual int shared_rank() const { return rank(); }
    // For people: what memory GPUs exchange through without messages, and why it is that of the host (symmetric); whose
    // order of sums it is (library).
    virtual std::string through() const { return ""; }

   protected:
    virtual void do_all_reduce(Stream& stream, const AllReduce& args);  // the other two, one after the other
    virtual void do_reduce_scatter(Stream& stream, const ReduceScatter& args) = 0;
    virtual void do_all_gather(Stream& stream, const AllGather& args) = 0;
    virtual void do_broadcast(Stream& stream, void* data, int64_t bytes, int root);
    // True: do_all_gather also brings this rank's slice to its place, where it comes from elsewhere.
    virtual bool brings_own_slice(const AllGather&) const { return false; }
    // True: everything goes through the transport. A library's traffic is unknown: bytes_sent() then counts the
    // ring's bytes.
    virtual bool uses_transport() const { return true; }
    // True: a gather to out[0..bytes) moves something. Nothing moves where all ranks have that memory in common.
    virtual bool gather_moves(const void* /*out*/, int64_t /*bytes*/) const { return true; }

    int64_t offset(Offsets offsets, int r) const { return offsets[size_t(r)]; }
    int64_t count(Offsets offsets, int r) const { return offsets[size_t(r) + 1] - offsets[size_t(r)]; }
    int64_t longest(Offsets offsets) const;  // slice's elements
    // Piece c of slice r, which is cut into pieces of so many elements; empty beyond its end.
    struct Part {
        int64_t begin, n;
    };
    Part part(Offsets offsets, int64_t piece, int64_t c, int r) const {
        const int64_t end = offset(offsets, r + 1), begin = std::min(offset(offsets, r) + c * piece, end);
        return {begin, std::min(piece, end - begin)};
    }
    // First half of an all-reduce: the sum of this rank's slice, where it lies in `out`. The second is an all-gather.
    ReduceScatter first_half(const AllReduce& a) const;
    int wrap(int r) const { return ((r % size()) + size()) % size(); }
    // Scratch of at least `bytes`; grows after draining `stream`.
    void* scratch(Stream& stream, int64_t bytes);
    // A group that the flight recorder knows as the next hop of the running operation.
    MessageGroup hop() const;
    // The running operation, carried out by another algorithm on the same transport.
    template <class Args>
    void hand_to(Collectives& other, Stream& stream, const Args& a) {
        other.seq_ = seq_;
        if constexpr (std::is_same_v<Args, AllReduce>) other.do_all_reduce(stream, a);
        if constexpr (std::is_same_v<Args, ReduceScatter>) other.do_reduce_scatter(stream, a);
        if constexpr (std::is_same_v<Args, AllGather>) other.do_all_gather(stream, a);
    }
    // Bytes that one half of the ring sends from this rank: all slices but its own, or but the right neighbour's.
    int64_t scatter_bytes(Offsets offsets, DType wire) const;
    int64_t gather_bytes(Offsets offsets, DType dtype) const;

    Transport& transport_;
    CollectiveOptions options_;
    Stream* held_ = nullptr;

   private:
    template <class Body>
    void measured(Stream& stream, const char* op, int64_t bytes, Body&& body);
    // Marks the running operation complete, in stream order.
    void mark_done(Stream& stream);

    Buffer scratch_;
    Buffer barrier_bytes_;
    uint64_t seq_ = 0;
};

// library: NCCL's or MPI's own. hier: two levels, inside the nodes and across them. symmetric: ranks of one host load
// from each other's memory. hier-symmetric: so inside the nodes, and by messages across them.
enum class Algorithm { ring, direct, library, hier, symmetric, hier_symmetric };
template <>
inline constexpr auto kNames<Algorithm> = std::to_array<Named<Algorithm>>({{Algorithm::ring, "ring"},
                                                                           {Algorithm::direct, "direct"},
                                                                           {Algorithm::library, "library"},
                                                                           {Algorithm::hier, "hier"},
                                                                           {Algorithm::symmetric, "symmetric"},
                                                                           {Algorithm::hier_symmetric,
                                                                            "hier-symmetric"}});

// True: its ranks stand in columns over the nodes, which Grid arranges.
constexpr bool is_two_level(Algorithm a) { return a == Algorithm::hier || a == Algorithm::hier_symmetric; }

// By axis of the mesh, as --collectives has it: "hier", "tp=ring", "tp=direct,data=hier". An algorithm alone is data's.
struct AxisAlgorithms {
    std::optional<Algorithm> data = {};  // of data, shard and replicate; none: data_on
    Algorithm tp = Algorithm::direct;
    bool operator==(const AxisAlgorithms&) const = default;
    // Default, none asked for: hier between GPUs, which on one node chooses by bytes, and between ranks of several
    // nodes; else the ring, and where nodes hold unequally many (0).
    Algorithm data_on(int nodes, bool gpus) const {
        return data.value_or(nodes > 1 || (gpus && nodes == 1) ? Algorithm::hier : Algorithm::ring);
    }
};
std::string text_of(const AxisAlgorithms&);
// Says what is wrong with such a text, and the nearest that is right; "": nothing.
std::string wrong_axis_algorithms(const std::string& text);
AxisAlgorithms parse_axis_algorithms(const std::string& text);

// The transport must outlive the result.
std::unique_ptr<Collectives> make_collectives(Algorithm algorithm, Transport& transport,
                                              const CollectiveOptions& options = {});

// Our algorithms (make_collectives picks).
std::unique_ptr<Collectives> make_ring(Transport& transport, const CollectiveOptions& options);
std::unique_ptr<Collectives> make_direct(Transport& transport, const CollectiveOptions& options);
std::unique_ptr<Collectives> make_symmetric(Transport& transport, const CollectiveOptions& options);
std::unique_ptr<Collectives> make_hier(Transport& transport, const CollectiveOptions& options);
std::unique_ptr<Collectives> make_hier_symmetric(Transport& transport, const CollectiveOptions& options);

// out = x * scale, converted; nothing if that changes nothing.
void scale_into(Stream& stream, void* out, DType out_dtype, const void* x, DType dtype, int64_t n, float scale);

}  // namespace rz
