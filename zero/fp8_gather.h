#pragma once
// Stage 3's gather of units whose matrices are read as fp8 only: one byte for each of their elements on the wire
// instead of two, what else the unit holds (norms) in its own type. Codes are those that a rank with the whole matrix
// would make, to the bit: scales come from the rounded parameters, never the masters, and the ranks' magnitudes are
// folded exactly.
//
//   per step              one all-gather of the magnitudes, 16 bytes for each matrix and rank, and one of the rest of
//                         all units, size_of(dtype) an element; then each rank quantises its slices, once
//   per gather of a unit  all-gather of the codes of the matrices, 1 byte each
//
// Everything runs on the communication stream, in order.

#include <functional>
#include <vector>

#include "kernels/fp8/quantise.h"
#include "zero/ownership.h"
#include "zero/parameter_source.h"
#include "zero/streams.h"
#include "zero/unit_pool.h"

namespace rz {

// Ranges of a unit's elements, ascending, each a matrix of one scale. None: the unit is gathered in its own type.
using Fp8Matrices = std::vector<std::vector<ElementRange>>;  // by unit

class Fp8Gather {
   public:
    // `slots` as UnitPool's. Ranges begin at and hold multiples of 16 elements.
    Fp8Gather(const Ownership&, Fp8Matrices matrices, DType dtype, int slots, ZeroStreams);

    bool covers(int unit) const { return !units_[size_t(unit)].matrices.empty(); }
    // The owned slices of all units, which owned(unit) gives, are final on the compute stream. Collective.
    void all_gather_updated(const std::function<const void*(int)>& owned);
    // After all_gather_updated(); collective.
    Event gather(int unit);
    bool holds(int unit) const { return pool_.holds(unit); }
    Fp8Parameters parameters(int unit) const;
    void release(int unit, Event last_use) { pool_.give_back(unit, std::move(last_use)); }

   private:
    struct Part {  // of this rank's slice: where it lies there, and in what is sent of the unit
        int64_t from, to, elements;
        int matrix;  // -1: of the rest
    };
    struct UnitPlan {
        std::vector<ElementRange> matrices, rest;
        int64_t first_scale = 0, first_code = 0;          // in scales_; of this rank's codes in codes_
        int64_t first_rest = 0;                           // in rest_
        int64_t codes = 0, rest_elements = 0;             // of the whole unit
        std::vector<int64_t> code_offsets, rest_offsets;  // by rank; codes in pairs
        std::vector<Part> parts;
    };
    UnitPlan plan(int unit, std::vector<ElementRange> matrices) const;
    void gather_rest(const std::function<const void*(int)>& owned);

    const Ownership& ownership_;
    DType dtype_;
    ZeroStreams streams_;
    std::vector<UnitPlan> units_;
    int64_t scales_count_ = 0;
    std::vector<int64_t> rest_offsets_ = {0};  // by rank, of the rest of all units
    Buffer codes_, own_scales_, all_scales_, scales_;
    Buffer own_rest_, rest_by_rank_, rest_;  // this rank's; (ranks, units); (units, ranks)
    UnitPool pool_;
};

}  // namespace rz
