#include "zero/fp8_gather.h"

#include <algorithm>
#include <utility>

#include "kernels/fp8/fold_scales.h"

namespace rz {

static ElementRange meet(const ElementRange& a, const ElementRange& b) {
    const int64_t begin = std::max(a.begin, b.begin);
    return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Elements of `ranges` below `end`.
static int64_t count_below(const std::vector<ElementRange>& ranges, int64_t end) {
    int64_t n = 0;
    for (const ElementRange& r : ranges) n += meet(r, {0, end}).size();
    return n;
}

Fp8Gather::UnitPlan Fp8Gather::plan(int unit, std::vector<ElementRange> matrices) const {
    const UnitLayout& layout = ownership_.unit(unit);
    UnitPlan u;
    u.matrices = std::move(matrices);
    if (u.matrices.empty()) return u;
    int64_t at = 0;
    for (const ElementRange& m : u.matrices) {
        require(m.begin >= at && m.begin % 16 == 0 && m.size() % 16 == 0 && m.end <= layout.size,
                "unit %s: a matrix of elements %lld to %lld can't be gathered in fp8", layout.name.c_str(),
                (long long)m.begin, (long long)m.end);
        if (m.begin > at) u.rest.push_back({at, m.begin});
        at = m.end;
    }
    if (at < layout.size) u.rest.push_back({at, layout.size});
    for (const int64_t end : ownership_.slices(unit)) {
        u.code_offsets.push_back(count_below(u.matrices, end) / 2);
        u.rest_offsets.push_back(count_below(u.rest, end));
    }
    u.codes = count_below(u.matrices, layout.size);
    u.rest_elements = count_below(u.rest, layout.size);
    const ElementRange own = ownership_.owned(unit).elements;
    const auto add_parts = [&](const std::vector<ElementRange>& ranges, bool matrix) {
        int64_t to = 0;
        for (size_t i = 0; i < ranges.size(); ++i) {
            const ElementRange part = meet(ranges[i], own);
            if (part.size() > 0) u.parts.push_back({part.begin - own.begin, to, part.size(), matrix ? int(i) : -1});
            to += part.size();
        }
    };
    add_parts(u.matrices, true);
    add_parts(u.rest, false);
    return u;
}

Fp8Gather::Fp8Gather(const Ownership& ownership, Fp8Matrices matrices, DType dtype, int slots, ZeroStreams streams)
    : ownership_(ownership), dtype_(dtype), streams_(streams) {
    require(matrices.size() == ownership.units().size(), "matrices of %zu units, there are %zu", matrices.size(),
            ownership.units().size());
    const int ranks = ownership.shard_groups().shard.size;
    int64_t own_codes = 0, rest = 0;
    std::vector<int64_t> rest_of(size_t(ranks), 0);
    std::vector<int64_t> bytes;
    for (int unit = 0; unit < int(matrices.size()); ++unit) {
        UnitPlan u = plan(unit, std::move(matrices[size_t(unit)]));
        u.first_scale = scales_count_;
        u.first_code = own_codes;
        u.first_rest = rest;
        scales_count_ += int64_t(u.matrices.size());
        for (const Part& p : u.parts) own_codes += p.matrix >= 0 ? p.elements : 0;
        rest += round_up(u.rest_elements, 256);
        for (size_t r = 0; r + 1 < u.rest_offsets.size(); ++r) rest_of[r] += u.rest_offsets[r + 1] - u.rest_offsets[r];
        bytes.push_back(u.codes);
        units_.push_back(std::move(u));
    }
    for (const int64_t n : rest_of) rest_offsets_.push_back(rest_offsets_.back() + n);
    const int64_t scale_bytes = scales_count_ * int64_t(sizeof(Fp8Scale));
    const auto take = [&](int64_t n, MemKind kind, const char* name) { return Buffer(streams.device, n, kind, name); };
    codes_ = take(own_codes, MemKind::gathered, "fp8 codes of the owned slices");
    own_scales_ = take(scale_bytes, MemKind::gathered, "magnitudes of the owned slices");
    all_scales_ = take(scale_bytes * ranks, MemKind::gathered, "magnitudes of all slices");
    scales_ = take(scale_bytes, MemKind::gathered, "fp8 scales");
    const char* what = "parameters that are not in fp8";
    own_rest_ = take(rest_of[size_t(ownership.shard_groups().shard.rank)] * size_of(dtype), MemKind::gathered, what);
    rest_by_rank_ = take(rest_offsets_.back() * size_of(dtype), MemKind::gathered, what);
    rest_ = take(rest * size_of(dtype), MemKind::gathered, what);
    pool_ = UnitPool(streams.device, bytes, slots, /*in_turn=*/false, MemKind::gathered, "gathered fp8 parameters");
}

void Fp8Gather::all_gather_updated(const std::function<const void*(int)>& owned) {
    Stream& comm = streams_.comm();
    comm.wait(streams_.compute.record());
    const auto for_each_part = [&](const auto& body) {
        for (int unit = 0; unit < int(units_.size()); ++unit)
            for (const Part& p : units_[size_t(unit)].parts)
                if (p.matrix >= 0)
                    body(units_[size_t(unit)], p, static_cast<const char*>(owned(unit)) + p.from * size_of(dtype_));
    };
    comm.zero(own_scales_.data(), own_scales_.bytes());
    for_each_part([&](const UnitPlan& u, const Part& p, const void* x) {
        abs_max(
            comm,
            {.scale = own_scales_.as<Fp8Scale>() + u.first_scale + p.matrix, .x = x, .n = p.elements, .dtype = dtype_});
    });
    const int ranks = ownership_.shard_groups().shard.size;
    const int64_t words = own_scales_.bytes() / 4;  // a gather copies bits
    streams_.mesh.shard().all_gather(comm, {.out = all_scales_.data(),
                                            .in = own_scales_.data(),
                                            .offsets = even_offsets(words * ranks, ranks, words),
                                            .dtype = DType::f32});
    fold_scales(comm, {.scales = scales_.as<Fp8Scale>(),
                       .parts = all_scales_.as<Fp8Scale>(),
                       .ranks = ranks,
                       .n = scales_count_,
                       .type = Fp8::e4m3});
    for_each_part([&](const UnitPlan& u, const Part& p, const void* x) {
        quantise(comm, {.y = codes_.as<uint8_t>() + u.first_code + p.to,
                        .scale = scales_.as<Fp8Scale>() + u.first_scale + p.matrix,
                        .x = x,
                        .rows = 1,
                        .columns = p.elements,
                        .type = Fp8::e4m3,
                        .dtype = dtype_});
    });
    gather_rest(owned);
}

void Fp8Gather::gather_rest(const std::function<const void*(int)>& owned) {
    Stream& comm = streams_.comm();
    const int64_t element = size_of(dtype_);
    int64_t own_at = 0;
    for (int unit = 0; unit < int(units_.size()); ++unit)
        for (const Part& p : units_[size_t(unit)].parts) {
            if (p.matrix >= 0) continue;
            comm.copy(own_rest_.bytes_at(own_at * element), static_cast<const char*>(owned(unit)) + p.from * element,
                      p.elements * element);
            own_at += p.elements;
        }
    streams_.mesh.shard().all_gather(
        comm, {.out = rest_by_rank_.data(), .in = own_rest_.data(), .offsets = rest_offsets_, .dtype = dtype_});
    std::vector<int64_t> at(rest_offsets_.begin(), rest_offsets_.end() - 1);
    for (const UnitPlan& u : units_)
        for (size_t r = 0; r + 1 < u.rest_offsets.size(); ++r) {
            const int64_t n = u.rest_offsets[r + 1] - u.rest_offsets[r];
            if (n == 0) continue;
            comm.copy(rest_.bytes_at((u.first_rest + u.rest_offsets[r]) * element),
                      rest_by_rank_.bytes_at(at[r] * element), n * element);
            at[r] += n;
        }
}

Event Fp8Gather::gather(int unit) {
    const UnitPlan& u = units_[size_t(unit)];
    Stream& comm = streams_.comm();
    void* whole = pool_.acquire(unit, comm);
    // Codes travel in pairs: no collective knows a type of one byte.
    streams_.mesh.shard().all_gather(
        comm, {.out = whole, .in = codes_.bytes_at(u.first_code), .offsets = u.code_offsets, .dtype = DType::bf16});
    return comm.record();
}

Fp8Parameters Fp8Gather::parameters(int unit) const {
    const UnitPlan& u = units_[size_t(unit)];
    return {.codes = static_cast<const uint8_t*>(pool_.data(unit)),
            .scales = scales_.as<const Fp8Scale>() + u.first_scale,
            .rest = static_cast<const char*>(rest_.bytes_at(u.first_rest * size_of(dtype_)))};
}

}  // namespace rz
