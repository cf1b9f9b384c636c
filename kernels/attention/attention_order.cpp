#include "kernels/attention/attention_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "kernels/runtime/check.h"

namespace rz {

double balance(const WorkOrder& order, const WorkShape& shape) {
    std::priority_queue<double, std::vector<double>, std::greater<>> ends;
    for (int block = 0; block < order.blocks; ++block) ends.push(0);
    double total = 0, last = 0;
    for (int item = 0; item < order.items(); ++item) {
        const double time = shape.time(order.at(item).rank), end = ends.top() + time;
        ends.pop(), ends.push(end);
        total += time, last = std::max(last, end);
    }
    return total / (double(order.blocks) * last);
}

WorkOrder choose_work_order(const WorkShape& shape, int blocks, int64_t l2_bytes) {
    require(shape.heads * shape.tiles < int64_t(1) << 30, "attention: %ld heads of %ld tiles are too many", shape.heads,
            shape.tiles);
    const int heads = int(shape.heads), together = int(shape.together), tiles = int(shape.tiles);
    const int64_t fit = std::max<int64_t>(1, l2_bytes / 2 / std::max<int64_t>(1, shape.bytes));
    const int groups = heads / together, most = int(std::min<int64_t>(groups, fit));
    const auto order = [&](int section) {
        return WorkOrder{heads, section * together, tiles, std::min(blocks, heads * tiles)};
    };
    // A long sequence is balanced in any order; trying many would only take time.
    if (int64_t(heads) * tiles > 65536) return order(most);
    WorkOrder best{};
    double best_score = 0;
    const auto consider = [&](int section, double weight) {
        const double score = weight * balance(order(section), shape);
        if (score > best_score) best = order(section), best_score = score;
    };
    const int choices = std::min(12, most - most / 2);
    for (int i = 0; i < choices; ++i) consider(most - i * (most - most / 2) / choices, 1);
    if (most < groups) consider(groups, 0.9);
    return best;
}

}  // namespace rz
