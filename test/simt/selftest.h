// Small kernels that exercise one feature of the emulator each (selftest.cu), for test_selftest.cpp.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace rz::selftest {

constexpr int kWarpOps = 8;
void warp_ops(int* out, const int* in, cudaStream_t s);        // 128 threads, kWarpOps results each
void named_barriers(int* out, const int* in, cudaStream_t s);  // 128 threads; out 4 x 64
void deep_stack(int* out, const int* in, cudaStream_t s);      // 128 threads
void spin_on_flag(int* out, bool set_flag, cudaStream_t s);    // out[0] flag, out[1] result; one block of 64
void last_block_sum(float* out, float* partial, unsigned* counter, const float* in, int blocks, cudaStream_t s);
void add_one(float* x, int n, cudaStream_t s);
void scale(float* x, float factor, int n, cudaStream_t s);

void cp_async_ring(float* out, const float* in, int n, cudaStream_t s);  // out = in for n values; 128 threads
// c (16, 8) f32 = a (16, 16) b (8, 16)^T through ldmatrix and mma; trans_b: b is (16, 8)
void mma_tile(float* c, const uint16_t* a, const uint16_t* b, bool fp16, bool trans_b, cudaStream_t s);
// out[0] = an 8x8 matrix of `in` through movmatrix, out[1] the same through ldmatrix.trans, a word of each lane
void transposed_twice(uint32_t* out, const uint16_t* in, cudaStream_t s);

// A box of a (d3, d2, d1, d0) tensor that TMA loads into shared memory
struct TmaCase {
    int dims[4], box[4], at[4];
    int swizzle;  // bytes
};
int box_elements(const TmaCase& c);
void tma_read(uint16_t* out, const uint16_t* tensor, const TmaCase& c, cudaStream_t s);  // raw shared memory
void bulk_double(float* out, const float* in, int n, cudaStream_t s);

// d (64, n) = a (64, 16) b (n, 16)^T in one wgmma. Operands are laid out in shared memory by the kernel.
struct WgmmaCase {
    int n;
    int layout;  // of both operands: 0 none, 1 128-byte, 2 64-byte, 3 32-byte swizzle
    bool trans_a, trans_b, a_in_registers, fp16;
};
void wgmma_tile(float* d, const uint16_t* a, const uint16_t* b, const WgmmaCase& c, cudaStream_t s);

enum class GemmFault { none, no_full_wait, no_wgmma_wait, no_empty_wait };
// c (M, N) f32 = a (M, K) b (N, K)^T: a producer warp with TMA, a consumer warpgroup with wgmma, three stages.
void pipelined_gemm(float* c, const uint16_t* a, const uint16_t* b, int M, int N, int K, GemmFault fault,
                    cudaStream_t s);

}  // namespace rz::selftest
