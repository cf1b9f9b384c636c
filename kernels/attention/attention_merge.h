#pragma once
// Attention over some keys joined with attention of the same queries over others: each output is the softmax's average
// over its own keys, weighted by their sum of exponentials (Milakov & Gimelshein 2018).
//
//   lse' = log(exp(lse) + exp(part_lse)),   o' = o exp(lse - lse') + part_o exp(part_lse - lse')
//
// Parts may be joined in any order; bits depend on it. A part that sees no key (part_lse -infinity) changes nothing.

#include "kernels/runtime/device.h"

namespace rz {

struct AttentionMerge {
    float* o;               // (B, T, H, D) f32     =   with `first` the part alone
    float* lse;             // (B, H, T) f32        =   likewise
    const void* part_o;     // (B, T, H, D) dtype
    const float* part_lse;  // (B, H, T) f32
    int64_t B, T, H, D;
    int64_t o_batch, part_batch;  // in elements; rows of H * D are dense
    bool first;
    DType dtype;
};

void attention_merge(Stream&, const AttentionMerge&);
void attention_merge_cpu(const AttentionMerge&);
void attention_merge_cuda(const AttentionMerge&, CudaStream);

}  // namespace rz
