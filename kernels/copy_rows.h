#pragma once
// Rows of a matrix to other rows, converted on the way: what packs a part of each row for a message, or unpacks it.

#include "kernels/runtime/device.h"

namespace rz {

// out[i, c] = x[i, c], rounded once. out and x do not overlap. Bits do not depend on anything else.
struct CopyRows {
    void* out;              // (rows, columns) out_dtype   =   row i begins at i * out_stride, in elements
    const void* x;          // (rows, columns) dtype, rows `stride` apart
    int64_t rows, columns;  //
    int64_t out_stride, stride;
    DType out_dtype, dtype;
};

void copy_rows(Stream&, const CopyRows&);
void copy_rows_cpu(const CopyRows&);
void copy_rows_cuda(const CopyRows&, CudaStream);

}  // namespace rz
