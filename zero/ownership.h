#pragma once
// Ownership: how the units that a rank holds are cut into slices, which slice is this rank's, where it lies in the
// rank's flat buffer, in buffers of slices only and in the whole model, and how many ranks own the very same.
// Arithmetic alone: no device, no memory.
//
// A rank owns one slice of every unit (unit_layout.h), never one range of the whole: a gather then uses every link.
// If the optimizer's state is replicated (stage 0), each rank owns all of every unit; units are cut all the same,
// for the ring's all-reduce.

#include <vector>

#include "comm/grid.h"
#include "zero/unit_layout.h"

namespace rz {

class Mesh;
struct ZeroOptions;

// The part of a unit that a rank owns.
struct OwnedSlice {
    int unit;
    ElementRange elements;  // within the unit
    int64_t local_offset;   // of the first element in the flat buffer of this rank
    int64_t global_offset;  // in that of the whole model
    int64_t shard_offset;   // in a buffer that holds owned slices only, one after the other
    bool operator==(const OwnedSlice&) const = default;
};

// Groups of the ranks that hold the same units.
struct ShardGroups {
    AxisRank shard;        // among the ranks that a unit is cut for
    AxisRank replicate;    // among those that own the very same
    bool sharded = false;  // whether a rank owns its slice alone
};
ShardGroups shard_groups_of(const ZeroOptions&, const Mesh&);

class Ownership {
   public:
    // Units in the order in which they lie in the flat buffer, without gaps.
    Ownership(std::vector<UnitLayout> units, const ShardGroups& shard_groups);

    const std::vector<UnitLayout>& units() const { return units_; }
    const UnitLayout& unit(int u) const { return units_[size_t(u)]; }
    const ShardGroups& shard_groups() const { return shard_groups_; }
    int64_t elements() const { return elements_; }  // padded, of all units
    int64_t owned_elements() const { return owned_elements_; }

    // The slice of one unit. It may be empty: there are fewer blocks than ranks.
    const OwnedSlice& owned(int u) const { return owned_[size_t(u)]; }
    // Offsets within the unit, one more than ranks that it is cut for.
    const std::vector<int64_t>& slices(int u) const { return slices_[size_t(u)]; }
    // Offsets within the owned slice, one more than ranks that own it.
    const std::vector<int64_t>& parts(int u) const { return parts_[size_t(u)]; }
    int64_t largest_owned() const;  // elements

   private:
    std::vector<UnitLayout> units_;
    ShardGroups shard_groups_;
    std::vector<OwnedSlice> owned_;
    std::vector<std::vector<int64_t>> slices_, parts_;
    int64_t elements_ = 0, owned_elements_ = 0;
};

}  // namespace rz
