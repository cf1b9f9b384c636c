#pragma once
// Numbers for whoever watches a run (--stats-every): norms of tensors and of their updates, the size of the residual
// stream, the largest logit of attention. Both ops add to what is there; two runs give the same bits.

#include "kernels/runtime/device.h"

namespace rz {

// Segments lie one after the other in a flat buffer, of which x is the run [first, first + n):
//
//   sums[s] += sum over i in [bounds[s], bounds[s + 1]) and in the run of (x[i - first] - minus[i - first])^2
//
// in double, with minus 0 where it is nullptr. A segment that has nothing of the run keeps its sum.
struct SegmentSquares {
    double* sums;                 // (segments)       +=
    const void* x;                // (n) dtype
    const void* minus = nullptr;  // (n) dtype, optional
    const int64_t* bounds;        // (segments + 1)   ascending, on the device
    int64_t segments;
    int64_t first, n;
    DType dtype;
};

// *squares += sum over rows of 1 / rstd^2 - eps: the mean square of each row that RMSNorm read, in double.
// *largest = max(*largest, lse[i] / sharpness): of attention whose logits were multiplied by a large `sharpness`, the
// largest logit, to ln(keys) / sharpness and the rounding of fp32.
struct BlockStatistics {
    double* squares;    // (1)     +=
    float* largest;     // (1)     = the larger
    const float* rstd;  // (rows)
    const float* lse;   // (count) natural logarithms; -infinity where a query sees no key
    int64_t rows, count;
    float eps, sharpness;
};

void segment_squares(Stream&, const SegmentSquares&);
void block_statistics(Stream&, const BlockStatistics&);

void segment_squares_cpu(const SegmentSquares&);
void block_statistics_cpu(const BlockStatistics&);
void segment_squares_cuda(const SegmentSquares&, CudaStream);
void block_statistics_cuda(const BlockStatistics&, CudaStream);

}  // namespace rz
