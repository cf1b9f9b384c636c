#include "llama/model/stage_cut.h"

#include <algorithm>
#include <limits>

#include "kernels/runtime/request.h"
#include "llama/base/text.h"

namespace rz {

std::vector<UnitFlops> unit_flops(const ModelConfig& c, int64_t T, Recompute recompute) {
    const int64_t head = checked_mul(c.vocab, c.dim, "head");
    const int64_t block = (c.matmul_parameters() - head) / c.layers;
    const int64_t scores = checked_mul(c.q_rows(), T, "attention");  // causal: 2 matmuls of half the square
    const int64_t forward = checked_mul(2, checked_add(block, scores, "block"), "block");
    int64_t again = recompute == Recompute::block ? forward : 0;
    if (has(recompute, Recompute::attention))
        again += 2 * checked_add(checked_mul(c.qkv_rows(), c.dim, "q, k and v"), scores, "attention");
    if (has(recompute, Recompute::mlp)) again += 2 * checked_mul(2 * c.ffn, c.dim, "gate and up");
    std::vector<UnitFlops> out;
    out.push_back({0, 0, 0});
    for (int64_t l = 0; l < c.layers; ++l) out.push_back({forward, 2 * block + 4 * scores + again, 2 * block});
    out.push_back({0, 6 * head, 0});
    return out;
}

std::vector<StageUnits> cut_stages(const std::vector<UnitFlops>& units, int stages) {
    const int blocks = int(units.size()) - 2;
    require_request(stages >= 1 && stages <= blocks,
                    "%d stages of %d blocks: each stage needs one\n  nearest: %d stages", stages, blocks, blocks);
    std::vector<double> before(size_t(blocks) + 1);  // cost of the blocks before, exact: below 2^53
    for (int b = 0; b < blocks; ++b) {
        int64_t cost = units[size_t(b) + 1].total();
        if (b == 0) cost += units.front().total();
        if (b == blocks - 1) cost += units.back().total();
        before[size_t(b) + 1] = before[size_t(b)] + double(cost);
    }
    const auto cost = [&](int first, int end) { return before[size_t(end)] - before[size_t(first)]; };
    constexpr double kNever = std::numeric_limits<double>::infinity();
    // best[end]: of the first `end` blocks in s stages. First the least largest cost, then with that as the limit the
    // least sum of squares.
    double limit = kNever;
    std::vector<std::vector<int>> cut_at;
    for (const bool squares : {false, true}) {
        std::vector<double> best(size_t(blocks) + 1, kNever);
        best[0] = 0;
        cut_at.clear();
        for (int s = 1; s <= stages; ++s) {
            std::vector<double> next(size_t(blocks) + 1, kNever);
            auto& from = cut_at.emplace_back(size_t(blocks) + 1, -1);
            for (int end = s; end <= blocks; ++end)
                for (int first = s - 1; first < end; ++first) {
                    const double c = cost(first, end);
                    if (best[size_t(first)] == kNever || c > limit) continue;
                    const double total = squares ? best[size_t(first)] + c * c : std::max(best[size_t(first)], c);
                    if (total < next[size_t(end)]) next[size_t(end)] = total, from[size_t(end)] = first;
                }
            best = next;
        }
        if (!squares) limit = best[size_t(blocks)];
    }
    std::vector<StageUnits> out(static_cast<size_t>(stages));
    for (int s = stages, end = blocks; s > 0; --s) {
        const int first = cut_at[size_t(s) - 1][size_t(end)];
        out[size_t(s) - 1] = {s - 1, s == 1 ? 0 : first + 1, s == stages ? blocks + 1 : end};
        end = first;
    }
    return out;
}

std::vector<StageUnits> cut_stages(const std::vector<int64_t>& blocks_of, int64_t blocks, int stages) {
    const std::string asked = joined(blocks_of, ",");
    int64_t total = 0;
    for (const int64_t n : blocks_of) total = checked_add(total, n, "blocks");
    std::vector<int64_t> even_blocks;
    for (int s = 0; s < stages; ++s) even_blocks.push_back(blocks / stages + (s < blocks % stages ? 1 : 0));
    const std::string even = joined(even_blocks, ",");
    require_request(int(blocks_of.size()) == stages,
                    "a cut into %s blocks: these are %zu stages, there are %d\n  nearest: %s", asked.c_str(),
                    blocks_of.size(), stages, even.c_str());
    require_request(total == blocks, "a cut into %s blocks: these are %ld blocks, the model has %ld\n  nearest: %s",
                    asked.c_str(), total, blocks, even.c_str());
    std::vector<StageUnits> out;
    int next = 0;
    for (int s = 0; s < stages; ++s) {
        const int64_t n = blocks_of[size_t(s)];
        require_request(n > 0, "a cut into %s blocks: stage %d has none, and each needs one\n  nearest: %s",
                        asked.c_str(), s, even.c_str());
        const int units = int(n) + (s == 0) + (s == stages - 1);
        out.push_back({s, next, next + units - 1});
        next += units;
    }
    return out;
}

std::string text_of(const std::vector<StageUnits>& cut, int64_t blocks) {
    std::vector<int64_t> counts;
    for (const StageUnits& s : cut)
        counts.push_back(std::max<int64_t>(0, std::min<int64_t>(s.last_unit, blocks) - std::max(s.first_unit, 1) + 1));
    return joined(counts, ",");
}

PipelineCosts costs_of(const std::vector<StageUnits>& cut, const std::vector<UnitFlops>& units) {
    PipelineCosts costs;
    for (const StageUnits& s : cut) {
        UnitFlops sum{0, 0, 0};
        for (int u = s.first_unit; u <= s.last_unit; ++u) {
            const UnitFlops& f = units[size_t(u)];
            sum = {checked_add(sum.forward, f.forward, "stage"), checked_add(sum.input, f.input, "stage"),
                   checked_add(sum.weight, f.weight, "stage")};
        }
        costs.forward.push_back(sum.forward);
        costs.input.push_back(sum.input);
        costs.weight.push_back(sum.weight);
    }
    return costs;
}

}  // namespace rz
