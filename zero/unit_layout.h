#pragma once
// How the flat buffer is cut: into units (runs that are needed together), and each unit in two ways that do not know of
// each other:
//
//   blocks   over which the gradient norm is summed. They depend on the unit's size alone, so neither the order in
//            which the norm is summed nor a logical offset depends on the number of ranks.
//   slices   of the ranks that share the unit. Where that adds at most 0.5 % they are equal, because NCCL and MPI have
//            collectives of their own for equal slices: the unit is padded to 16 x lcm(1024, ranks) elements. Where it
//            would add more they are whole blocks, and differ by a block; past 1024 ranks, of which some would then own
//            nothing, multiples of 16 elements.
//
// So an equal slice may end within a block. Two ranks then sum a part of that block each, and the parts are added one
// after the other, in ascending order. A sum of parts may differ in its last bit from the sum of the whole, and so may
// the norm.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/runtime/check.h"

namespace rz {

struct ElementRange {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(const ElementRange&) const = default;
};

struct UnitLayout {
    std::string name;
    int64_t offset = 0;         // elements, in the flat buffer; a multiple of 256
    int64_t size = 0;           // elements that hold parameters
    int64_t block = 0;          // elements, a multiple of 256
    int64_t padded = 0;         // elements with the padding at the end; a whole number of blocks, or equal slices
    int64_t global_offset = 0;  // of the first element in the whole model's buffer, where each unit is whole blocks
    // Ascending, within the unit: what another rank that holds the same elements counts in the gradient norm.
    std::vector<ElementRange> owned_by_other_rank = {};
    bool equal = false;  // slices are, among the ranks that `padded` was chosen for

    static constexpr int64_t kMostBlocks = 1024, kFineGrain = 16;

    int64_t blocks() const { return ceil_div(size, block); }
    // Slices are whole numbers of this, in elements.
    int64_t grain(int ranks) const { return equal || ranks > kMostBlocks ? kFineGrain : block; }
    // How many ranks of so many can own a part.
    int64_t grains(int ranks) const { return padded / grain(ranks); }
    // Rank r's elements within the unit: whole grains, the first (grains % ranks) ranks one more. May be empty.
    ElementRange slice(int rank, int ranks) const {
        const int64_t each = grains(ranks) / ranks, extra = grains(ranks) % ranks;
        const int64_t first = rank * each + std::min<int64_t>(rank, extra);
        return {first * grain(ranks), (first + each + (rank < extra ? 1 : 0)) * grain(ranks)};
    }
    // Ranges that this rank counts of a range within the unit, ascending. Padding past the last block is nobody's.
    std::vector<ElementRange> counted(ElementRange range) const {
        range.end = std::min(range.end, blocks() * block);
        std::vector<ElementRange> out;
        for (const ElementRange& other : owned_by_other_rank) {
            if (other.end <= range.begin || other.begin >= range.end) continue;
            if (other.begin > range.begin) out.push_back({range.begin, other.begin});
            range.begin = std::min(other.end, range.end);
        }
        if (range.size() > 0) out.push_back(range);
        return out;
    }
    // Number of blocks of which a range has elements. What is summed of a block by itself.
    int64_t blocks_in(const ElementRange& range) const { return ceil_div(range.end, block) - range.begin / block; }
    // ranks + 1 offsets: slice r is [out[r], out[r + 1])
    std::vector<int64_t> slice_offsets(int ranks) const {
        std::vector<int64_t> out;
        for (int r = 0; r < ranks; ++r) out.push_back(slice(r, ranks).begin);
        out.push_back(padded);
        return out;
    }
};

// At most 1024 blocks, so that all block sums of a model are a small message. `ranks`: that share the unit.
inline UnitLayout make_unit(std::string name, int64_t offset, int64_t size, int64_t ranks = 1) {
    constexpr int64_t kAlign = 256, kMost = UnitLayout::kMostBlocks;
    require(size > 0, "unit %s holds no parameters", name.c_str());
    require(ranks > 0, "unit %s for %lld ranks", name.c_str(), (long long)ranks);
    const int64_t block = round_up(ceil_div(size, kMost), kAlign);
    const int64_t in_equal_slices = round_up(size, UnitLayout::kFineGrain * std::lcm(kMost, ranks));
    const bool equal = ranks > 1 && in_equal_slices - size <= size / 200;
    return {.name = std::move(name),
            .offset = offset,
            .size = size,
            .block = block,
            .padded = equal ? in_equal_slices : round_up(size, block),
            .global_offset = offset,
            .equal = equal};
}

}  // namespace rz
