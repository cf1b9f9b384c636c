#include "zero/ownership.h"

#include <algorithm>
#include <utility>

#include "comm/mesh.h"
#include "zero/zero_options.h"

namespace rz {

ShardGroups shard_groups_of(const ZeroOptions& options, const Mesh& mesh) {
    require(options.stage >= 0 && options.stage <= 3, "stage %d: the stages are 0, 1, 2 and 3", options.stage);
    const AxisRank data = mesh.place(Axis::data), shard = mesh.place(Axis::shard);
    if (options.slices_state()) return {.shard = shard, .replicate = mesh.place(Axis::replicate), .sharded = true};
    require(shard.size == data.size, "shard_size %d needs stage 1, 2 or 3", shard.size);
    return {.shard = data, .replicate = data, .sharded = false};
}

Ownership::Ownership(std::vector<UnitLayout> units, const ShardGroups& shard_groups)
    : units_(std::move(units)), shard_groups_(shard_groups) {
    require(!units_.empty(), "a rank that holds no units");
    for (const UnitLayout& u : units_) {
        require(u.offset == elements_, "unit %s begins at %lld, expected %lld", u.name.c_str(), (long long)u.offset,
                (long long)elements_);
        const ElementRange range = shard_groups_.sharded ? u.slice(shard_groups_.shard.rank, shard_groups_.shard.size)
                                                         : ElementRange{0, u.padded};
        owned_.push_back(
            {int(owned_.size()), range, u.offset + range.begin, u.global_offset + range.begin, owned_elements_});
        slices_.push_back(u.slice_offsets(shard_groups_.shard.size));
        parts_.push_back(even_offsets(range.size(), shard_groups_.replicate.size));
        elements_ = checked_add(elements_, u.padded, "parameters");
        owned_elements_ += range.size();
    }
}

int64_t Ownership::largest_owned() const {
    int64_t largest = 0;
    for (const OwnedSlice& s : owned_) largest = std::max(largest, s.elements.size());
    return largest;
}

}  // namespace rz
