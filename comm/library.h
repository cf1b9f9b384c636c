#pragma once
// The two kinds of libraries with collectives of their own: what is converted and staged where, around calls that the
// derived classes make. So a plan of such a run takes the memory that the run takes (planned_transport.cpp).

#include "comm/collectives.h"

namespace rz {

class Library : public Collectives {
   public:
    using Collectives::Collectives;
    const char* name() const override { return "library"; }

   protected:
    bool uses_transport() const override { return false; }
    // Elements of each slice where all are equal, else 0. Libraries scatter and gather equal parts best.
    int64_t equal_slices(Offsets offsets) const {
        for (int r = 1; r < size(); ++r)
            if (count(offsets, r) != count(offsets, 0)) return 0;
        return count(offsets, 0);
    }
    // Each is enqueued. Values of several ranks begin with the first slice's.
    // sums = of all ranks' `values`; nullptr: of what is in `sums`.
    virtual void sum(Stream& stream, const void* values, char* sums, int64_t n, DType wire) = 0;
    // sums = this rank's slice of the sum; nullptr: all values are in `sums`, and the slice lands at its front.
    virtual void sum_slices(Stream& stream, const char* values, char* sums, Offsets offsets, DType wire) = 0;
    // This rank's slice lies in place; `values` is element 0 of the range.
    virtual void gather_slices(Stream& stream, char* values, Offsets offsets, DType dtype) = 0;
    virtual void spread(Stream& stream, void* values, int64_t bytes, int root) = 0;
};

// MPI: works on the host's memory, so values of a GPU are staged there.
class HostLibrary : public Library {
   public:
    HostLibrary(Transport& transport, const CollectiveOptions& options, bool staged)
        : Library(transport, options), staged_(staged) {}

   protected:
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override;
    void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override;

   private:
    void* host_scratch(Stream& stream, int64_t bytes);
    char* wire_values(Stream& stream, const void* in, DType dtype, DType wire, int64_t n);

    const bool staged_;
    Buffer staging_;
};

// NCCL: works on the memory of its device, and leaves operands as they are.
class DeviceLibrary : public Library {
   public:
    using Library::Library;

   protected:
    void do_all_reduce(Stream& stream, const AllReduce& a) override;
    void do_reduce_scatter(Stream& stream, const ReduceScatter& a) override;
    void do_all_gather(Stream& stream, const AllGather& a) override;
    void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override;
};

}  // namespace rz
