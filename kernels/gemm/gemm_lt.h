#pragma once
// Shared by products in 16 and 32 bits and in fp8: cuBLASLt's handle and workspace of a stream, and how an algorithm
// is chosen. Included by the CUDA half only.

#include <cublasLt.h>

#include <string>

#include "kernels/runtime/check.h"
#include "kernels/runtime/device.h"

namespace rz {

struct LtSession {
    cublasLtHandle_t handle;
    void* workspace;
    size_t workspace_bytes;
};
LtSession lt_session(Stream&);

inline void check_lt(cublasStatus_t status, const char* what) {
    require(status == CUBLAS_STATUS_SUCCESS, "gemm: %s: %s (%s)", what, cublasLtGetStatusName(status),
            cublasLtGetStatusString(status));
}

// A product as the library sees it. It is column-major: it computes C^T (N x M) = op(B)^T op(A)^T, and a row-major
// matrix is its own transpose there, so `first` is B and `second` A.
struct LtProduct {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first, second, result;
    const void *first_data, *second_data;
    void* c;
    float alpha, beta;
    int64_t c_bytes;  // that C spans
    DType c_dtype;
    uint32_t alignment;
    const void* add = nullptr;  // what beta multiplies; null: c
};

// As gemm_tuning.h says: from the cache file, measured, or the library's first suggestion. Throws if it has none. `key`
// says, in words, all that may change the choice: for the file and for messages.
cublasLtMatmulAlgo_t choose_algorithm(const LtProduct&, const std::string& key, const LtSession&, Stream&);
void multiply(const LtProduct&, const LtSession&, const cublasLtMatmulAlgo_t&, Stream&);

// The largest power of two up to 256 that divides every address.
uint32_t common_alignment(const void* a, const void* b, const void* c, const void* add = nullptr);

}  // namespace rz
