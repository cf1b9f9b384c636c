#include "llama/tokenizer/unicode.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace rz::unicode {
namespace {

bool contains(const CodeRange* table, int size, uint32_t c) {
    const CodeRange* after = std::upper_bound(
        table, table + size, c, [](uint32_t value, const CodeRange& range) { return value < range.first; });
    return after != table && c <= after[-1].last;
}

bool is_space(uint32_t c) {
    return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

constexpr uint32_t kHangul = 0xac00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11a7;
constexpr uint32_t kVowels = 21, kTails = 28, kSyllables = 19 * kVowels * kTails;

uint8_t combining_class(uint32_t c) {
    const CombiningRange* after =
        std::upper_bound(kCombining, kCombining + kCombiningSize, c,
                         [](uint32_t value, const CombiningRange& range) { return value < range.first; });
    return after != kCombining && c <= after[-1].last ? after[-1].combining_class : 0;
}

void decompose(uint32_t c, std::vector<uint32_t>& out) {
    if (c >= kHangul && c < kHangul + kSyllables) {
        const uint32_t s = c - kHangul;
        out.push_back(kHangulL + s / (kVowels * kTails));
        out.push_back(kHangulV + s / kTails % kVowels);
        if (s % kTails != 0) out.push_back(kHangulT + s % kTails);
        return;
    }
    const Decomposition* end = kDecompositions + kDecompositionsSize;
    const Decomposition* d = std::lower_bound(kDecompositions, end, c,
                                              [](const Decomposition& x, uint32_t value) { return x.code < value; });
    if (d == end || d->code != c) return out.push_back(c);
    decompose(d->first, out);
    if (d->second) decompose(d->second, out);
}

// NFC of two characters; 0: none.
uint32_t composed(uint32_t a, uint32_t b) {
    if (a >= kHangulL && a < kHangulL + 19 && b >= kHangulV && b < kHangulV + kVowels)
        return kHangul + ((a - kHangulL) * kVowels + b - kHangulV) * kTails;
    if (a >= kHangul && a < kHangul + kSyllables && (a - kHangul) % kTails == 0 && b > kHangulT &&
        b < kHangulT + kTails)
        return a + b - kHangulT;
    static const auto pairs = [] {
        std::unordered_map<uint64_t, uint32_t> all;
        for (int i = 0; i < kDecompositionsSize; ++i)
            if (const Decomposition& d = kDecompositions[i]; d.composes)
                all[uint64_t(d.first) << 32 | d.second] = d.code;
        return all;
    }();
    const auto found = pairs.find(uint64_t(a) << 32 | b);
    return found == pairs.end() ? 0 : found->second;
}

// Composes characters that are decomposed already
void compose(std::vector<uint32_t>& text) {
    for (size_t begin = 0; begin < text.size();) {  // marks by their classes, those of one class as they were
        size_t end = begin;
        while (end < text.size() && combining_class(text[end]) != 0) ++end;
        std::stable_sort(text.begin() + long(begin), text.begin() + long(end),
                         [](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
        begin = end + 1;
    }
    size_t size = 0, starter = SIZE_MAX;
    int last = -1;  // class of the character before, after the starter; -1: none there
    for (const uint32_t c : text) {
        const int k = combining_class(c);
        const uint32_t joined = starter < size && (last < k) ? composed(text[starter], c) : 0;
        if (joined) {
            text[starter] = joined;
            continue;
        }
        if (k == 0)
            starter = size, last = -1;
        else
            last = k;
        text[size++] = c;
    }
    text.resize(size);
}

}  // namespace

std::string nfc(std::string_view text) {
    std::string out;
    std::vector<uint32_t> characters;
    bool changes = false;  // below U+0300 nothing does
    const auto flush = [&](size_t begin, size_t end) {
        if (changes) {
            std::vector<uint32_t> parts;
            for (const uint32_t c : characters) decompose(c, parts);
            compose(parts);
            for (const uint32_t c : parts) append_utf8(out, c);
        } else {
            out += text.substr(begin, end - begin);
        }
        characters.clear(), changes = false;
    };
    size_t begin = 0, at = 0;
    while (at < text.size()) {
        const Utf8Char c = next_char(text, at);
        at += size_t(c.bytes);
        if (c.status == Utf8::kValid) {
            characters.push_back(c.code_point), changes |= c.code_point >= 0x300;
            continue;
        }
        flush(begin, at - size_t(c.bytes));
        out += text.substr(at - size_t(c.bytes), size_t(c.bytes));
        begin = at;
    }
    flush(begin, at);
    return out;
}

CharClass char_class(uint32_t c) {
    if (c < 0x80) {
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return CharClass::kLetter;
        if (c >= '0' && c <= '9') return CharClass::kNumber;
        return is_space(c) ? CharClass::kSpace : CharClass::kOther;
    }
    if (is_space(c)) return CharClass::kSpace;
    if (contains(kLetters, kLettersSize, c)) return CharClass::kLetter;
    return contains(kNumbers, kNumbersSize, c) ? CharClass::kNumber : CharClass::kOther;
}

bool is_python_space(uint32_t c) { return is_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string Utf8Stream::push(std::string_view bytes) {
    held_ += bytes;
    std::string out;
    size_t at = 0;
    while (at < held_.size()) {
        const Utf8Char c = next_char(held_, at);
        if (c.status == Utf8::kIncomplete) break;
        if (c.status == Utf8::kValid) {
            out.append(held_, at, c.bytes);
        } else {
            out += kReplacement;
        }
        at += c.bytes;
    }
    held_.erase(0, at);
    return out;
}

std::string Utf8Stream::finish() {
    const bool any = !held_.empty();
    held_.clear();
    return any ? std::string(kReplacement) : std::string();
}

}  // namespace rz::unicode
