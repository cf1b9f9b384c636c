#pragma once
// Row-major product of two e4m3 matrices with a scale for each tile along K: C = sum over k of (A_k B_k^T, scaled) +
// beta * C, A_k and B_k being their 128 columns from 128 k. Each such sum is made in fp32, multiplied by the scales of
// its row and column, and added to the others in fp32 in ascending k; one rounding to C. A has tiles of rows, B of rows
// or squares (quantise_blocks.h); squares on both sides exist nowhere.
//
// CPU: as fp8_gemm.h, tile by tile along K. CUDA: cuBLASLt, compute capability 9.0 only.

#include <string>

#include "kernels/fp8/quantise_blocks.h"

namespace rz {

struct Fp8BlockGemm {
    void* c;                           // (M, N) c_dtype     =, or += with beta 1; 16-byte aligned, as all here
    const uint8_t* a;                  // (M, K)
    const uint8_t* b;                  // (N, K)
    const float *a_scales, *b_scales;  // fp8_scales_of(rows, M, K), fp8_scales_of(b_tiles, N, K)
    int64_t M, N, K;                   // multiples of 128
    float beta = 0;
    Fp8Tiles b_tiles;
    DType c_dtype;                      // bf16 or fp32
    const char* what = "Fp8BlockGemm";  // in a linear layer, for op timers

    const char* label() const { return what; }
};

void fp8_block_gemm(Stream&, const Fp8BlockGemm&);
void fp8_block_gemm_cpu(const Fp8BlockGemm&);
void fp8_block_gemm_cuda(const Fp8BlockGemm&, Stream&);

// Why a device has no such products; empty if it has.
std::string fp8_blocks_missing(Device);
std::string fp8_blocks_missing_cuda(Device);

}  // namespace rz
