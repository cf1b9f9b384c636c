#pragma once
// Text for messages.

#include <span>
#include <string>
#include <string_view>

namespace rz {

// The candidate with the fewest edits to `text`, for error messages; empty if there are none.
std::string nearest_name(std::string_view text, std::span<const std::string> candidates);
// The same, if it is near enough to be what was meant: at most a third of the longer of the two is edited. Else empty.
std::string similar_name(std::string_view text, std::span<const std::string> candidates);

}  // namespace rz
