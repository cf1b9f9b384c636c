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
    require(!options_.offload_grads || !options_.whole_gradients(),
            "gradients on the host are added unit by unit, as stages 2 and 3 reduce them each micro-batch; these are "
            "whole");
    if (options_.whole_gradients()) {
        Mesh& mesh = streams_.mesh;
        whole_ = MovedBuffer(streams_, options_.slices_state() ? mesh.shard() : mesh.data(), ownership_.elements(),
                             dtype, MemKind::gradients, "gradients", Shares::each);
        return;
    }
    own_ = options_.offload_grads
               ? streams_.take_pinned(ownership_.owned_elements(), dtype, MemKind::gradients, "own gradients")
               : streams_.take(ownership_.owned_elements(), dtype, MemKind::gradients, "own gradients");
    unreduced_ = UnitPool(streams_.device, ownership_.units(), options_.overlap ? 2 : 1, dtype, MemKind::gathered,
                          "unreduced gradients");
    arrived_ = streams_.take(ownership_.largest_owned(), dtype, MemKind::gathered, "reduced slice");
    if (options_.offload_grads) {
        from_host_.emplace(streams_.device, kFromHostStream);
        to_host_.emplace(streams_.device, kToHostStream);
        earlier_ = streams_.take(ownership_.largest_owned(), dtype, MemKind::gathered, "slice of earlier gradients");
    }
}

GradientStore::~GradientStore() {
    for (std::optional<Stream>* s : {&from_host_, &to_host_})
        if (*s) drain(**s);
    streams_.drain();
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
    if (options_.whole_gradients() && (!last || streams_.mesh.data().size() == 1)) {
        if (last && final_) final_(unit, streams_.compute.record());
        return;
    }
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
    if (!options_.overlap) streams_.compute.wait(gone_);
    if (last && final_) final_(unit, to_host_ ? gone_ : reduced);
}

void GradientStore::reduce_slices(int unit, void* whole, bool last) {
    Stream& comm = streams_.comm();
    const DType dtype = options_.grad_dtype;
    const int64_t n = ownership_.owned(unit).elements.size();
    const bool adds = !options_.whole_gradients() && begun_[size_t(unit)], on_host = options_.offload_grads;
    void* const slice = owned(unit);
    void* const earlier = on_host ? earlier_.data() : slice;
    void* const sum = !on_host ? slice : adds ? earlier : arrived_.data();
    comm.wait(gone_);  // it was sent from arrived_ or earlier_
    if (on_host && adds) {
        from_host_->wait(gone_);
        from_host_->copy(earlier, slice, n * element_);
    }
    streams_.mesh.shard().reduce_scatter(comm, {.out = adds ? arrived_.data() : sum,
                                                .in = whole,
                                                .offsets = ownership_.slices(unit),
                                                .dtype = dtype,
                                                .wire = options_.wire_dtype,
                                                .out_dtype = dtype});
    if (adds) {
        if (on_host) comm.wait(from_host_->record());
        reduce_add(comm, {.out = sum,
                          .a = earlier,
                          .b = arrived_.data(),
                          .n = n,
                          .out_dtype = dtype,
                          .a_dtype = dtype,
                          .b_dtype = dtype});
    }
    begun_[size_t(unit)] = 1;
    if (last && streams_.mesh.replicate().size() > 1)
        streams_.mesh.replicate().all_reduce(
            comm,
            {.out = sum, .in = sum, .offsets = ownership_.parts(unit), .dtype = dtype, .wire = options_.wire_dtype});
    if (!on_host) return;
    to_host_->wait(comm.record());
    to_host_->copy(slice, sum, n * element_);
    gone_ = to_host_->record();
}

void GradientStore::wait() {
    if (streams_.mesh.world().size > 1 || !options_.whole_gradients()) streams_.compute_waits(streams_.comm().record());
    streams_.compute.wait(gone_);
}

void GradientStore::begin_step() {
    if (options_.whole_gradients()) streams_.compute.zero(whole_.data(), whole_.bytes());
    std::fill(begun_.begin(), begun_.end(), uint8_t(0));
}

}  // namespace rz
