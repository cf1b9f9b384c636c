#include "llama/base/text.h"

#include <algorithm>
#include <vector>

namespace rz {

// Levenshtein distance.
static size_t edits(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

std::string nearest_name(std::string_view text, std::span<const std::string> candidates) {
    const auto best = std::min_element(candidates.begin(), candidates.end(),
                                       [&](const auto& a, const auto& b) { return edits(text, a) < edits(text, b); });
    return best == candidates.end() ? "" : *best;
}

std::string similar_name(std::string_view text, std::span<const std::string> candidates) {
    const std::string best = nearest_name(text, candidates);
    return 3 * edits(text, best) <= std::max(text.size(), best.size()) ? best : "";
}

}  // namespace rz
