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
    require(!options_.offload_params || !options_.whole_parameters(),
            "parameters on the host come to the device unit by unit, as stage 3 gathers them; this is stage %d",
            options_.stage);
    if (options_.offload_params) from_host_.emplace(streams_.device, kFromHostStream);
    const DType dtype = options_.param_dtype;
    const ShardGroups& shard_groups = ownership_.shard_groups();
    if (options_.whole_parameters() && shard_groups.sharded && shard_groups.shard.size > 1)
        params_ = CommBuffer(streams_, streams_.mesh.shard(), ownership_.elements(), dtype, MemKind::parameters,
                             "parameters", Alloc::shared);
    else if (options_.offload_params)
        params_ =
            CommBuffer(streams_.take_pinned(ownership_.owned_elements(), dtype, MemKind::parameters, "parameters"));
    else
        params_ =
            CommBuffer(streams_.take(options_.whole_parameters() ? ownership_.elements() : ownership_.owned_elements(),
                                     dtype, MemKind::parameters, "parameters"));
    if (!options_.whole_parameters())
        gathered_ = UnitPool(streams_.device, wide_bytes(), gathered_at_once(), options_.in_turn, MemKind::gathered,
                             "gathered parameters");
    if (!options_.whole_parameters() && !options_.fp8_matrices.empty())
        fp8_.emplace(ownership_, options_.fp8_matrices, options_.param_dtype, gathered_at_once(), streams_);
}

// Bytes of each unit gathered in its own type; 0: in fp8.
std::vector<int64_t> ParameterCache::wide_bytes() const {
    std::vector<int64_t> bytes;
    for (size_t u = 0; u < ownership_.units().size(); ++u) {
        const bool in_fp8 = !options_.fp8_matrices.empty() && !options_.fp8_matrices[u].empty();
        bytes.push_back(in_fp8 ? 0 : checked_mul(ownership_.units()[u].padded, element_, "gathered parameters"));
    }
    return bytes;
}

int ParameterCache::gathered_at_once() const {
    return options_.whole_parameters() ? 0 : 1 + (options_.overlap ? options_.prefetch : 0);
}

void* ParameterCache::owned(int unit) const {
    const OwnedSlice& s = ownership_.owned(unit);
    return params_.bytes_at((options_.whole_parameters() ? s.local_offset : s.shard_offset) * element_);
}

void ParameterCache::gather(int unit) {
    if (options_.whole_parameters()) return;
    UnitState& s = state_[size_t(unit)];
    if (fp8_ && fp8_->covers(unit)) {
        s.ready = fp8_->gather(unit);
        return;
    }
    Stream& comm = streams_.comm();
    void* whole = gathered_.acquire(unit, from_host_ ? *from_host_ : comm);
    if (!from_host_) comm.wait(s.own_ready);
    const void* slice = from_host_ ? bring(unit, whole, s.own_ready) : owned(unit);
    streams_.mesh.shard().all_gather(
        comm, {.out = whole, .in = slice, .offsets = ownership_.slices(unit), .dtype = options_.param_dtype});
    s.ready = comm.record();
}

const void* ParameterCache::bring(int unit, void* whole, const Event& ready) {
    const ElementRange own = ownership_.owned(unit).elements;
    void* place = static_cast<char*>(whole) + own.begin * element_;
    from_host_->wait(ready);
    from_host_->copy(place, owned(unit), own.size() * element_);
    streams_.comm().wait(from_host_->record());
    return place;
}

const void* ParameterCache::parameters(int unit) {
    streams_.compute_waits(std::exchange(state_[size_t(unit)].ready, Event()));
    const UnitLayout& u = ownership_.unit(unit);
    if (options_.whole_parameters()) return params_.bytes_at(u.offset * element_);
    require(!fp8_ || !fp8_->covers(unit), "unit %s is gathered in fp8, and read as if it were not", u.name.c_str());
    require(gathered_.holds(unit), "unit %s is read without being gathered", u.name.c_str());
    return gathered_.data(unit);
}

std::optional<Fp8Parameters> ParameterCache::fp8_parameters(int unit) {
    if (!fp8_ || !fp8_->covers(unit)) return std::nullopt;
    streams_.compute_waits(std::exchange(state_[size_t(unit)].ready, Event()));
    require(fp8_->holds(unit), "unit %s is read without being gathered", ownership_.unit(unit).name.c_str());
    return fp8_->parameters(unit);
}

void ParameterCache::gather_whole(int unit, void* out) {
    Stream& comm = streams_.comm();
    comm.wait(streams_.compute.record());
    const UnitLayout& u = ownership_.unit(unit);
    if (options_.whole_parameters())
        comm.copy(out, params_.bytes_at(u.offset * element_), u.padded * element_);
    else
        streams_.mesh.shard().all_gather(comm,
                                         {.out = out,
                                          .in = from_host_ ? bring(unit, out, streams_.compute.record()) : owned(unit),
                                          .offsets = ownership_.slices(unit),
                                          .dtype = options_.param_dtype});
    streams_.compute_waits(comm.record());
}

void ParameterCache::release(int unit) {
    if (fp8_ && fp8_->covers(unit)) return fp8_->release(unit, streams_.compute.record());
    if (!options_.whole_parameters()) gathered_.give_back(unit, streams_.compute.record());
}

void ParameterCache::all_gather_updated(int unit, const Event& final) {
    ++version_;
    const ShardGroups& shard_groups = ownership_.shard_groups();
    if (!shard_groups.sharded || (options_.whole_parameters() && shard_groups.shard.size == 1)) {
        streams_.compute.wait(final);
        return;
    }
    UnitState& s = state_[size_t(unit)];
    s.own_ready = final.valid() ? final : streams_.compute.record();
    Stream& comm = streams_.comm();
    if (fp8_ && unit + 1 == int(ownership_.units().size())) {
        for (const UnitState& each : state_) comm.wait(each.own_ready);
        fp8_->all_gather_updated([this](int u) { return owned(u); });
    }
    if (!options_.whole_parameters()) return;  // gather() waits
    comm.wait(std::exchange(s.own_ready, Event()));
    streams_.mesh.shard().all_gather(comm, {.out = params_.bytes_at(ownership_.unit(unit).offset * element_),
                                            .in = owned(unit),
                                            .offsets = ownership_.slices(unit),
                                            .dtype = options_.param_dtype});
    s.ready = comm.record();
}

}  // namespace rz
