#pragma once
// Tensor parallelism with sequence parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): the ranks of the tp axis
// hold parts of the same tensors, and of the residual stream each holds some of the rows. What a step needs of the
// axis:
//
//   gather    before a column-parallel product: every rank has all rows
//   scatter   after a row-parallel product: the ranks' partial sums, added, each rank's rows to it
//   share     numbers of all ranks, part by part; or the largest of their magnitudes
//   sum       gradients of what several ranks hold: norm weights, and key/value heads where there are fewer than ranks
//
// Partial sums travel in `wire` and are added in ascending rank order in fp32, then rounded once, whatever
// --collectives says (comm/collectives.h, `direct`): what the ranks hold in common stays the same to the bit.
//
// With `overlap` a product is computed by the rows of each rank: those that are here first, each rank's as they arrive;
// or, before a scatter, those of the others first, each of which sets off as soon as it is made. The sums are the same:
// bits depend on whether a product of some rows has the bits of those rows in the product of all, which our own GEMM
// promises and a library does not. The rows that a weight's gradient reads are gathered while the input's is computed,
// and that is scattered while the weights' are.
//
// Everything enqueues and returns: the collectives are on the axis's stream, ordered with compute by events. Where
// compute is recorded as graphs they stand between them (graph.h), but not with `overlap`.

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/mesh.h"
#include "comm/meter.h"
#include "kernels/fp8/quantise.h"
#include "kernels/runtime/graph.h"
#include "kernels/runtime/memory.h"

namespace rz {

// Elements of a unit that some neighbours on the tp axis, this rank among them, all hold.
struct Replicated {
    int64_t begin, count;   // within the unit
    int first_rank, ranks;  // of the axis
    bool operator==(const Replicated&) const = default;
};

class TensorParallel {
   public:
    // The mesh and the meter (nullptr: none) outlive this. `wire`: of partial sums.
    TensorParallel(Mesh& mesh, DType wire, CommMeter* meter = nullptr, bool overlap = false)
        : mesh_(mesh), wire_(wire), meter_(meter), overlap_(overlap) {}

    int rank() const { return mesh_.tp().rank(); }
    int size() const { return mesh_.tp().size(); }
    bool overlaps() const { return overlap_; }
    DType wire() const { return wire_; }

    // Whose piece is enqueued from now on: the collectives stand between its graphs. nullptr: none is.
    void set_graphs(GraphSet* graphs) { graphs_ = graphs; }

    // Bytes that this rank sends in each of them.
    int64_t gather_bytes(int64_t N, int64_t C, DType dtype) const {
        return rows(N) * C * size_of(dtype) * (size() - 1);
    }
    int64_t scatter_bytes(int64_t N, int64_t C) const { return (N - rows(N)) * C * size_of(wire_); }
    int64_t share_bytes(int64_t n) const { return 4 * n * (size() - 1); }
    int64_t magnitude_bytes() const { return int64_t(sizeof(Fp8Scale)) * (size() - 1); }
    int64_t sum_bytes(const Replicated& r, DType dtype) const;

    // This rank's rows of N rows of the residual stream: neighbouring ones, the first ranks one more where N does not
    // divide.
    int64_t rows(int64_t N) const;
    int64_t most_rows(int64_t N) const { return ceil_div(N, int64_t(size())); }

    // Enqueues on compute what reads, or makes, rows [first, first + rows).
    using Product = std::function<void(int64_t first, int64_t rows)>;

    // all (N, C) dtype = the rows of all ranks, `own` (rows(N), C) those of this one; then `product` of all rows, at
    // once or part by part
    void gather(Stream& compute, void* all, const void* own, int64_t N, int64_t C, DType dtype,
                const Product& product = nullptr) const;
    // Only begins: `all` is there for who waits for the event.
    Event start_gather(Stream& compute, void* all, const void* own, int64_t N, int64_t C, DType dtype) const;
    // `product` makes `partial` (N, C) wire, at once or part by part; then own (rows(N), C) dtype = its sum over ranks.
    // With `done`, compute does not wait for it: `own` is there, and `partial` free again, for who waits for the event.
    void scatter(Stream& compute, void* own, const void* partial, int64_t N, int64_t C, DType dtype,
                 const Product& product = nullptr, Event* done = nullptr);
    void wait(Stream& compute, const Event& event) const { compute_waits(compute, event); }
    // scale's magnitude is the largest of the ranks', so that each quantises its rows as a rank that has all of them
    // would. parts: (size), anything.
    void share_magnitude(Stream& compute, Fp8Scale* scale, Fp8Scale* parts, Fp8 type) const;
    // all (size, n) = each rank's `own` (n)
    void share(Stream& compute, float* all, const float* own, int64_t n) const;
    // unit[r.begin, + r.count) = its sum over the ranks that hold it. Compute does not wait for it: what is enqueued
    // on the mesh's stream next does.
    void sum(Stream& compute, void* unit, const Replicated& r, DType dtype);

   private:
    std::vector<int64_t> row_offsets(int64_t N, int64_t C) const;  // in elements
    template <class Body>
    void ordered(Stream& compute, const Body& body) const;
    void exchange_sum(Stream& comm, void* data, const Replicated& r, DType dtype);
    void gather_parts(Stream& compute, char* all, const char* own, const std::vector<int64_t>& offsets, int64_t C,
                      DType dtype, const Product& product) const;
    void scatter_parts(Stream& compute, void* own, const char* partial, const std::vector<int64_t>& offsets, int64_t C,
                       DType dtype, const Product& product, Event* done);
    // The messages of one step of an operation that the flight recorder knows as `seq`.
    MessageGroup step_of(uint64_t seq, bool is_last) const;
    uint64_t record(const char* what, int64_t bytes) const;
    void compute_waits(Stream& compute, const Event& event, const Event& before = {}) const;
    void meter(const char* op, int64_t sent_before, const Event& began, Stream& comm) const;
    int peer(int distance) const { return (rank() + distance + size()) % size(); }
    void* arrived(Stream& comm, int64_t bytes);

    Mesh& mesh_;
    GraphSet* graphs_ = nullptr;
    DType wire_;
    CommMeter* meter_;
    bool overlap_;
    Buffer arrived_;  // values of the ranks that are added
};

}  // namespace rz
