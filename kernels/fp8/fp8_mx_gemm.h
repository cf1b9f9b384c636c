#pragma once
// Row-major product of two e4m3 matrices with a scale of 8 bits for each 32 elements along K (quantise_mx.h): C = sum
// over k of (A_k B_k^T, scaled) + beta * C, A_k and B_k being their 32 columns from 32 k; fp32 accumulation, one
// rounding to C.
//
// CPU: codes are decoded, scaled (exactly: by powers of two) and multiplied by our own fp32 loops. CUDA: cuBLASLt,
// compute capability 10.0 and above.

#include <string>

#include "kernels/fp8/quantise_mx.h"

namespace rz {

struct Fp8MxGemm {
    void* c;                             // (M, N) c_dtype     =, or += with beta 1; 16-byte aligned, as all here
    const uint8_t* a;                    // (M, K)
    const uint8_t* b;                    // (N, K)
    const uint8_t *a_scales, *b_scales;  // mx_scales_of(M, K), mx_scales_of(N, K)
    int64_t M, N, K;                     // multiples of 128
    float beta = 0;
    DType c_dtype;                   // bf16 or fp32
    const char* what = "Fp8MxGemm";  // in a linear layer, for op timers

    const char* label() const { return what; }
};

void fp8_mx_gemm(Stream&, const Fp8MxGemm&);
void fp8_mx_gemm_cpu(const Fp8MxGemm&);
void fp8_mx_gemm_cuda(const Fp8MxGemm&, Stream&);

// Why a device has no such products; empty if it has.
std::string fp8_mx_missing(Device);
std::string fp8_mx_missing_cuda(Device);

}  // namespace rz
