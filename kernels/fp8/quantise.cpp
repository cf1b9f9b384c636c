#include "kernels/fp8/quantise.h"

#include <algorithm>

#include "kernels/magnitude.h"

namespace rz {

void abs_max_cpu(const AbsMax& a) {
    constexpr int64_t kRow = 4096;
    const int64_t rows = a.n / kRow, rest = a.n % kRow;
    join_magnitudes(&a.scale->amax, a.dtype, a.x, rows, kRow, kRow);
    const void* last = static_cast<const char*>(a.x) + rows * kRow * size_of(a.dtype);
    join_magnitudes(&a.scale->amax, a.dtype, last, 1, rest, rest);
}

constexpr int64_t kTile = 64;  // rows whose codes are transposed at a time, while they are in the cache

template <Fp8 kType, class T>
static void quantise_rows(const Quantise& a, float scale) {
#pragma omp parallel for schedule(static) if (a.rows * a.columns >= kSerialBelow)
    for (int64_t r0 = 0; r0 < a.rows; r0 += kTile) {
        const int64_t end = std::min(a.rows, r0 + kTile);
        for (int64_t c0 = 0; c0 < a.columns; c0 += kTile) {
            const int64_t columns = std::min(a.columns - c0, kTile);
            for (int64_t r = r0; r < end; ++r) {
                const T* x = static_cast<const T*>(a.x) + r * a.columns + c0;
                uint8_t codes[kTile];
                for (int64_t c = 0; c < columns; ++c) codes[c] = to_fp8<kType>(float(x[c]) * scale);
                if (a.y) std::copy_n(codes, columns, a.y + r * a.columns + c0);
                for (int64_t c = 0; a.y_t && c < columns; ++c) a.y_t[(c0 + c) * a.rows + r] = codes[c];
            }
        }
    }
}

void quantise_cpu(const Quantise& a) {
    const float scale = fp8_scale(fp8_max(a.type), a.scale->amax);
    a.scale->inverse = fp8_inverse(scale);
    with_dtype(a.dtype, [&]<class T>() {
        if (a.type == Fp8::e4m3)
            quantise_rows<Fp8::e4m3, T>(a, scale);
        else
            quantise_rows<Fp8::e5m2, T>(a, scale);
    });
}

void transpose8_cpu(const Transpose8& a) {
#pragma omp parallel for schedule(static) if (a.rows * a.columns >= kSerialBelow)
    for (int64_t r0 = 0; r0 < a.rows; r0 += kTile)
        for (int64_t c = 0; c < a.columns; ++c)
            for (int64_t r = r0; r < std::min(a.rows, r0 + kTile); ++r) a.y[c * a.rows + r] = a.x[r * a.columns + c];
}

static void check_sides(const char* op, int64_t rows, int64_t columns) {
    require(rows >= 0 && columns >= 0 && rows % 16 == 0 && columns % 16 == 0,
            "%s: %ld x %ld; both must be multiples of 16, as fp8 products need", op, rows, columns);
}

void abs_max(Stream& stream, const AbsMax& a) {
    const char* op = "abs_max";
    check_size(op, "n", a.n, 0);
    if (a.n == 0) return;
    check_pointers(op, {{"scale", a.scale, 16}, {"x", a.x, 16}});
    stream.run(a, abs_max_cpu, RZ_CUDA_OP(abs_max_cuda));
}

void quantise(Stream& stream, const Quantise& a) {
    const char* op = "quantise";
    if (a.y_t) check_sides(op, a.rows, a.columns);
    require(a.rows >= 0 && a.columns >= 0 && a.rows * a.columns % 16 == 0,
            "%s: %ld x %ld elements; their number must be a multiple of 16", op, a.rows, a.columns);
    if (a.rows == 0 || a.columns == 0) return;
    check_pointers(op, {{"scale", a.scale, 16}, {"x", a.x, 16}});
    require(a.y || a.y_t, "%s: neither y nor y_t is set; set at least one", op);
    if (a.y) check_pointer(op, "y", a.y, 16);
    if (a.y_t) check_pointer(op, "y_t", a.y_t, 16);
    stream.run(a, quantise_cpu, RZ_CUDA_OP(quantise_cuda));
}

void transpose8(Stream& stream, const Transpose8& a) {
    const char* op = "transpose8";
    check_sides(op, a.rows, a.columns);
    if (a.rows == 0 || a.columns == 0) return;
    check_pointers(op, {{"y", a.y, 16}, {"x", a.x, 16}});
    stream.run(a, transpose8_cpu, RZ_CUDA_OP(transpose8_cuda));
}

}  // namespace rz
