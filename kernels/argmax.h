#pragma once
// The likeliest token of each row of logits: whether greedy decoding would have chosen the target.
//
//   best[n] = first + the v with the largest logits[n, v]; of equals the lowest v. A NaN is never the largest: a row of
//   nothing else gives the first.
//
// Exact: both backends give the same numbers.

#include "kernels/runtime/device.h"

namespace rz {

struct Argmax {
    int32_t* best;       // (N)          =
    const void* logits;  // (N, V) dtype
    int64_t N, V;
    DType dtype;
    int64_t first = 0;  // id of the first column
};

void argmax(Stream&, const Argmax&);
void argmax_cpu(const Argmax&);
void argmax_cuda(const Argmax&, CudaStream);

}  // namespace rz
