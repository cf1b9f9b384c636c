#pragma once
// Stochastic rounding (kernels/stochastic_rounding.h) in kernels.

#include "kernels/cuda/device_math.cuh"
#include "kernels/stochastic_rounding.h"

namespace rz {

// The words of kVec elements from a logical offset: whole groups, or one element of a group
template <int kVec>
__device__ __forceinline__ void random_words(uint32_t (&out)[kVec], uint64_t seed, int64_t offset, uint64_t stream) {
    const uint64_t group = uint64_t(offset) / 4;
    if constexpr (kVec % 4 == 0) {
#pragma unroll
        for (int j = 0; j < kVec; j += 4) {
            const PhiloxWords words = philox4x32(seed, group + j / 4, stream);
#pragma unroll
            for (int e = 0; e < 4; ++e) out[j + e] = words.w[e];
        }
    } else {
        static_assert(kVec == 1);
        const PhiloxWords words = philox4x32(seed, group, stream);
        const int e = int(offset % 4);
        out[0] = e == 0 ? words.w[0] : e == 1 ? words.w[1] : e == 2 ? words.w[2] : words.w[3];
    }
}

template <int kVec>
__device__ __forceinline__ void store_by_chance(__nv_bfloat16* p, const float (&x)[kVec], const uint32_t (&words)[kVec],
                                                int shift) {
    uint16_t bits[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) bits[e] = stochastic_bf16(x[e], words[e] >> shift);
    Pack<__nv_bfloat16, kVec> pack;
    memcpy(pack.words, bits, sizeof bits);
    pack.store(p);
}

}  // namespace rz
