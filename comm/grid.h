#pragma once
// Ranks as a grid with named axes: where each one stands, by arithmetic alone, for any number of ranks.
//
//   tp   tensor parallelism: parts of the same tensors
//   cp   context parallelism: parts of the same sequences
//   dp   data parallelism: other samples
//   pp   pipeline parallelism: other units
//
// The sizes of tp, cp and pp are asked for; dp is what they leave. `order` is innermost first: neighbours on its first
// axis have neighbouring ranks. Made of the axes:
//
//   data       dp x cp: the ranks that hold the same parameters and sum their gradients; cp cuts the batch too
//   shard      `shard_size` neighbours on the data axis, which share the state among them (ZeRO)
//   replicate  the ranks of the data axis that hold the same slice of the state
//   model      tp x pp: the ranks that hold one copy of the parameters together
//
// On every axis the ranks stand in ascending order of their rank in the job.

#include <array>
#include <string>
#include <vector>

namespace rz {

enum class Axis : int { tp, cp, dp, pp, data, shard, replicate, model, count_ };
const char* name_of(Axis);

struct GridOptions {
    int tp = 1, cp = 1, pp = 1;
    int shard_size = 0;  // 0: the whole data axis
    std::array<Axis, 4> order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
};

struct Place {
    int rank = 0, size = 1;
    bool operator==(const Place&) const = default;
};

class Grid {
   public:
    // Throws where the sizes do not fit the number of ranks, naming the nearest that do.
    Grid(int ranks, const GridOptions& options);

    int ranks() const { return ranks_; }
    const std::array<Axis, 4>& order() const { return order_; }
    int size(Axis axis) const;
    // Of a rank of the job.
    Place place(Axis axis, int rank) const;
    // The ranks of the job that stand on this axis with `rank`, ascending: members()[place().rank] == rank.
    std::vector<int> members(Axis axis, int rank) const;
    // The smallest of members(): it names the group.
    int first_member(Axis axis, int rank) const { return members(axis, rank).front(); }

   private:
    int coordinate(Axis axis, int rank) const { return rank / stride_[size_t(axis)] % size_[size_t(axis)]; }

    int ranks_, shard_size_ = 1;
    std::array<Axis, 4> order_;
    std::array<int, 4> size_ = {}, stride_ = {};  // of tp, cp, dp, pp
};

}  // namespace rz
