#pragma once
// Attention of a block, wherever its keys are: in the batch, in a cache, or on other ranks (llama/parallel/context.h).

#include "kernels/attention/attention.h"
#include "llama/model/config.h"
#include "llama/model/parallel_linear.h"

namespace rz {

class ContextParallel;

// Sums of a forward pass for --stats-every (kernels/statistics.h), over this rank's rows: mean squares of the
// residual stream at the block's entrance, and the largest logit of attention. All on the device.
struct BlockStats {
    double* squares = nullptr;  // (1)
    float* largest = nullptr;   // (1)
};

class Attention {
   public:
    // `part`: the config with the heads of this rank. `context` where ranks share sequences; it outlives this.
    // `window`: make_window's.
    Attention(const ModelConfig& part, DType dtype, const int32_t* window, ContextParallel* context)
        : config_(part), dtype_(dtype), window_(window), context_(context) {}

    AttentionShape shape(const BlockShape&) const;

    // o (N, heads * head_dim) and lse = attention of qkv (N, Q), rotated; the rows of a cache start first_position rows
    // before. o's magnitude goes into `amax`, where that is not nullptr.
    void forward(BlockPass&, void* o, float* lse, const void* qkv, uint32_t* amax) const;
    // The same, and adds to `watch`: `rstd` (R) is that of the block's first norm.
    void forward(BlockPass&, void* o, float* lse, const void* qkv, uint32_t* amax, const float* rstd,
                 const BlockStats& watch) const;
    // dqkv = its gradient, with RoPE's backward pass if `back` has one.
    void backward(BlockPass&, void* dqkv, const void* d_o, const void* qkv, const void* o, const float* lse,
                  const Rope& back) const;

   private:
    const int32_t* first_key(const BlockShape&) const;
    void run(BlockPass&, void* o, float* lse, const void* qkv, uint32_t* amax, float sharpness, float* largest) const;
    void add_statistics(BlockPass&, const float* rstd, const BlockStats&, const float* lse, float sharpness) const;

    ModelConfig config_;
    DType dtype_;
    const int32_t* window_;
    ContextParallel* context_;
};

}  // namespace rz
