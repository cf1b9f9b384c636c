#pragma once
// zlib's CRC-32, of what other programs' files carry one.

#include <cstdint>
#include <string_view>

namespace rz {

uint32_t crc32(std::string_view bytes);

}  // namespace rz
