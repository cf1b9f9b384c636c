#pragma once
// Row-major matrix product: C = alpha * op(A) op(B) + beta * C, op(X) = X or X^T, or + beta * `add`, which is not in C;
// or op(A) op(B) + bias, added to every row; fp32 accumulation, one rounding to C.
//
// CPU: oneDNN (fp32, bf16), or our own blocked loops where it is absent. CUDA: cuBLASLt, algorithm chosen once per
// shape. The same call on the same machine gives the same bits, also with `add` in C; different M splits of one product
// may differ in the last bit.

#include "kernels/runtime/device.h"

namespace rz {

struct Gemm {
    void* c;        // (M, N) c_dtype, row stride ldc     =, or += with beta 1
    const void* a;  // (M, K), or (K, M) if trans_a; dtype, row stride lda
    const void* b;  // (K, N), or (N, K) if trans_b; dtype, row stride ldb
    int64_t M, N, K;
    bool trans_a = false, trans_b = false;
    float alpha = 1, beta = 0;
    DType dtype;                        // of A and B
    DType c_dtype;                      // dtype, or fp32
    int64_t lda = 0, ldb = 0, ldc = 0;  // 0: dense
    const void* bias = nullptr;         // (N) c_dtype, 16-byte aligned; alpha is 1 and beta 0 then
    const void* add = nullptr;          // (M, N) c_dtype, row stride ldc, apart from C; beta is not 0 then

    // Its role in a linear layer, for op timers.
    const char* label() const { return trans_a ? "Gemm dW = dy^T x" : trans_b ? "Gemm y = x W^T" : "Gemm dx = dy W"; }
};

// Workspace of cuBLASLt on each stream that multiplies. Its algorithms want it, split-K above all: as NVIDIA advises,
// 32 MiB from Hopper on and 4 before.
constexpr int64_t gemm_workspace_bytes(int capability_major) { return int64_t(capability_major >= 9 ? 32 : 4) << 20; }

void gemm(Stream&, const Gemm&);
void gemm_cpu(const Gemm&);
void gemm_cuda(const Gemm&, Stream&);

// Before a stream multiplies: allocates its workspace, which else happens at its first product.
void reserve_gemm_workspace_cuda(Stream&);
// Releases the workspace of a stream that multiplies no more.
void release_gemm_workspace_cuda(Stream&);

// Our own loops with a fixed order of summation over K; the reference for the libraries.
void gemm_reference(const Gemm&);
// True: gemm_cpu may use a library, if there is one: not with RZ_GEMM=own in the environment. Only tests change it.
bool gemm_cpu_uses_library();
void set_gemm_cpu_uses_library(bool);
// "oneDNN 2.6.3" or "own loops"; "cuBLASLt 13.1.0"
const char* gemm_library(DeviceKind);
const char* gemm_library_cuda();

}  // namespace rz
