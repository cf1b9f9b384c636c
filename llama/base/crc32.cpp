#include "llama/base/crc32.h"

#include <array>

namespace rz {

// Polynomial: reflected.
template <uint32_t Polynomial>
static uint32_t crc(std::string_view bytes, uint32_t before) {
    static constexpr auto kTable = [] {
        std::array<uint32_t, 256> table{};
        for (uint32_t i = 0; i < 256; ++i) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? Polynomial : 0);
            table[i] = c;
        }
        return table;
    }();
    uint32_t c = ~before;
    for (const char b : bytes) c = (c >> 8) ^ kTable[(c ^ uint8_t(b)) & 0xff];
    return ~c;
}

uint32_t crc32(std::string_view bytes, uint32_t before) { return crc<0xedb88320>(bytes, before); }
uint32_t crc32c(std::string_view bytes) { return crc<0x82f63b78>(bytes, 0); }

}  // namespace rz
