#pragma once
// cuBLASLt's handle and workspace of a stream, which all products on it share. Included by the CUDA half only.

#include <cublasLt.h>

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

}  // namespace rz
