#include "llama/tokenizer/unicode.h"

#include <algorithm>

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

}  // namespace

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
