#include "kernels/attention/attention_order.h"

#include <algorithm>
#include <vector>

#include "kernels/runtime/check.h"

namespace rz {

double balance(const WorkOrder& order, const WorkShape& shape) {
    std::vector<double> load(size_t(order.blocks));
    double total = 0;
    for (int block = 0; block < order.blocks; ++block)
        for (int round = 0; order.item(block, round) < order.items(); ++round)
            load[size_t(block)] += shape.time(order.at(order.item(block, round)).rank);
    for (const double l : load) total += l;
    return total / (double(order.blocks) * *std::max_element(load.begin(), load.end()));
}

WorkOrder choose_work_order(const WorkShape& shape, int blocks, int64_t l2_bytes) {
    require(shape.heads * shape.tiles < int64_t(1) << 30, "attention: %lld heads of %lld tiles are too many",
            (long long)shape.heads, (long long)shape.tiles);
    const int heads = int(shape.heads), together = int(shape.together), tiles = int(shape.tiles);
    const int64_t fit = std::max<int64_t>(1, l2_bytes / 2 / std::max<int64_t>(1, shape.bytes));
    const int groups = heads / together, most = int(std::min<int64_t>(groups, fit));
    WorkOrder best{};
    double best_score = 0;
    const auto consider = [&](int section, double weight) {
        for (const bool there_and_back : {true, false})
            for (const bool snake : {true, false}) {
                const WorkOrder order{heads, section * together, tiles, std::min(blocks, heads * tiles), there_and_back,
                                      snake};
                const double score = weight * balance(order, shape);
                if (score > best_score) best = order, best_score = score;
            }
    };
    // A long sequence is balanced in any order; trying many would only take time.
    const int choices = int64_t(heads) * tiles > 65536 ? 1 : std::min(12, most - most / 2);
    for (int i = 0; i < choices; ++i) consider(most - i * (most - most / 2) / choices, 1);
    if (most < groups) consider(groups, 0.9);
    return best;
}

}  // namespace rz
