#pragma once
// Faster CUDA attention for the shapes it covers. Each returns false, having enqueued nothing, where it covers the shape
// or the device not. The backward pass finds delta (B, H, T) f32, the row sums of d_o * o, in its workspace.

#include "kernels/attention.h"

namespace rz {

bool attention_forward_mma(const AttentionForward&, CudaStream);
bool attention_backward_mma(const AttentionBackward&, CudaStream);

}  // namespace rz
