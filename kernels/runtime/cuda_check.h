#pragma once
// CUDA's host API and the check of its results. Included by the CUDA half only.

#include <cuda_runtime_api.h>

#include "kernels/runtime/check.h"

namespace rz {

[[noreturn]] inline void cuda_fail(cudaError_t status, const char* call, const char* file, int line) {
    cudaGetLastError();  // clear it, so that cleanup code does not report it a second time
    fail("%s:%d: %s: %s (%s)", file, line, call, cudaGetErrorName(status), cudaGetErrorString(status));
}

#define CUDA_CHECK(call)                                                                 \
    do {                                                                                 \
        const cudaError_t status_ = (call);                                              \
        if (status_ != cudaSuccess) ::rz::cuda_fail(status_, #call, __FILE__, __LINE__); \
    } while (0)

}  // namespace rz
