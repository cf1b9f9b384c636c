#pragma once
// Text for messages, and lists in text.

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

}  // namespace rz
