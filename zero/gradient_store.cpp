#include "zero/gradient_store.h"

#include <algorithm>
#include <map>

#include "kernels/elementwise.h"
#include "kernels/runtime/request.h"

namespace rz {

// The smallest of the units that there are several of: the blocks.
static int64_t common_block(const std::vector<UnitLayout>& units) {
    std::map<int64_t, int> of_size;
    for (const UnitLayout& u : units) ++of_size[u.padded];
    for (const auto& [size, count] : of_size)
        if (count > 1) return size;
    return of_size.begin()->first;
}

GradientStore::GradientStore(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams)
    : ownership_(ownership),
      options_(options),
      streams_(streams),
      element_(size_of(options.grad_dtype)),
      begun_(ownership.units().size(), 0) {
    const int64_t block = common_block(ownership_.units());
    const DType dtype = options_.grad_dtype;
    require(!options_.offload_grads || !options_.whole_gradients(),
            "gradients on the host are added unit by unit, as stages 2 and 3 reduce them each micro-batch; these are "
            "whole");
    Collectives& group = options_.slices_state() ? streams_.mesh.shard() : streams_.mesh.data();
    const int64_t bucket = std::min(options_.bucket_bytes / element_, ownership_.elements());  // elements
    require_request(bucket == 0 || !options_.offload_grads,
                    "buckets of gradients: those on the host are reduced unit by unit\n  nearest: no buckets");
    int64_t together = 1;  // blocks in a bucket
    if (bucket >= 2 * block && streams_.mesh.data().size() > 1) {
        packed_ = CommBuffer(streams_, group, bucket, dtype, MemKind::gathered, "bucket of gradients", Alloc::per_rank);
        full_bytes_ = (bucket - block) * element_;
        together = bucket / block;
    }
    if (options_.whole_gradients()) {
        whole_ =
            CommBuffer(streams_, group, ownership_.elements(), dtype, MemKind::gradients, "gradients", Alloc::per_rank);
        return;
    }
    own_ = options_.offload_grads
               ? streams_.take_pinned(ownership_.owned_elements(), dtype, MemKind::gradients, "own gradients")
               : streams_.take(ownership_.owned_elements(), dtype, MemKind::gradients, "own gradients");
    const bool narrow = options_.wire_dtype == DType::bf16 && options_.param_dtype == DType::bf16;
    const bool some = std::count(options_.added_once.begin(), options_.added_once.end(), 1) > 0;
    const bool bucket_waits = packed_.bytes() > 0;
    if (narrow && some && !bucket_waits && group.rounds_first()) once_ = options_.wire_dtype;
    std::vector<int64_t> bytes;
    for (size_t u = 0; u < ownership_.units().size(); ++u)
        bytes.push_back(checked_mul(ownership_.units()[u].padded, size_of(this->dtype(int(u))), "unreduced gradients"));
    // Units of a bucket wait in their slots, embedding and head too.
    unreduced_ = UnitPool(streams_.device, bytes, int(together) + (options_.overlap ? 1 : 0),
                          options_.in_turn && !bucket_waits, MemKind::gathered, "unreduced gradients");
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
    const bool waits = std::find(waiting_.begin(), waiting_.end(), unit) != waiting_.end();
    if (waits || (!unreduced_.holds(unit) && !unreduced_.has_room_for(unit))) reduce_bucket();
    if (unreduced_.holds(unit)) return unreduced_.data(unit);
    void* whole = unreduced_.acquire(unit, streams_.compute);
    streams_.compute.zero(whole, u.padded * size_of(dtype(unit)));
    return whole;
}

void* GradientStore::owned(int unit) const {
    const OwnedSlice& s = ownership_.owned(unit);
    return options_.whole_gradients() ? whole_.bytes_at(s.local_offset * element_)
                                      : own_.bytes_at(s.shard_offset * element_);
}

void GradientStore::reduce(int unit, bool last) {
    if (options_.whole_gradients() && (!last || streams_.mesh.data().size() == 1)) {
        if (last && final_) final_(unit, streams_.compute.record());
        return;
    }
    const int64_t bytes = ownership_.unit(unit).padded * element_;
    if (waiting_bytes_ + bytes > packed_.bytes() || (!waiting_.empty() && last != waiting_last_)) reduce_bucket();
    waiting_.push_back(unit);
    waiting_bytes_ += bytes;
    waiting_last_ = last;
    complete_ = streams_.compute.record();
    if (waiting_bytes_ > full_bytes_) reduce_bucket();
}

// ---- what waits -----------------------------------------------------------------------------------------------------

void GradientStore::reduce_bucket() {
    if (waiting_.empty()) return;
    const std::vector<int> units = std::exchange(waiting_, {});
    waiting_bytes_ = 0;
    Stream& comm = streams_.comm();
    comm.wait(complete_);
    if (units.size() > 1)
        reduce_together(units, waiting_last_);
    else if (options_.slices_state())
        reduce_slices(units[0], gradients(units[0]), waiting_last_);
    else
        all_reduce(gradients(units[0]), ownership_.slices(units[0]));
    const Event reduced = comm.record();
    if (!options_.whole_gradients())
        for (const int unit : units) unreduced_.give_back(unit, reduced);
    if (!options_.overlap) streams_.compute.wait(gone_);
    if (waiting_last_ && final_)
        for (const int unit : units) final_(unit, to_host_ ? gone_ : reduced);
}

void GradientStore::all_reduce(void* whole, Offsets offsets) {
    streams_.mesh.data().all_reduce(
        streams_.comm(),
        {.out = whole, .in = whole, .offsets = offsets, .dtype = options_.grad_dtype, .wire = options_.wire_dtype});
}

void GradientStore::reduce_scatter(void* out, const void* whole, Offsets offsets, DType dtype) {
    streams_.mesh.shard().reduce_scatter(streams_.comm(), {.out = out,
                                                           .in = whole,
                                                           .offsets = offsets,
                                                           .dtype = dtype,
                                                           .wire = options_.wire_dtype,
                                                           .out_dtype = options_.grad_dtype});
}

// Slice r of the bucket: slice r of each unit, one after the other.
void GradientStore::reduce_together(const std::vector<int>& units, bool last) {
    Stream& comm = streams_.comm();
    const size_t ranks = size_t(ownership_.shard_groups().shard.size);
    std::vector<int64_t> offsets = {0};
    const auto copy_slices = [&](size_t r, int64_t at, bool back) {  // returns where the slice ends
        for (const int unit : units) {
            const std::vector<int64_t>& slices = ownership_.slices(unit);
            const int64_t n = slices[r + 1] - slices[r];
            char* const there = static_cast<char*>(gradients(unit)) + slices[r] * element_;
            char* const here = packed_.bytes_at(at * element_);
            if (n > 0) comm.copy(back ? there : here, back ? here : there, n * element_);
            at += n;
        }
        return at;
    };
    for (size_t r = 0; r < ranks; ++r) offsets.push_back(copy_slices(r, offsets[r], false));
    if (!options_.slices_state()) {
        all_reduce(packed_.data(), offsets);
        for (size_t r = 0; r < ranks; ++r) copy_slices(r, offsets[r], true);
        return;
    }
    char* own = packed_.bytes_at(offsets[size_t(streams_.mesh.shard().rank())] * element_);
    reduce_scatter(own, packed_.data(), offsets, options_.grad_dtype);
    for (const int unit : units) {
        const int64_t n = ownership_.owned(unit).elements.size();
        const bool adds = !options_.whole_gradients() && begun_[size_t(unit)];
        void* const slice = owned(unit);
        if (adds)
            add(slice, slice, own, n);
        else if (n > 0)
            comm.copy(slice, own, n * element_);
        own += n * element_;
        begun_[size_t(unit)] = 1;
        if (last) all_reduce_copies(unit, slice);
    }
}

void GradientStore::add(void* sum, const void* earlier, const void* arrived, int64_t n) {
    const DType dtype = options_.grad_dtype;
    reduce_add(
        streams_.comm(),
        {.out = sum, .a = earlier, .b = arrived, .n = n, .out_dtype = dtype, .a_dtype = dtype, .b_dtype = dtype});
}

// Over the ranks that own the very same.
void GradientStore::all_reduce_copies(int unit, void* slice) {
    if (streams_.mesh.replicate().size() == 1) return;
    streams_.mesh.replicate().all_reduce(streams_.comm(), {.out = slice,
                                                           .in = slice,
                                                           .offsets = ownership_.parts(unit),
                                                           .dtype = options_.grad_dtype,
                                                           .wire = options_.wire_dtype});
}

void GradientStore::reduce_slices(int unit, void* whole, bool last) {
    Stream& comm = streams_.comm();
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
    reduce_scatter(adds ? arrived_.data() : sum, whole, ownership_.slices(unit), dtype(unit));
    if (adds) {
        if (on_host) comm.wait(from_host_->record());
        add(sum, earlier, arrived_.data(), n);
    }
    begun_[size_t(unit)] = 1;
    if (last) all_reduce_copies(unit, sum);
    if (!on_host) return;
    to_host_->wait(comm.record());
    to_host_->copy(slice, sum, n * element_);
    gone_ = to_host_->record();
}

void GradientStore::wait() {
    reduce_bucket();
    if (streams_.mesh.world().size > 1 || !options_.whole_gradients()) streams_.compute_waits(streams_.comm().record());
    streams_.compute.wait(gone_);
}

void GradientStore::begin_step() {
    if (options_.whole_gradients()) streams_.compute.zero(whole_.data(), whole_.bytes());
    std::fill(begun_.begin(), begun_.end(), uint8_t(0));
}

}  // namespace rz
