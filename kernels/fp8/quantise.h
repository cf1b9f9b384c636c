#pragma once
// From 16 or 32 bits to 8, with one scale for the whole tensor: scale = largest number of the type / largest magnitude
// of the tensor (current scaling), y = fp8(x * scale), x ~ y / scale.
//
// Two roundings, both defined: x * scale in fp32, then to fp8 (fp8.h). The same bits on both backends and on every run.
//
// What is not finite stays visible: saturation would make an infinity the largest number of the type, and a maximum by
// comparison drops a NaN. Magnitudes are compared as integers, in which infinity and NaN are above all numbers, and
// where one is met `inverse` is NaN: so is every product with the tensor.

#include "kernels/fp8/fp8.h"
#include "kernels/philox.h"
#include "kernels/runtime/device.h"

namespace rz {

// What a product needs of an operand's scale. cuBLASLt reads `inverse` and takes 16-byte aligned addresses only.
struct alignas(16) Fp8Scale {
    float inverse;  // 1 / scale: what a decoded value is multiplied by
    uint32_t amax;  // bits of the largest magnitude
    float unused[2];
};

struct AbsMax {
    Fp8Scale* scale;  // (1) amax = max(amax, magnitudes of x): zero it first
    const void* x;    // (n) dtype, 16-byte aligned
    int64_t n;
    DType dtype;
};

struct Quantise {
    uint8_t* y = nullptr;    // (rows, columns) =   16-byte aligned; optional
    uint8_t* y_t = nullptr;  // (columns, rows) =   16-byte aligned; optional: the same bytes transposed
    Fp8Scale* scale;         // (1) reads amax, inverse =
    const void* x;           // (rows, columns) dtype, 16-byte aligned; must not overlap y and y_t
    int64_t rows, columns;   // multiples of 16; without y_t their product is
    Fp8 type;
    DType dtype;
};

// Bytes: y (columns, rows) = x (rows, columns) transposed; sides are multiples of 16, both 16-byte aligned.
struct Transpose8 {
    uint8_t* y;
    const uint8_t* x;
    int64_t rows, columns;
};

void abs_max(Stream&, const AbsMax&);
void quantise(Stream&, const Quantise&);
void transpose8(Stream&, const Transpose8&);

void abs_max_cpu(const AbsMax&);
void quantise_cpu(const Quantise&);
void transpose8_cpu(const Transpose8&);
void abs_max_cuda(const AbsMax&, CudaStream);
void quantise_cuda(const Quantise&, CudaStream);
void transpose8_cuda(const Transpose8&, CudaStream);

// By IEEE division, the same everywhere. A tensor of zeros has scale 1; one so small that the scale would be beyond
// 2^126 has that, so that the inverse is a normal number. NaN where amax is not finite.
RZ_HD float fp8_scale(float largest, uint32_t amax) {
    if (amax == 0) return 1;
    if (amax >= 0x7f800000u) return std::bit_cast<float>(0x7fc00000u);
    const float scale = largest / std::bit_cast<float>(amax);
    return scale < 0x1p126f ? scale : 0x1p126f;
}

}  // namespace rz
