#include "kernels/runtime/check.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "kernels/runtime/request.h"

namespace rz {

static std::string vformat(const char* fmt, va_list args) {
    va_list again;
    va_copy(again, args);
    const int n = std::vsnprintf(nullptr, 0, fmt, args);
    std::string text(n > 0 ? size_t(n) : 0, '\0');
    if (n > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, again);
    va_end(again);
    return text;
}

std::string format(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vformat(fmt, args);
    va_end(args);
    return text;
}

void fail(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vformat(fmt, args);
    va_end(args);
    throw Error(text);
}

void refuse(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string text = vformat(fmt, args);
    va_end(args);
    throw RequestError(text);
}

namespace {

struct Character {
    size_t bytes = 0;  // 0: no UTF-8
    uint32_t code = 0;
    bool cut = false;  // the text ends within it
};

Character character_at(std::string_view text, size_t at) {
    const uint8_t lead = uint8_t(text[at]);
    if (lead < 0x80) return {1, lead};
    const size_t bytes = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (bytes == 0) return {};
    uint32_t code = lead & (0x7f >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
        if (at + i == text.size()) return {0, 0, true};
        const uint8_t next = uint8_t(text[at + i]);
        if ((next & 0xc0) != 0x80) return {};
        code = code << 6 | (next & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
    return {bytes, code};
}

bool is_shown(uint32_t c) {
    if (c < 0x20) return c == '\n' || c == '\t';
    const bool turns =
        c == 0x061c || (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    return !turns && (c < 0x7f || c > 0x9f);
}

// The length of a colour that this program prints, at text[at]; 0: it is none.
size_t colour_at(std::string_view text, size_t at, bool& cut) {
    for (const std::string_view known :
         {"\x1b[0m", "\x1b[1m", "\x1b[1;32m", "\x1b[44;97m", "\x1b[42;30m", "\x1b[43;30m", "\x1b[46;30m"}) {
        const std::string_view found = text.substr(at, known.size());
        if (found == known) return known.size();
        cut = cut || (at + found.size() == text.size() && known.starts_with(found));
    }
    return 0;
}

}  // namespace

std::string PrintablePieces::take(bool last) {
    std::string out;
    size_t at = 0;
    while (at < pending_.size()) {
        bool cut = false;
        const size_t colour = colours_ && pending_[at] == '\x1b' ? colour_at(pending_, at, cut) : 0;
        const Character c = character_at(pending_, at);
        if ((cut || c.cut) && !last) break;
        const size_t bytes = colour > 0 ? colour : std::max<size_t>(c.bytes, 1);
        if (colour > 0 || (c.bytes > 0 && is_shown(c.code)))
            out.append(pending_, at, bytes);
        else
            out += c.bytes > 1 ? format("\\u%04x", c.code) : format("\\x%02x", unsigned(uint8_t(pending_[at])));
        at += bytes;
    }
    pending_.erase(0, at);
    return out;
}

std::string PrintablePieces::feed(std::string_view piece) {
    pending_ += piece;
    return take(false);
}

std::string PrintablePieces::finish() { return take(true); }

std::string printable(std::string_view text) {
    PrintablePieces all;
    std::string out = all.feed(text);
    return out + all.finish();
}

std::string printable_line(std::string_view text) {
    std::string out;
    for (const char c : printable(text)) out += c == '\n' ? "\\x0a" : c == '\t' ? "\\x09" : std::string(1, c);
    return out;
}

int64_t checked_mul(int64_t a, int64_t b, const char* what) {
    int64_t out = 0;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &out))
        fail("%s: %ld x %ld does not fit a 64-bit size", what, a, b);
    return out;
}

int64_t checked_add(int64_t a, int64_t b, const char* what) {
    int64_t out = 0;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &out))
        fail("%s: %ld + %ld does not fit a 64-bit size", what, a, b);
    return out;
}

std::string human_bytes(int64_t bytes) {
    static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = double(bytes);
    int unit = 0;
    while (unit < 5 && (value >= 1024 || value <= -1024)) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? format("%ld B", bytes) : format("%.*f %s", value < 10 ? 2 : 1, value, kUnits[unit]);
}

}  // namespace rz
