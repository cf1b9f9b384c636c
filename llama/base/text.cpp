#include "llama/base/text.h"

#include <algorithm>

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

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= text.size(); at += parts.back().size() + 1)
        parts.emplace_back(text.substr(at, text.find(separator, at) - at));
    return parts;
}

std::string joined(std::span<const std::string> parts, const char* between) {
    std::string text;
    for (const std::string& part : parts) text += (&part == parts.data() ? "" : between) + part;
    return text;
}

std::string joined(std::span<const int64_t> numbers, const char* between) {
    std::vector<std::string> parts;
    for (const int64_t n : numbers) parts.push_back(std::to_string(n));
    return joined(parts, between);
}

}  // namespace rz
