#include "zero/parameter_cache.h"

#include <utility>

namespace rz {

ParameterCache::ParameterCache(const Ownership& ownership, const ZeroOptions& options, ZeroStreams streams)
    : ownership_(ownership),
      options_(options),
      streams_(streams),
      element_(size_of(options.param_dtype)),
      state_(ownership.units().size()) {
    require(options_.prefetch >= 0, "prefetch %d: it can't be negative", options_.prefetch);
    params_ = streams_.take(options_.whole_parameters() ? ownership_.elements() : ownership_.owned_elements(),
                            options_.param_dtype, MemKind::parameters, "parameters");
    if (!options_.whole_parameters())
        gathered_ = UnitPool(streams_.device, ownership_.units(), gathered_at_once(), options_.param_dtype,
                             MemKind::gathered, "gathered parameters");
}

int ParameterCache::gathered_at_once() const {
    return options_.whole_parameters() ? 0 : 1 + (options_.overlap ? options_.prefetch : 0);
}

void* ParameterCache::owned(int unit) const {
    const OwnedSlice& s = ownership_.owned(unit);
    return params_.bytes_at((options_.whole_parameters() ? s.local : s.packed) * element_);
}

void ParameterCache::gather(int unit) {
    if (options_.whole_parameters()) return;
    UnitState& s = state_[size_t(unit)];
    Stream& comm = streams_.comm();
    void* whole = gathered_.acquire(unit, comm);
    comm.wait(s.own_ready);
    streams_.mesh.shard().all_gather(
        comm, {.out = whole, .in = owned(unit), .offsets = ownership_.slices(unit), .dtype = options_.param_dtype});
    s.ready = comm.record();
}

const void* ParameterCache::parameters(int unit) {
    streams_.compute_waits(std::exchange(state_[size_t(unit)].ready, Event()));
    const UnitLayout& u = ownership_.unit(unit);
    if (options_.whole_parameters()) return params_.bytes_at(u.offset * element_);
    require(gathered_.holds(unit), "unit %s is read without being gathered", u.name.c_str());
    return gathered_.data(unit);
}

void ParameterCache::release(int unit) {
    if (!options_.whole_parameters()) gathered_.give_back(unit, streams_.compute.record());
}

void ParameterCache::publish(int unit) {
    const Sharing& sharing = ownership_.sharing();
    if (!sharing.sliced || (options_.whole_parameters() && sharing.cut.size == 1)) return;
    UnitState& s = state_[size_t(unit)];
    s.own_ready = streams_.compute.record();
    if (!options_.whole_parameters()) return;  // gather() waits
    Stream& comm = streams_.comm();
    comm.wait(std::exchange(s.own_ready, Event()));
    streams_.mesh.shard().all_gather(comm, {.out = params_.bytes_at(ownership_.unit(unit).offset * element_),
                                            .in = owned(unit),
                                            .offsets = ownership_.slices(unit),
                                            .dtype = options_.param_dtype});
    s.ready = comm.record();
    if (!options_.overlap) streams_.compute_waits(std::exchange(s.ready, Event()));
}

}  // namespace rz
