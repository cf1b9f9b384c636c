#pragma once
// The bias of a linear layer: added to every row of its output (where gemm.h has not), and its gradient, the sum of the
// output's gradient over the rows. fp32 arithmetic, one rounding. Pointers are aligned to 16 bytes; any C works,
// C % 8 == 0 is fast.

#include "kernels/runtime/device.h"

namespace rz {

struct AddBias {
    void* x;           // (N, C) dtype   +=   in place
    const void* bias;  // (C) dtype
    int64_t N, C;
    DType dtype;
};

// Two runs give the same bits, on any number of threads and multiprocessors: the sum over rows is taken from zero over
// a fixed partition of the rows, in order, in fp32, and added to dbias once.
struct BiasBackward {
    void* dbias;     // (C) grad_dtype   +=
    const void* dy;  // (N, C) dtype
    float* scratch;  // bias_backward_scratch(C) floats
    int64_t N, C;
    DType dtype, grad_dtype;
};

constexpr int64_t kBiasBackwardParts = 64;  // runs of consecutive rows, at most, each summed by itself
int64_t bias_backward_scratch(int64_t C);   // in floats

void add_bias(Stream&, const AddBias&);
void bias_backward(Stream&, const BiasBackward&);

void add_bias_cpu(const AddBias&);
void bias_backward_cpu(const BiasBackward&);
void add_bias_cuda(const AddBias&, CudaStream);
void bias_backward_cuda(const BiasBackward&, CudaStream);

}  // namespace rz
