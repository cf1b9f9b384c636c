#include "kernels/fp8/quantise_mx.h"

#include <algorithm>

#include "kernels/checks.h"

namespace rz {

// One of the two outputs: a matrix (outer, inner) whose element (i, k) is x[i * row + k * column].
template <class T>
static void quantise_matrix(uint8_t* y, uint8_t* scales, const T* x, int64_t row, int64_t column, int64_t outer,
                            int64_t inner) {
#pragma omp parallel for schedule(static) if (outer * inner >= kSerialBelow)
    for (int64_t i = 0; i < outer; ++i)
        for (int64_t k = 0; k < inner; k += kMxTile) {
            const T* tile = x + i * row + k * column;
            uint32_t amax = 0;
            for (int64_t j = 0; j < kMxTile; ++j)
                amax = std::max(amax, std::bit_cast<uint32_t>(float(tile[j * column])) & 0x7fffffffu);
            const uint8_t scale = mx_scale(amax);
            const float factor = mx_factor(scale);
            scales[mx_scale_at(inner, i, k / kMxTile)] = scale;
            for (int64_t j = 0; j < kMxTile; ++j)
                y[i * inner + k + j] = to_fp8<Fp8::e4m3>(float(tile[j * column]) * factor);
        }
}

void quantise_mx_cpu(const QuantiseMx& a) {
    with_dtype(a.dtype, [&]<class T>() {
        const T* x = static_cast<const T*>(a.x);
        if (a.y) quantise_matrix(a.y, a.scales, x, a.columns, 1, a.rows, a.columns);
        if (a.y_t) quantise_matrix(a.y_t, a.scales_t, x, 1, a.columns, a.columns, a.rows);
    });
}

void quantise_mx(Stream& stream, const QuantiseMx& a) {
    const char* op = "quantise_mx";
    require(a.rows >= 0 && a.columns >= 0 && a.rows % kMxMultiple == 0 && a.columns % kMxMultiple == 0,
            "%s: %ld x %ld; both must be multiples of %ld", op, a.rows, a.columns, kMxMultiple);
    if (a.rows == 0 || a.columns == 0) return;
    check_pointer(op, "x", a.x, 16);
    require(a.y || a.y_t, "%s: neither y nor y_t is set; set at least one", op);
    if (a.y) check_pointer(op, "y", a.y, 16), check_pointer(op, "scales", a.scales, 16);
    if (a.y_t) check_pointer(op, "y_t", a.y_t, 16), check_pointer(op, "scales_t", a.scales_t, 16);
    stream.run(a, quantise_mx_cpu, RZ_CUDA_OP(quantise_mx_cuda));
}

}  // namespace rz
