// The fake cuTensorMapEncodeTiled keeps this in the 128 opaque bytes of a CUtensorMap.
#pragma once

#include <cstdint>

namespace simt {

struct TensorMap {
    static constexpr uint32_t kMagic = 0x54414d50;
    uint32_t magic;
    uint16_t rank;
    uint8_t element;  // bytes
    uint8_t swizzle;  // 0 none, 1: 32, 2: 64, 3: 128 bytes
    char* base;
    uint32_t dim[5];
    uint16_t box[5];
    uint64_t stride[5];  // bytes; stride[0] is not used
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace simt
