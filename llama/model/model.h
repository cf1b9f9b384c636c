#pragma once
// The model: its activations, forward pass, loss and backward pass. Parameters and gradients belong to zero/; this file
// asks for a unit when it needs it and says when it is done with it, and never knows which rank it is.

#include <vector>

#include "kernels/runtime/graph.h"
#include "kernels/runtime/memory.h"
#include "llama/model/block.h"
#include "llama/model/config.h"
#include "llama/model/param_table.h"
#include "zero/zero.h"

namespace rz {

// What the backward pass computes again instead of keeping. Bits do not change.
enum class Recompute { none, mlp, block };  // mlp: the 2F-wide gate_up; block: everything but the residual stream

struct ModelOptions {
    int64_t B, T;  // largest micro-batch
    DType dtype = DType::f32, grad_dtype = DType::f32;
    Recompute recompute = Recompute::none;
    int64_t logits_bytes = int64_t(1) << 30;  // largest chunk of logits
};

// A micro-batch on the device.
struct DeviceBatch {
    int64_t B, T;
    const int32_t* tokens;   // (B, T)
    const int32_t* targets;  // (B, T), kIgnoreTarget where there is none
    // embedding_plan of the tokens; needed for training only
    const int32_t* rows = nullptr;
    const int32_t* starts = nullptr;
    const int32_t* ids = nullptr;
    int64_t distinct = 0;
};

class Model {
   public:
    Model(const ModelConfig&, const ParamTable&, ModelOptions, Device, Stream& compute, Zero&);

    // Forward and backward: adds the gradient of grad_scale * (sum of token losses) to zero's gradients and the sum of
    // the token losses to loss_sum(). grad_scale is 1 / targets in the global batch.
    void train(const DeviceBatch&, float grad_scale);
    // Forward only; adds to loss_sum().
    void evaluate(const DeviceBatch&);
    // Forward only; logits (B*T, V) dtype, on the device.
    void logits(const DeviceBatch&, void* out);

    // (1) double on the device: the token losses added up since reset_loss().
    const double* loss_sum() const { return loss_sum_.as<double>(); }
    void reset_loss();

    // From now on each block's passes and the head are replayed as CUDA graphs. What zero/ does between them is not
    // recorded.
    void replay_graphs() { replays_ = true; }
    const GraphSet& graphs() const { return graphs_; }

    const ModelConfig& config() const { return config_; }
    int64_t logits_rows() const { return chunk_rows_; }

   private:
    void allocate(Device);
    void* forward(const DeviceBatch&);  // returns the final norm's output (N, C)
    void head(const DeviceBatch&, bool backward, float grad_scale);
    void backward(const DeviceBatch&);
    const char* block_weights(int64_t layer);
    BlockShape shape(const DeviceBatch& b) const { return {.B = b.B, .T = b.T}; }
    void check(const DeviceBatch&) const;
    void piece(const GraphSet::Key& key, const std::function<void()>& enqueue);

    ModelConfig config_;
    const ParamTable& table_;
    ModelOptions options_;
    Stream& stream_;
    Zero& zero_;
    Buffer cos_, sin_;
    Block block_;

    std::vector<Buffer> buffers_;
    std::vector<BlockActivations> layers_;
    BlockScratch scratch_;
    void *final_resid_ = nullptr, *final_norm_ = nullptr;  // (N, C)
    float* final_rstd_ = nullptr;                          // (N)
    void* dresid_ = nullptr;                               // (N, C)
    void* logits_ = nullptr;                               // (chunk_rows, V)
    float* losses_ = nullptr;                              // (N)
    int64_t chunk_rows_ = 0;
    Buffer loss_sum_;
    bool replays_ = false;
    GraphSet graphs_;
};

// Fills rope tables on a device.
void make_rope_tables(const ModelConfig&, int64_t positions, Device, Stream&, Buffer& cos_table, Buffer& sin_table);

// Writes initial weights into what this rank owns of the masters and publishes them. Any cut gives the same numbers.
void initialise_weights(const ParamTable&, uint64_t seed, Stream&, Zero&);

// FLOPs of one token's forward and backward pass: 6 per matrix parameter (head included, embedding lookup not), and the
// causal half of attention, 6 L H D T.
double training_flops_per_token(const ModelConfig&, int64_t T);

std::vector<UnitLayout> unit_layouts(const ParamTable&);
DecaySegments decay_segments(const ParamTable&);

}  // namespace rz
