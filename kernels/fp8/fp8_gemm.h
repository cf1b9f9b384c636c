#pragma once
// Row-major product of two fp8 matrices: C = a_scale * b_scale * A B^T + beta * C, with the scales' inverses (what a
// decoded code is multiplied by) read on the device; fp32 accumulation, one rounding to C. The one layout that every
// GPU with fp8 tensor cores takes; the three products of a linear layer all take it, from codes and transposed codes:
//
//   y = (x, w)        dx = (dy, w^T)        dw += (dy^T, x^T)
//
// CPU: codes are decoded to bf16, which holds them exactly, and multiplied as gemm.h does in bf16: the product of two
// codes is exact in fp32. CUDA: cuBLASLt, compute capability 8.9 and above, its algorithm chosen as gemm_tuning.h says.
// The same call on the same machine gives the same bits.

#include "kernels/fp8/quantise.h"

namespace rz {

struct Fp8Gemm {
    void* c;                            // (M, N) c_dtype     =, or += with beta 1; 16-byte aligned, like a and b
    const uint8_t* a;                   // (M, K) a_type
    const uint8_t* b;                   // (N, K) b_type
    const Fp8Scale *a_scale, *b_scale;  // (1) on the device
    int64_t M, N, K;                    // multiples of 16
    float beta = 0;
    Fp8 a_type = Fp8::e4m3, b_type = Fp8::e4m3;  // not both e5m2
    DType c_dtype;                               // bf16 or fp32
    // Hopper keeps sums in about 14 bits within a run of products instead of adding them in fp32. Faster; for the
    // forward product only, where the rounding is below that of the codes.
    bool fast_accumulation = false;
    const char* what = "Fp8Gemm";  // in a linear layer, for op timers

    const char* label() const { return what; }
};

void fp8_gemm(Stream&, const Fp8Gemm&);
void fp8_gemm_cpu(const Fp8Gemm&);
void fp8_gemm_cuda(const Fp8Gemm&, Stream&);

// Why a device has no fp8 products; empty if it has.
std::string fp8_missing(Device);
std::string fp8_missing_cuda(Device);

}  // namespace rz
