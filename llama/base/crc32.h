#pragma once
// zlib's CRC-32, of what other programs' files carry one.

#include <cstdint>
#include <string_view>

namespace rz {

// before: of the bytes that come before these.
uint32_t crc32(std::string_view bytes, uint32_t before = 0);

}  // namespace rz
