#pragma once
// Faster CUDA attention for the shapes it covers. Each returns false, having enqueued nothing, where it covers the
// shape or the device not. The backward pass finds BackwardStats (attention_mma.cuh) in its workspace.
//
//                 on                 types       D
//   wgmma         sm_90a             bf16, fp16  64, 80, 96, 128
//   mma           sm_80 and later    the same    the same
//                 sm_75              fp16        the same
//   attention.cu  any                all         even, up to 256
//
// wgmma and mma: pointers aligned to 16 bytes, strides a multiple of 8 elements. All: any B, lengths, places of queries
// and documents, H a multiple of K.

#include "kernels/attention/attention.h"

namespace rz {

bool attention_forward_mma(const AttentionForward&, CudaStream);
bool attention_forward_wgmma(const AttentionForward&, CudaStream);
bool attention_backward_mma(const AttentionBackward&, CudaStream);
bool attention_backward_wgmma(const AttentionBackward&, CudaStream);
// True: the build has code for the current device, an sm_90a.
bool attention_has_wgmma();

}  // namespace rz
