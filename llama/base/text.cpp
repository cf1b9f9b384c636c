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

namespace unicode {

Utf8Char next_char(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return uint32_t(uint8_t(text[i])); };
    const uint32_t first = byte(at);
    if (first < 0x80) return {first, 1, Utf8::kValid};
    const int length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (length == 0) return {0xfffd, 1, Utf8::kInvalid};
    uint32_t code = first & (0x7f >> length);
    for (int i = 1; i < length; ++i) {
        if (at + i >= text.size()) return {0xfffd, i, Utf8::kIncomplete};
        const uint32_t b = byte(at + i);
        uint32_t low = 0x80, high = 0xbf;  // the second byte excludes overlong forms, surrogates, > U+10FFFF
        if (i == 1 && first == 0xe0) low = 0xa0;
        if (i == 1 && first == 0xed) high = 0x9f;
        if (i == 1 && first == 0xf0) low = 0x90;
        if (i == 1 && first == 0xf4) high = 0x8f;
        if (b < low || b > high) return {0xfffd, i, Utf8::kInvalid};
        code = code << 6 | (b & 0x3f);
    }
    return {code, length, Utf8::kValid};
}

void append_utf8(std::string& out, uint32_t c) {
    if (c < 0x80) {
        out += char(c);
    } else if (c < 0x800) {
        out += {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
        out += {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 0x3f)), char(0x80 | (c & 0x3f))};
    } else {
        out += {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 0x3f)), char(0x80 | (c >> 6 & 0x3f)),
                char(0x80 | (c & 0x3f))};
    }
}

}  // namespace unicode

}  // namespace rz
