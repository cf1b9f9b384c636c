#include "zero/gradient_store.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace rz {

GradientStore::GradientStore(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams)
    : ownership_(ownership),
      options_(options),
      streams_(streams),
      element_(size_of(options.grad_dtype)),
      begun_(ownership.units().size(), 0) {
    const DType dtype = options_.grad_dtype;
    if (options_.whole_gradients()) {
        whole_ = streams_.take(ownership_.elements(), dtype, MemKind::gradients, "gradients");
        return;
    }
    own_ = streams_.take(ownership_.owned_elements(), dtype, MemKind::gradients, "own gradients");
    unreduced_ = UnitPool(streams_.device, ownership_.units(), options_.overlap ? 2 : 1, dtype, MemKind::gathered,
                          "unreduced gradients");
    arrived_ = streams_.take(ownership_.largest_owned(), dtype, MemKind::gathered, "reduced slice");
}

void* GradientStore::gradients(int unit) {
    const UnitLayout& u = ownership_.unit(unit);
    if (options_.whole_gradients()) return whole_.bytes_at(u.offset * element_);
    if (unreduced_.holds(unit)) return unreduced_.data(unit);
    void* whole = unreduced_.acquire(unit, streams_.compute);
    streams_.compute.zero(whole, u.padded * element_);
    return whole;
}

void* GradientStore::owned(int unit) const {
    const OwnedSlice& s = ownership_.owned(unit);
    return options_.whole_gradients() ? whole_.bytes_at(s.local * element_) : own_.bytes_at(s.packed * element_);
}

void GradientStore::reduce(int unit, bool last) {
    if (options_.whole_gradients() && (!last || streams_.mesh.data().size() == 1)) return;
    Stream& comm = streams_.comm();
    comm.wait(streams_.compute.record());
    void* whole = gradients(unit);
    if (!options_.slices_state())
        streams_.mesh.data().all_reduce(comm, {.out = whole,
                                               .in = whole,
                                               .offsets = ownership_.slices(unit),
                                               .dtype = options_.grad_dtype,
                                               .wire = options_.wire_dtype});
    else
        reduce_slices(unit, whole, last);
    const Event reduced = comm.record();
    if (!options_.whole_gradients()) unreduced_.give_back(unit, reduced);
    if (!options_.overlap) streams_.compute_waits(reduced);
}

void GradientStore::reduce_slices(int unit, void* whole, bool last) {
    Stream& comm = streams_.comm();
    const DType dtype = options_.grad_dtype;
    void* slice = owned(unit);
    const bool adds = !options_.whole_gradients() && begun_[size_t(unit)];
    streams_.mesh.shard().reduce_scatter(comm, {.out = adds ? arrived_.data() : slice,
                                                .in = whole,
                                                .offsets = ownership_.slices(unit),
                                                .dtype = dtype,
                                                .wire = options_.wire_dtype,
                                                .out_dtype = dtype});
    if (adds)
        reduce_add(comm, {.out = slice,
                          .a = slice,
                          .b = arrived_.data(),
                          .n = ownership_.owned(unit).elements.size(),
                          .out_dtype = dtype,
                          .a_dtype = dtype,
                          .b_dtype = dtype});
    begun_[size_t(unit)] = 1;
    if (last && streams_.mesh.replicate().size() > 1)
        streams_.mesh.replicate().all_reduce(comm, {.out = slice,
                                                    .in = slice,
                                                    .offsets = ownership_.parts(unit),
                                                    .dtype = dtype,
                                                    .wire = options_.wire_dtype});
}

void GradientStore::wait() {
    if (streams_.mesh.world().size > 1 || !options_.whole_gradients()) streams_.compute_waits(streams_.comm().record());
}

void GradientStore::begin_step() {
    if (options_.whole_gradients()) streams_.compute.zero(whole_.data(), whole_.bytes());
    std::fill(begun_.begin(), begun_.end(), uint8_t(0));
}

}  // namespace rz
