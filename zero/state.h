#pragma once
// The state of the parameters that a rank owns: runs of them, and the arrays of each run, one row of state_arrays() an
// array. Checkpoints, replicas, offload and the optimizer walk that list; a run without an array has nullptr there.

#include <vector>

#include "zero/ownership.h"
#include "zero/zero_options.h"

namespace rz {

// One run of parameters that this rank keeps the optimizer state of: AdamW's, or a part of one of Muon's matrices. What
// is offloaded lies on the host.
struct OwnedRange : OwnedSlice {
    void* param = nullptr;   // param_dtype
    void* master = nullptr;  // master_dtype; == param where the two have the same dtype
    void* m = nullptr;       // adam_dtype
    void* v = nullptr;       // adam_dtype; nullptr: of a matrix
    void* ema = nullptr;     // fp32: the moving average of the masters; nullptr without ZeroOptions::ema
    void* row_v = nullptr;   // fp32: NorMuon's second moments of the rows that begin here, of a matrix
    void* grad = nullptr;    // grad_dtype: the reduced gradient, once gradient_norm() has waited for it
    int64_t second = 0;      // of its first element, in a buffer of what has a v alone
    int matrix = -1;         // of Muon's, counted over all units (zero/muon.h)
    int64_t columns = 0;     // of it, and where its elements begin in it
    int64_t in_matrix = 0;

    // How many of the matrix's rows begin in the first `elements`.
    int64_t rows_in(int64_t elements) const {
        return ceil_div(in_matrix + elements, columns) - ceil_div(in_matrix, columns);
    }
};

enum class StatePart : int { model, master, m, v, ema, row_v, count_ };

// Owners of an array: all parameters, all but Muon's matrices, or each row of those (one element, of the run where it
// begins).
enum class Whose { all, rest, rows };

struct StateArray {
    StatePart part;
    const char* stem = nullptr;   // of its file in a checkpoint
    const char* words = nullptr;  // for people
    void* OwnedRange::*where = nullptr;
    DType dtype = DType::f32;
    Whose whose = Whose::all;

    // Its elements of the first `elements` of a run that has it.
    int64_t count(const OwnedRange& r, int64_t elements) const {
        return whose == Whose::rows ? r.rows_in(elements) : elements;
    }
    int64_t count(const OwnedRange& r) const { return count(r, r.elements.size()); }
};

constexpr const char* stem_of(StatePart part) {
    constexpr const char* kStems[] = {"model",       "optimizer/master", "optimizer/m",
                                      "optimizer/v", "optimizer/ema",    "optimizer/row_v"};
    return kStems[size_t(part)];
}

// In the order of StatePart; without masters where these are the parameters.
inline std::vector<StateArray> state_arrays(const ZeroOptions& o) {
    using enum StatePart;
    std::vector<StateArray> out = {{model, stem_of(model), "the parameters", &OwnedRange::param, o.param_dtype}};
    if (o.master_dtype != o.param_dtype)
        out.push_back({master, stem_of(master), "the master weights", &OwnedRange::master, o.master_dtype});
    out.push_back({m, stem_of(m), "AdamW's m", &OwnedRange::m, o.adam_dtype});
    out.push_back({v, stem_of(v), "AdamW's v", &OwnedRange::v, o.adam_dtype, o.muon.on ? Whose::rest : Whose::all});
    if (o.ema > 0) out.push_back({ema, stem_of(ema), "the average of the weights", &OwnedRange::ema, DType::f32});
    if (o.muon.beta2 > 0)
        out.push_back({row_v, stem_of(row_v), "NorMuon's row moments", &OwnedRange::row_v, DType::f32, Whose::rows});
    return out;
}

// `count` elements of a run, `by` further on, in every array that it has.
inline OwnedRange part_of(const OwnedRange& r, int64_t by, int64_t count, const ZeroOptions& o) {
    const auto move = [by](void* p, DType d) -> void* { return p ? static_cast<char*>(p) + by * size_of(d) : nullptr; };
    OwnedRange out = r;
    out.elements = {r.elements.begin + by, r.elements.begin + by + count};
    out.local_offset += by, out.global_offset += by, out.shard_offset += by, out.second += by;
    out.param = move(r.param, o.param_dtype);
    out.master = move(r.master, o.master_dtype);
    out.m = move(r.m, o.adam_dtype);
    out.v = move(r.v, o.adam_dtype);
    out.ema = move(r.ema, DType::f32);
    out.grad = move(r.grad, o.grad_dtype);
    if (r.row_v) out.row_v = static_cast<float*>(r.row_v) + r.rows_in(by);
    out.in_matrix += by;
    return out;
}

}  // namespace rz
