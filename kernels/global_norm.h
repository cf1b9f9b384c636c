#pragma once
// The global gradient norm: squares are summed over fixed blocks of the logical buffer, which no number of ranks moves,
// and the block sums are added in block order in double. Where a block is shared by two ranks the sums of its parts are
// added in its place, in ascending order; the norm may then differ in its last bit.

#include "kernels/runtime/device.h"

namespace rz {

struct SumSquares {
    double* partial;  // (ceil((at + n) / block))   =   sum of squares of each block; same bits on every run
    const void* x;    // (n) dtype, 16-byte aligned
    int64_t n;
    int64_t block;  // elements, a multiple of 256
    DType dtype;
    int64_t at = 0;        // of x in the first block, elements: what lies before it is summed elsewhere
    bool on_host = false;  // x is in the memory of a GPU's host: plans cost that
};

// norm  = sqrt(sum of partial[0..count) in order) * average,   with average *= *unscale first
// scale = average * min(1, max_norm / (norm + 1e-6)), or NaN if the norm is not finite; max_norm <= 0 clips nothing
struct ClipScale {
    float* norm;                     // (1) f32   =
    float* scale;                    // (1) f32   =
    const double* partial;           // (count)
    const int32_t* order = nullptr;  // (count) optional: the i-th term of the sum is partial[order[i]]
    int64_t count;
    float average;  // what gradients are multiplied by before anything else (1 / ranks if they hold a sum)
    const float* unscale = nullptr;  // (1) f32 optional, on the device: 1 / the loss scale, a power of two
    float max_norm;
};

void sum_squares(Stream&, const SumSquares&);
void clip_scale(Stream&, const ClipScale&);

void sum_squares_cpu(const SumSquares&);
void clip_scale_cpu(const ClipScale&);
void sum_squares_cuda(const SumSquares&, CudaStream);
void clip_scale_cuda(const ClipScale&, CudaStream);

}  // namespace rz
