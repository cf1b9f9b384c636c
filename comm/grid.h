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
// On every axis the ranks stand in ascending order of their rank in the job. But with `by_columns` those of data, shard
// and replicate stand by their place on their node, then by node: collectives of two levels (hier) need that.
// The rank at node m of P, place l on the node, owns slice l * P + m, whatever the algorithm. On one node, and with one
// rank on each node, that is the ascending order.

#include <array>
#include <string>
#include <vector>

namespace rz {

enum class Axis : int { tp, cp, dp, pp, data, shard, replicate, model, count_ };
const char* name_of(Axis);

// Which ranks communicate as a group: all of an axis; where its collectives have two levels, those of them on a node
// (row) or one on each node (column); or two neighbours on pp, of which the first sends (link).
struct GroupKind {
    enum class Span { all, row, column, link };
    Axis axis;
    Span span = Span::all;
    int from = 0, to = 0;  // places of a link's ranks
    std::string name() const;
};

struct GridOptions {
    int tp = 1, cp = 1, pp = 1;
    int shard_size = 0;  // 0: the whole data axis
    std::array<Axis, 4> order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
    std::vector<int> nodes = {};  // by rank, which machine it is on, by any number; none: all on one
    bool by_columns = false;
};

struct AxisRank {
    int rank = 0, size = 1;
    bool operator==(const AxisRank&) const = default;
};

class Grid {
   public:
    // Throws where the sizes do not fit the number of ranks, naming the nearest that do.
    Grid(int ranks, const GridOptions& options);

    int ranks() const { return ranks_; }
    const std::array<Axis, 4>& order() const { return order_; }
    int size(Axis axis) const;
    // The nodes that a group on this axis lies on; 0 if they do not hold equally many of its ranks.
    int nodes(Axis axis) const;
    // Those of data, where shard and replicate lie evenly on nodes too; else 0.
    int nodes_of_state() const { return nodes(Axis::shard) > 0 && nodes(Axis::replicate) > 0 ? nodes(Axis::data) : 0; }
    // Place of a rank of the job.
    AxisRank place(Axis axis, int rank) const;
    // The ranks of the job that stand on this axis with `rank`, in order: members()[place().rank] == rank.
    std::vector<int> members(Axis axis, int rank) const;

   private:
    AxisRank position(Axis axis, int rank) const;  // in ascending order
    std::vector<int> together(Axis axis, int rank) const;
    std::vector<int> columns(std::vector<int> members) const;
    int coordinate(Axis axis, int rank) const { return rank / stride_[size_t(axis)] % size_[size_t(axis)]; }

    int ranks_, shard_size_ = 1;
    std::array<Axis, 4> order_;
    std::array<int, 4> size_ = {}, stride_ = {};  // of tp, cp, dp, pp
    std::vector<int> nodes_;
    std::array<std::vector<int>, size_t(Axis::count_)> by_columns_;  // places by rank, of the axes that stand so
};

}  // namespace rz
