#pragma once
// Text for messages, lists in text, and UTF-8.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rz {

// The candidate with the fewest edits to `text`, for error messages; empty if there are none.
std::string nearest_name(std::string_view text, std::span<const std::string> candidates);
// The same, if it is near enough to be what was meant: at most a third of the longer of the two is edited. Else empty.
std::string similar_name(std::string_view text, std::span<const std::string> candidates);

// "a,b" as a and b; "" as one part that is empty.
std::vector<std::string> split(std::string_view text, char separator);
// The parts one after the other with what stands between two of them.
std::string joined(std::span<const std::string> parts, const char* between = ", ");
std::string joined(std::span<const int64_t> numbers, const char* between = ", ");

namespace unicode {

enum class Utf8 : uint8_t { kValid, kInvalid, kIncomplete };
struct Utf8Char {
    uint32_t code_point;  // U+FFFD unless valid
    int bytes;            // >= 1: of the character, or of the longest part that could have begun one
    Utf8 status;          // kIncomplete: the text ends inside a sequence that is valid so far
};
// The character at text[at]; at < text.size(). Refuses overlong forms, surrogates and values past U+10FFFF.
Utf8Char next_char(std::string_view text, size_t at);

void append_utf8(std::string& out, uint32_t code_point);

}  // namespace unicode

}  // namespace rz
