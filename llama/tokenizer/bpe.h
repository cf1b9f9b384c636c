#pragma once
// Byte-pair encoding: merge the adjacent pair of lowest rank, the leftmost first, until none is left.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace rz {

class Bpe {
   public:
    // The lowest rank is merged first; several pairs may share one. A pair added again takes the later rank.
    void add(int32_t left, int32_t right, int32_t merged, int32_t rank);
    size_t size() const { return merges_.size(); }
    bool operator==(const Bpe&) const = default;

    struct Pair {
        int32_t left, right, merged, rank;
    };
    std::vector<Pair> pairs() const;  // all, by rank

    // Replaces `symbols` by what merging makes of it. O(n log n) for n symbols, whatever the input.
    void apply(std::vector<int32_t>& symbols) const;

   private:
    struct Merge {
        int32_t rank, merged;
        bool operator==(const Merge&) const = default;
    };
    const Merge* find(int32_t left, int32_t right) const {
        const auto it = merges_.find(uint64_t(uint32_t(left)) << 32 | uint32_t(right));
        return it == merges_.end() ? nullptr : &it->second;
    }
    struct PairHash {
        size_t operator()(uint64_t pair) const {
            pair = (pair ^ (pair >> 32)) * 0x9e3779b97f4a7c15ull;
            return size_t(pair ^ (pair >> 29));
        }
    };
    std::unordered_map<uint64_t, Merge, PairHash> merges_;
};

}  // namespace rz
