#pragma once
// How the flat buffer is cut: into units (runs that are needed together), each unit into equal blocks, and the blocks
// among ranks. Blocks do not depend on the number of ranks, so neither do offsets, checkpoints or the order in which
// the gradient norm is summed.

#include <algorithm>
#include <cstdint>
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
    int64_t offset = 0;   // elements, in the flat buffer; a multiple of 256
    int64_t size = 0;     // elements that hold parameters
    int64_t block = 0;    // elements, a multiple of 256
    int64_t padded = 0;   // elements with the padding at the end; a whole number of blocks
    int64_t logical = 0;  // of the first element in the whole model's buffer: `offset` where a rank holds all of it
    // Ascending, within the unit: what another rank that holds the same elements counts in the gradient norm.
    std::vector<ElementRange> counted_elsewhere = {};

    int64_t blocks() const { return padded / block; }
    // Rank r's elements within the unit: whole blocks, the first (blocks % ranks) ranks one more. May be empty.
    ElementRange slice(int rank, int ranks) const {
        const int64_t each = blocks() / ranks, extra = blocks() % ranks;
        const int64_t first = rank * each + std::min<int64_t>(rank, extra);
        return {first * block, (first + each + (rank < extra ? 1 : 0)) * block};
    }
    // What this rank counts of a range within the unit, ascending.
    std::vector<ElementRange> counted(ElementRange range) const {
        std::vector<ElementRange> out;
        for (const ElementRange& other : counted_elsewhere) {
            if (other.end <= range.begin || other.begin >= range.end) continue;
            if (other.begin > range.begin) out.push_back({range.begin, other.begin});
            range.begin = std::min(other.end, range.end);
        }
        if (range.size() > 0) out.push_back(range);
        return out;
    }
    // ranks + 1 offsets: slice r is [out[r], out[r + 1])
    std::vector<int64_t> slice_offsets(int ranks) const {
        std::vector<int64_t> out;
        for (int r = 0; r < ranks; ++r) out.push_back(slice(r, ranks).begin);
        out.push_back(padded);
        return out;
    }
};

// At most 1024 blocks: enough ranks for anyone, and few enough that all block sums of a model are a small message.
inline UnitLayout make_unit(std::string name, int64_t offset, int64_t size) {
    constexpr int64_t kMaxBlocks = 1024, kAlign = 256;
    require(size > 0, "unit %s holds no parameters", name.c_str());
    const int64_t block = round_up(ceil_div(size, kMaxBlocks), kAlign);
    return {std::move(name), offset, size, block, round_up(size, block), offset};
}

}  // namespace rz
