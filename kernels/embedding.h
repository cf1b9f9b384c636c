#pragma once
// Token embedding. The backward pass adds rows in a fixed order: the host sorts the tokens (embedding_plan), and each
// distinct token's rows are summed in ascending position by one owner. No atomics; two runs give the same bits.

#include <vector>

#include "kernels/runtime/device.h"

namespace rz {

struct EmbeddingForward {
    void* x;                // (N, C) dtype      =
    const void* table;      // (V, C) dtype
    const int32_t* tokens;  // (N) ids of the whole vocabulary; checked by whoever loads the data, not here
    int64_t N, C, V;
    DType dtype;
    int64_t first = 0;  // the table's rows are tokens [first, first + V); the rows of others are 0
};

struct EmbeddingBackward {
    void* dtable;         // (V, C) grad_dtype   +=   sums in fp32, one rounding per call
    const void* dx;       // (N, C) dtype
    const int32_t* rows;  // (N) row numbers sorted by (token, row)
    const int32_t*
        starts;  // (distinct + 1) where each distinct token's rows begin in `rows`; a token without rows is passed over
    const int32_t* ids;  // (distinct) the tokens, ascending
    int64_t distinct;
    int64_t N, C, V;
    DType dtype, grad_dtype;
    int64_t first = 0;  // dtable's rows are tokens [first, first + V); others are left out
};

// Host side: fills rows (N), starts (N + 1 at most), ids (N at most) and returns the number of distinct tokens.
// Throws if a token is outside [0, V).
int64_t embedding_plan(const int32_t* tokens, int64_t N, int64_t V, int32_t* rows, int32_t* starts, int32_t* ids);

void embedding_forward(Stream&, const EmbeddingForward&);
void embedding_backward(Stream&, const EmbeddingBackward&);

void embedding_forward_cpu(const EmbeddingForward&);
void embedding_backward_cpu(const EmbeddingBackward&);
void embedding_forward_cuda(const EmbeddingForward&, CudaStream);
void embedding_backward_cuda(const EmbeddingBackward&, CudaStream);

}  // namespace rz
