#pragma once
// The order in which the blocks of a Hopper attention kernel take their work. A kernel has as many blocks as
// multiprocessors that it may take, and they stay; an item is a tile of rows of one head, longer or shorter by the
// causal mask, and depends on no other, so that the order can't change a result. Blocks draw items from a counter: one
// that has to wait for a multiprocessor, because communication has it, holds nothing back. A second stream, which may
// not share the counter, takes every item that is a block's in turn.
//
// Items form a sequence: sections of heads whose streamed tensors fit in L2 together, within a section tiles by length,
// the longest first, of each length all the section's heads.

#include <cstdint>

namespace rz {

struct WorkItem {
    int head;  // batch * heads + head
    int rank;  // 0: the longest tile of its head
};

struct WorkOrder {
    int heads, section, tiles;
    int blocks;

    constexpr int items() const { return heads * tiles; }
    // Which item a block takes in a round without a counter; none if not below items().
    constexpr int item(int block, int round) const { return round * blocks + block; }
    // A counter from which every block draws until it gets none: it is 0 again after the draw that returns this.
    constexpr uint32_t last_draw() const { return uint32_t(items() + blocks - 1); }
    constexpr WorkItem at(int item) const {
        const int s = item / (section * tiles), in_section = item - s * section * tiles;
        const int left = heads - s * section, here = left < section ? left : section, rank = in_section / here;
        return {s * section + in_section - rank * here, rank};
    }
};

// The choice depends on these
struct WorkShape {
    int64_t heads;     // of all batches
    int64_t together;  // neighbouring heads that stream the same tensors
    int64_t tiles;     // of each head
    int64_t bytes;     // streamed by such a group of heads
    double step;       // by how much a tile is longer than the next in rank,
    double fixed;      // in units of which the start and end of an item, and its shortest tile, take this

    double time(int rank) const { return fixed + step * double(tiles - 1 - rank); }
    bool operator==(const WorkShape&) const = default;
};

// The order in which the busiest of `blocks` blocks has least to do, among those whose sections fit in half of L2. One
// that does not fit must be a tenth better. Throws where the items are more than an int counts.
WorkOrder choose_work_order(const WorkShape&, int blocks, int64_t l2_bytes);

// Work of the average block, as a fraction of the busiest block's: each draws when it has ended
double balance(const WorkOrder&, const WorkShape&);

}  // namespace rz
