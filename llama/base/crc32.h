#pragma once
// CRC-32, of what other programs' files carry one: zlib's, and Castagnoli's.

#include <cstdint>
#include <string_view>

namespace rz {

// before: of the bytes that come before these.
uint32_t crc32(std::string_view bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view bytes);

}  // namespace rz
