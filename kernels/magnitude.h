#pragma once
// The largest magnitude of what an op stores, for quantisation to fp8 (fp8/quantise.h), found where it is produced:
// ops that have an `amax` write max(*amax, magnitudes of their output as stored), the bits of a float. As integers
// infinity and NaN are above all numbers and the order of a maximum does not matter, so *amax has the same bits on both
// backends and every run, but for a NaN's payload. Set it to zero before the first of the ops.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/checks.h"

namespace rz {

template <class T>
uint32_t magnitude(T x) {
    return std::bit_cast<uint32_t>(float(x)) & 0x7fffffffu;
}

// Joins `rows` rows of `columns` elements, `stride` apart.
inline void join_magnitudes(uint32_t* amax, DType dtype, const void* x, int64_t rows, int64_t columns, int64_t stride) {
    with_dtype(dtype, [&]<class T>() {
        uint32_t most = *amax;
#pragma omp parallel for schedule(static) reduction(max : most) if (rows * columns >= kSerialBelow)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < columns; ++c)
                most = std::max(most, magnitude(static_cast<const T*>(x)[r * stride + c]));
        *amax = most;
    });
}

}  // namespace rz
