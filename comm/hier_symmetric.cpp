// Two levels, of which the inner one sends nothing: the ranks of a node (a row) load from each other's memory, those of
// a column exchange messages, every rank over its own card. The map from ranks to slices is hier's: column l owns the
// run of memory that the slices of its ranks make up.
//
//   reduce-scatter   the row's sums of this column's run, rounded to the wire; their exchange and sum along the column
//   all-gather       the mirror: along the column into its run of the memory, then the runs of the others of the row
//
// The levels follow each other: what hier gains by steps that overlap is the time of the node's links, and here the row
// has none.

#include "comm/collectives.h"
#include "kernels/elementwise.h"

namespace rz {

namespace {

class HierSymmetric : public Collectives {
   public:
    HierSymmetric(Transport& transport, const CollectiveOptions& options)
        : Collectives(transport, options), nodes_(options.nodes) {
        require(options.row && options.column && options.row->size() * options.column->size() == size() &&
                    options.column->size() == nodes_,
                "hier-symmetric: %d ranks on %d nodes: every node holds equally many", size(), nodes_);
        CollectiveOptions inner = options;
        inner.meter = nullptr;
        inner.nodes = 1;
        row_ = make_symmetric(*options.row, inner);
        column_ = make_direct(*options.column, inner);
    }
    const char* name() const override { return "hier-symmetric"; }
    // The row's memory: a buffer is then summed and gathered where it lies. Ranks of all nodes have none in common.
    SharedMemory* allocate(int64_t bytes, Alloc) override { return row_->allocate(bytes, Alloc::per_rank); }
    int shared_rank() const override { return row_->rank(); }
    std::string through() const override { return row_->through(); }

   protected:
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override {
        counted([&] { scatter(stream, a); });
    }
    void do_all_gather(Stream& stream, const AllGather& a) override {
        counted([&] { gather(stream, a.out, a.offsets, a.dtype); });
    }

   private:
    int column() const { return rank() / nodes_; }
    // Begin of each column's run.
    std::vector<int64_t> runs(Offsets offsets) const {
        std::vector<int64_t> at;
        for (int first = 0; first <= size(); first += nodes_) at.push_back(offset(offsets, first));
        return at;
    }
    // The slices within this column's run.
    std::vector<int64_t> within(Offsets offsets) const {
        const int first = column() * nodes_;
        std::vector<int64_t> at;
        for (int m = 0; m <= nodes_; ++m) at.push_back(offset(offsets, first + m) - offset(offsets, first));
        return at;
    }
    void scatter(Stream& stream, const ReduceScatter& a) {
        const std::vector<int64_t> run_offsets = runs(a.offsets), slice_offsets = within(a.offsets);
        void* sums = scratch(stream, slice_offsets.back() * size_of(a.wire));
        row_->reduce_scatter(
            stream,
            {.out = sums, .in = a.in, .offsets = run_offsets, .dtype = a.dtype, .wire = a.wire, .out_dtype = a.wire});
        column_->reduce_scatter(stream, {.out = a.out,
                                         .in = sums,
                                         .offsets = slice_offsets,
                                         .dtype = a.wire,
                                         .wire = a.wire,
                                         .out_dtype = a.out_dtype,
                                         .scale = a.scale});
    }
    // This rank's slice lies in place.
    void gather(Stream& stream, void* out, Offsets offsets, DType dtype) {
        const std::vector<int64_t> run_offsets = runs(offsets), slice_offsets = within(offsets);
        char* run = static_cast<char*>(out) + run_offsets[size_t(column())] * size_of(dtype);
        char* own = static_cast<char*>(out) + offset(offsets, rank()) * size_of(dtype);
        column_->all_gather(stream, {.out = run, .in = own, .offsets = slice_offsets, .dtype = dtype});
        row_->all_gather(stream, {.out = out, .in = run, .offsets = run_offsets, .dtype = dtype});
    }
    // The two levels' traffic is this group's.
    template <class Body>
    void counted(const Body& body) {
        const auto sent = [&] { return options_.row->bytes_sent() + options_.column->bytes_sent(); };
        const int64_t before = sent();
        body();
        transport_.count_sent(sent() - before);
    }

    int nodes_;
    std::unique_ptr<Collectives> row_, column_;
};

}  // namespace

std::unique_ptr<Collectives> make_hier_symmetric(Transport& transport, const CollectiveOptions& options) {
    return std::make_unique<HierSymmetric>(transport, options);
}

}  // namespace rz
