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
    int64_t own_codes = 0, most_rest = 0;
    std::vector<int64_t> bytes;
    for (int unit = 0; unit < int(matrices.size()); ++unit) {
        UnitPlan u = plan(unit, std::move(matrices[size_t(unit)]));
        u.first_scale = scales_count_;
        u.first_code = own_codes;
        scales_count_ += int64_t(u.matrices.size());
        for (const Part& p : u.parts) own_codes += p.matrix >= 0 ? p.elements : 0;
        most_rest = std::max(most_rest, u.rest_elements);
        bytes.push_back(u.matrices.empty() ? 0 : rest_at(u) + u.rest_elements * size_of(dtype));
        units_.push_back(std::move(u));
    }
    const int64_t scale_bytes = scales_count_ * int64_t(sizeof(Fp8Scale)), ranks = ownership.sharing().cut.size;
    const auto take = [&](int64_t n, MemKind kind, const char* name) { return Buffer(streams.device, n, kind, name); };
    codes_ = take(own_codes, MemKind::gathered, "fp8 codes of the owned slices");
    own_scales_ = take(scale_bytes, MemKind::gathered, "magnitudes of the owned slices");
    all_scales_ = take(scale_bytes * ranks, MemKind::gathered, "magnitudes of all slices");
    scales_ = take(scale_bytes, MemKind::gathered, "fp8 scales");
    rest_ = take(most_rest * size_of(dtype), MemKind::gathered, "owned parameters that are not in fp8");
    pool_ = UnitPool(streams.device, std::move(bytes), slots, MemKind::gathered, "gathered fp8 parameters");
}

void Fp8Gather::publish(const std::function<const void*(int)>& owned) {
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
    const int ranks = ownership_.sharing().cut.size;
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
}

Event Fp8Gather::gather(int unit, const void* own) {
    const UnitPlan& u = units_[size_t(unit)];
    Stream& comm = streams_.comm();
    char* whole = static_cast<char*>(pool_.acquire(unit, comm));
    for (const Part& p : u.parts)
        if (p.matrix < 0)
            comm.copy(rest_.bytes_at(p.to * size_of(dtype_)), static_cast<const char*>(own) + p.from * size_of(dtype_),
                      p.elements * size_of(dtype_));
    // Codes travel in pairs: no collective knows a type of one byte.
    streams_.mesh.shard().all_gather(
        comm, {.out = whole, .in = codes_.bytes_at(u.first_code), .offsets = u.code_offsets, .dtype = DType::bf16});
    streams_.mesh.shard().all_gather(
        comm, {.out = whole + rest_at(u), .in = rest_.data(), .offsets = u.rest_offsets, .dtype = dtype_});
    return comm.record();
}

Fp8Parameters Fp8Gather::parameters(int unit) const {
    const UnitPlan& u = units_[size_t(unit)];
    const char* whole = static_cast<const char*>(pool_.data(unit));
    return {.codes = reinterpret_cast<const uint8_t*>(whole),
            .scales = scales_.as<const Fp8Scale>() + u.first_scale,
            .rest = whole + rest_at(u)};
}

}  // namespace rz
