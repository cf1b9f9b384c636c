#include "comm/layout_text.h"

#include <algorithm>
#include <set>

#include "kernels/runtime/check.h"

namespace rz {

// The ranks of one group of an axis, by its smallest.
static std::vector<std::vector<int>> groups_of(const Grid& grid, Axis axis) {
    std::vector<std::vector<int>> groups;
    for (int r = 0; r < grid.ranks(); ++r)
        if (const std::vector<int> members = grid.members(axis, r); members.front() == r) groups.push_back(members);
    return groups;
}

static std::string axes_text(const Grid& grid) {
    std::string text;
    for (const Axis axis : grid.order())
        if (grid.size(axis) > 1)
            text += (text.empty() ? "" : " x ") + std::string(name_of(axis)) + format(" %d", grid.size(axis));
    return text;
}

// One stage: its data ranks in order, each the ranks that hold its parts of tensors and of sequences.
static std::string stage_text(const Grid& grid, int stage) {
    std::vector<std::vector<int>> parts(static_cast<size_t>(grid.size(Axis::dp)));
    for (int r = 0; r < grid.ranks(); ++r)
        if (grid.place(Axis::pp, r).rank == stage) parts[size_t(grid.place(Axis::dp, r).rank)].push_back(r);
    std::string text;
    for (const std::vector<int>& ranks : parts) {
        std::string group;
        for (const int r : ranks) group += (group.empty() ? "" : " ") + std::to_string(r);
        text += (text.empty() ? "" : " ") + (ranks.size() > 1 ? "[" + group + "]" : group);
    }
    return text;
}

std::vector<std::string> layout_text(const Grid& grid, const std::vector<std::string>& hosts) {
    require(int(hosts.size()) == grid.ranks(), "%zu hosts of %d ranks", hosts.size(), grid.ranks());
    const size_t different = std::set<std::string>(hosts.begin(), hosts.end()).size();
    std::vector<std::string> lines = {format("axes %s, neighbouring ranks first, on %zu host%s",
                                             axes_text(grid).c_str(), different, different == 1 ? "" : "s")};
    constexpr int kMostDrawn = 64;
    if (grid.ranks() <= kMostDrawn)
        for (int s = 0; s < grid.size(Axis::pp); ++s) lines.push_back(format("pp %d: ", s) + stage_text(grid, s));
    if (different == 1) return lines;
    std::string crossing;
    for (const Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) {
        if (grid.size(axis) == 1) continue;
        const auto groups = groups_of(grid, axis);
        const auto leaves = std::count_if(groups.begin(), groups.end(), [&](const std::vector<int>& members) {
            return std::any_of(members.begin(), members.end(),
                               [&](int r) { return hosts[size_t(r)] != hosts[size_t(members.front())]; });
        });
        crossing += (crossing.empty() ? "" : ", ") + format("%s %d of %zu", name_of(axis), int(leaves), groups.size());
    }
    lines.push_back("groups on several hosts: " + crossing);
    return lines;
}

}  // namespace rz
