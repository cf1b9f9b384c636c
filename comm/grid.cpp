#include "comm/grid.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "kernels/runtime/request.h"

namespace rz {

const char* name_of(Axis axis) {
    constexpr const char* kNames[] = {"tp", "cp", "dp", "pp", "data", "shard", "replicate", "model"};
    require(axis < Axis::count_, "no such axis of the mesh");
    return kNames[size_t(axis)];
}

std::string GroupKind::name() const {
    if (span == Span::link) return format("%s %d>%d", name_of(axis), from, to);
    return name_of(axis) + std::string(span == Span::row ? " row" : span == Span::column ? " col" : "");
}

// ---- refusals -------------------------------------------------------------------------------------------------------

static std::string text_of(const GridOptions& o, const GridOptions& asked) {
    std::string text;
    const auto add = [&](Axis axis, int value, int before) {
        if (value != 1 || before != 1) text += format("%s%s %d", text.empty() ? "" : " x ", name_of(axis), value);
    };
    add(Axis::pp, o.pp, asked.pp), add(Axis::cp, o.cp, asked.cp), add(Axis::tp, o.tp, asked.tp);
    return text;
}

// The sizes next to those asked for whose product divides `ranks`: as few of them changed as can be, by as little.
static std::vector<GridOptions> nearest_sizes(int ranks, const GridOptions& asked) {
    struct Choice {
        int changed, distance;
        GridOptions sizes;
    };
    std::vector<Choice> choices;
    std::vector<int> divisors;
    for (int d = 1; d <= ranks; ++d)
        if (ranks % d == 0) divisors.push_back(d);
    for (const int pp : divisors)
        for (const int cp : divisors)
            for (const int tp : divisors) {
                if (int64_t(tp) * cp * pp > ranks || ranks % (tp * cp * pp) != 0) continue;
                if ((asked.tp == 1 && tp > 1) || (asked.cp == 1 && cp > 1) || (asked.pp == 1 && pp > 1)) continue;
                GridOptions o = asked;
                o.tp = tp, o.cp = cp, o.pp = pp;
                choices.push_back({(tp != asked.tp) + (cp != asked.cp) + (pp != asked.pp),
                                   std::abs(tp - asked.tp) + std::abs(cp - asked.cp) + std::abs(pp - asked.pp), o});
            }
    std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
        if (a.changed != b.changed) return a.changed < b.changed;
        if (a.distance != b.distance) return a.distance < b.distance;
        return a.sizes.pp * a.sizes.cp * a.sizes.tp > b.sizes.pp * b.sizes.cp * b.sizes.tp;
    });
    std::vector<GridOptions> nearest;
    for (size_t i = 0; i < std::min<size_t>(choices.size(), 2); ++i) nearest.push_back(choices[i].sizes);
    return nearest;
}

static void check_sizes(int ranks, const GridOptions& o) {
    for (const auto& [axis, size] : {std::pair(Axis::tp, o.tp), {Axis::cp, o.cp}, {Axis::pp, o.pp}})
        require_request(size >= 1, "%s %d: an axis has at least one rank\n  nearest: %s 1", name_of(axis), size,
                        name_of(axis));
    std::array<Axis, 4> sorted = o.order;
    std::sort(sorted.begin(), sorted.end());
    require_request(
        sorted == (std::array<Axis, 4>{Axis::tp, Axis::cp, Axis::dp, Axis::pp}),
        "the order of the axes %s, %s, %s, %s: each of tp, cp, dp and pp stands in it once\n  nearest: tp, cp, dp, pp",
        name_of(o.order[0]), name_of(o.order[1]), name_of(o.order[2]), name_of(o.order[3]));
    const int64_t product = int64_t(o.tp) * o.cp * o.pp;
    if (product <= ranks && ranks % product == 0) return;
    std::string nearest;
    for (const GridOptions& n : nearest_sizes(ranks, o)) nearest += (nearest.empty() ? "" : " or ") + text_of(n, o);
    refuse("%s with %d rank%s: %lld does not divide %d\n  nearest: %s", text_of(o, o).c_str(), ranks,
           ranks == 1 ? "" : "s", (long long)product, ranks, nearest.c_str());
}

static void check_shard_size(int shard_size, int data_ranks, int ranks) {
    if (shard_size > 0 && data_ranks % shard_size == 0) return;
    int below = std::min(std::max(shard_size, 1), data_ranks), above = below;
    while (data_ranks % below != 0) --below;
    while (data_ranks % above != 0) ++above;
    const std::string nearest = below == above ? format("%d", below) : format("%d or %d", below, above);
    refuse("shard size %d does not divide %d %s\n  nearest: %s", shard_size, data_ranks,
           data_ranks == ranks ? "ranks" : format("data ranks (of %d ranks)", ranks).c_str(), nearest.c_str());
}

// ---- places ---------------------------------------------------------------------------------------------------------

// True: the ranks that stand on `axis` together differ in a coordinate.
static bool varies(Axis axis, Axis coordinate) {
    switch (axis) {
        case Axis::tp:
        case Axis::cp:
        case Axis::dp:
        case Axis::pp:
            return axis == coordinate;
        case Axis::data:
        case Axis::shard:
        case Axis::replicate:
            return coordinate == Axis::dp || coordinate == Axis::cp;
        case Axis::model:
            return coordinate == Axis::tp || coordinate == Axis::pp;
        case Axis::count_:
            break;
    }
    fail("no such axis of the mesh");
}

Grid::Grid(int ranks, const GridOptions& o) : ranks_(ranks), order_(o.order) {
    require(ranks >= 1, "a mesh of %d ranks", ranks);
    check_sizes(ranks, o);
    size_ = {o.tp, o.cp, ranks / (o.tp * o.cp * o.pp), o.pp};
    int stride = 1;
    for (const Axis axis : order_) {
        stride_[size_t(axis)] = stride;
        stride *= size_[size_t(axis)];
    }
    shard_size_ = o.shard_size == 0 ? size(Axis::data) : o.shard_size;
    check_shard_size(shard_size_, size(Axis::data), ranks);
    nodes_ = o.nodes;
    require(nodes_.empty() || int(nodes_.size()) == ranks, "the nodes of %zu ranks, of %d", nodes_.size(), ranks);
    if (!o.by_columns) return;
    for (const Axis axis : {Axis::data, Axis::shard, Axis::replicate}) {
        if (size(axis) == 1) continue;
        require_request(nodes(axis) > 0,
                        "--collectives hier: the groups of %d ranks on the %s axis do not lie evenly on their nodes\n"
                        "  nearest: as many ranks on each node, a --shard-size that fits them, or --collectives ring",
                        size(axis), name_of(axis));
        std::vector<int> places(static_cast<size_t>(ranks));
        std::vector<bool> seen(static_cast<size_t>(ranks));
        for (int r = 0; r < ranks; ++r) {
            if (seen[size_t(r)]) continue;
            const std::vector<int> members = columns(together(axis, r));
            for (size_t i = 0; i < members.size(); ++i) {
                places[size_t(members[i])] = int(i);
                seen[size_t(members[i])] = true;
            }
        }
        by_columns_[size_t(axis)] = std::move(places);
    }
}

int Grid::size(Axis axis) const {
    if (axis == Axis::shard) return shard_size_;
    int size = 1;
    for (const Axis a : order_)
        if (varies(axis, a)) size *= size_[size_t(a)];
    return axis == Axis::replicate ? size / shard_size_ : size;
}

AxisRank Grid::position(Axis axis, int rank) const {
    require(rank >= 0 && rank < ranks_, "rank %d of a mesh of %d", rank, ranks_);
    AxisRank place;
    for (const Axis a : order_)
        if (varies(axis, a)) {
            place.rank += coordinate(a, rank) * place.size;
            place.size *= size_[size_t(a)];
        }
    if (axis == Axis::shard) return {place.rank % shard_size_, shard_size_};
    if (axis == Axis::replicate) return {place.rank / shard_size_, place.size / shard_size_};
    return place;
}

AxisRank Grid::place(Axis axis, int rank) const {
    const AxisRank at = position(axis, rank);
    const std::vector<int>& columns = by_columns_[size_t(axis)];
    return columns.empty() ? at : AxisRank{columns[size_t(rank)], at.size};
}

std::vector<int> Grid::together(Axis axis, int rank) const {
    // Positions on the axes that vary: those of the group begin at `from`, `step` apart.
    const int from = axis == Axis::shard       ? position(Axis::replicate, rank).rank * shard_size_
                     : axis == Axis::replicate ? position(Axis::shard, rank).rank
                                               : 0;
    const int step = axis == Axis::replicate ? shard_size_ : 1;
    int fixed = rank;
    for (const Axis a : order_)
        if (varies(axis, a)) fixed -= coordinate(a, rank) * stride_[size_t(a)];
    std::vector<int> list(static_cast<size_t>(size(axis)), fixed);
    for (size_t i = 0; i < list.size(); ++i) {
        int rest = from + int(i) * step;
        for (const Axis a : order_)
            if (varies(axis, a)) {
                list[i] += rest % size_[size_t(a)] * stride_[size_t(a)];
                rest /= size_[size_t(a)];
            }
    }
    std::ranges::sort(list);
    return list;
}

std::vector<int> Grid::members(Axis axis, int rank) const {
    std::vector<int> list = together(axis, rank);
    return by_columns_[size_t(axis)].empty() ? list : columns(std::move(list));
}

// ---- nodes ----------------------------------------------------------------------------------------------------------

// The members' ranks by node, nodes in ascending order of their first rank.
static std::vector<std::vector<int>> rows_of(const std::vector<int>& members, const std::vector<int>& nodes) {
    std::map<int, size_t> row_of;
    std::vector<std::vector<int>> rows;
    for (const int r : members) {
        const auto [row, is_new] = row_of.try_emplace(nodes.empty() ? 0 : nodes[size_t(r)], rows.size());
        if (is_new) rows.emplace_back();
        rows[row->second].push_back(r);
    }
    return rows;
}

int Grid::nodes(Axis axis) const {
    int count = -1;
    std::vector<bool> seen(static_cast<size_t>(ranks_));
    for (int r = 0; r < ranks_ && !nodes_.empty(); ++r) {
        if (seen[size_t(r)]) continue;
        const std::vector<int> members = together(axis, r);
        for (const int m : members) seen[size_t(m)] = true;
        const auto rows = rows_of(members, nodes_);
        for (const auto& row : rows)
            if (row.size() != rows.front().size()) return 0;
        if (count >= 0 && int(rows.size()) != count) return 0;
        count = int(rows.size());
    }
    return count < 0 ? 1 : count;
}

std::vector<int> Grid::columns(std::vector<int> members) const {
    const auto rows = rows_of(members, nodes_);
    members.clear();
    for (size_t l = 0; l < rows.front().size(); ++l)
        for (const auto& row : rows) members.push_back(row[l]);
    return members;
}

}  // namespace rz
