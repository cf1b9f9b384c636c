#pragma once
// One transformer block, forward and backward, on whatever memory it is given:
//
//   resid = previous mid + previous branch            (the residual stream at the block's entrance)
//   h1    = rmsnorm(resid)
//   qkv   = rope(norm(h1 Wqkv^T + bqkv)),  o = attention(qkv),  branch = o Wo^T      (bias, and norm of each head of q
//                                                                                   and k, where the model has them)
//   mid   = resid + branch
//   h2    = rmsnorm(mid)
//   gate_up = h2 Wgu^T,  branch = swiglu(gate_up) Wdown^T        (added to mid at the next block's entrance)
//
// With norms after the branches (ModelConfig::post_norm) h1 and h2 are the stream itself, and a branch is the norm of
// what its last product gives; the norm of q and k is then of all heads.
//
// q, k and v projections lie side by side in the flat buffer, so they are one matrix; so do gate and up. A product's
// ranks and number format are parallel_linear.h's concern, the place of keys is attention.h's: `heads`, `kv_heads` and
// `ffn` below are this rank's, and of the N rows it has R of the residual stream, of h1 and h2.
//
// The backward pass has two halves. input_grad computes what the block below waits for and keeps in a WeightGradInputs
// what weight_grad reads; weight_grad alone touches gradients, and reads no parameters. backward is both on shared
// memory, op by op, and gives the same bits.

#include "kernels/qk_norm.h"
#include "llama/model/attention.h"
#include "llama/model/config.h"
#include "llama/model/param_table.h"
#include "llama/model/parallel_linear.h"
#include "llama/model/recompute.h"
#include "zero/parameter_source.h"

namespace rz {

// The config with the heads and the ffn columns that a holder of this part of the table has.
ModelConfig part_config(const ModelConfig&, const ParamTable&);

// Elements of a unit of a block that are matrices of linear layers, in that order.
std::vector<ElementRange> block_matrices(const ModelConfig&, const ParamTable&);

// A block's parameters, each where it is.
struct BlockWeights {
    const void *norm1, *norm2;  // (C)
    Operand qkv, out, gate_up, down;
    const void *qkv_bias, *qk_norm;  // nullptr: none
    const void* address;             // of the unit: the same address has the same parameters' places
};

// Read again by the backward pass. All dtype unless noted; C = dim, Q = (heads + 2 kv_heads) * head_dim, F = ffn.
struct BlockActivations {
    void* resid = nullptr;       // (R, C)
    void* h1 = nullptr;          // (R, C)   or codes; with norms after the branches resid itself, or codes
    void* last1 = nullptr;       // (R, C)   with norms after the branches: what attention's is the norm of
    void* qk = nullptr;          // (N, (heads + kv_heads) * head_dim) before the heads' norm; with one, to train
    float* qk_sums = nullptr;    // (ranks, N, 2) sums of squares; with a norm of all heads
    void* qkv = nullptr;         // (N, Q) rotated; the rows of a cache start first_position rows before
    void* o = nullptr;           // (N, heads * head_dim)
    void* mid = nullptr;         // (R, C)
    void* h2 = nullptr;          // (R, C)   or codes; as h1, mid itself
    void* last2 = nullptr;       // (R, C)   as last1, of the MLP
    void* gate_up = nullptr;     // (N, 2F)
    float* rstd1 = nullptr;      // (R)
    float* rstd2 = nullptr;      // (R)
    float* lse = nullptr;        // (B, heads, T), or as ContextParallel has it
    Fp8Scale* scales = nullptr;  // (kBlockScales) or none
};

// Read by weight_grad. All dtype unless noted.
struct WeightGradInputs {
    void* h1 = nullptr;           // (R, C)   or codes, as h2
    void* h2 = nullptr;           // (R, C)
    void* o = nullptr;            // (N, heads * head_dim)
    void* gate_up = nullptr;      // (N, 2F)  the gradient of gate and up
    void* act = nullptr;          // (N, F)   swiglu output
    void* dqkv = nullptr;         // (N, Q)
    void* dout = nullptr;         // (R, C)   gradient of the block's output, mid + branch; then of its last product
    void* dmid = nullptr;         // (R, C)   gradient of mid; of attention's last product
    float* dw_norm1 = nullptr;    // (C) f32  this micro-batch's sum for the norm's weight
    float* dw_norm2 = nullptr;    // (C) f32
    float* dw_qk_norm = nullptr;  // (q_gains + k_gains) f32, with a norm of q and k
    Fp8Scale* scales = nullptr;   // (kBlockScales) or none
};

class Block {
   public:
    // `window` is make_window's, nullptr for none; `tp` is nullptr where the table's holder has all of each tensor,
    // `context` where this rank has whole sequences; with `fp8` the products of the four linear layers are its. They
    // outlive this.
    Block(const ModelConfig&, const ParamTable&, DType dtype, DType grad_dtype, const float* cos_table,
          const float* sin_table, const int32_t* window, TensorParallel* tp = nullptr, const Fp8Linear* fp8 = nullptr,
          ContextParallel* context = nullptr);

    // Weights of a unit that lies whole in its type; or gathered in fp8, its matrices first, in their order.
    BlockWeights weights(const void* whole) const;
    BlockWeights weights(const Fp8Parameters&) const;

    // Enters with the residual stream in a.resid, or, if previous_mid is given, in previous_mid + scratch.branch.
    void forward(Stream&, const BlockShape&, const BlockWeights& w, const BlockActivations& a, const BlockScratch&,
                 const void* previous_mid, const BlockStats* watch = nullptr) const;

    // dresid (R, C): in, the gradient of mid + branch (the block's output); out, that of resid, whose magnitude joins
    // of_dresid (optional). dw (the unit's gradients) is added to. Overwrites a.gate_up.
    void backward(Stream&, const BlockShape&, const BlockWeights& w, char* dw, const BlockActivations& a,
                  const BlockScratch&, void* dresid, Recompute recompute, Fp8Scale* of_dresid) const;

    // dresid (R, C) =: the gradient of resid, from that of the block's output in d.dout. The forward pass's h1, h2, o
    // and gate_up are in `d` already, or recomputed there: `a` is what exchange() has returned.
    void input_grad(Stream&, const BlockShape&, const BlockWeights& w, const BlockActivations& a,
                    const WeightGradInputs& d, const BlockScratch&, void* dresid, Recompute recompute,
                    Fp8Scale* of_dresid) const;
    // The magnitude of the gradient of the block's output must be there before either, given that pass's scales;
    // nullptr if nobody asks for it.
    Fp8Scale* scale_of_dout(Fp8Scale* scales) const;
    // dw += what `d` holds. With tp's overlap, dout of `next`, the block whose weight_grad comes next, sets off to
    // scratch.whole while the last product is computed: it is there after `dout_there`, which that call is given.
    void weight_grad(Stream&, const BlockShape&, char* dw, const WeightGradInputs& d, const BlockScratch&,
                     Event& dout_there, const WeightGradInputs* next) const;

    const Attention& attention() const { return attention_; }

   private:
    BlockPass pass(Stream&, const BlockShape&, const BlockScratch&, Fp8Scale* scales) const;
    void recompute(BlockPass&, const BlockWeights& w, const BlockActivations& a, Recompute) const;
    void enter(BlockPass&, const ParallelLinear& reader, void* h, float* rstd, void* sum, const void* x,
               const void* residual, const void* w) const;
    void* place_of_last(BlockPass& p, void* last) const { return config_.post_norm ? last : p.scratch.branch; }
    void leave(BlockPass&, const void* last, float* rstd, const void* w) const;
    void leave_backward(BlockPass&, void* dlast, char* dw, float* dw_sum, const void* dstream, const void* last,
                        const void* w, const float* rstd, const ParallelLinear& reader) const;
    void enter_backward(BlockPass&, void* dx, char* dw, float* dw_sum, const void* x, const void* w, const float* rstd,
                        const void* dresidual, uint32_t* amax) const;
    void norm(BlockPass&, void* y, float* rstd, void* sum, const void* x, const void* residual, const void* w,
              uint32_t* amax) const;
    void add(BlockPass&, void* sum, const void* a, const void* b) const;
    void rotate(BlockPass&, void* qkv, const BlockActivations& a, const BlockWeights& w) const;
    void rotated_backward(BlockPass&, void* dqkv, char* dw, float* dw_sum, const void* o, const BlockActivations& a,
                          const BlockWeights& w) const;
    const float* sums_of_ranks(BlockPass&, float* all, const void* x, const void* dy, const QkNorm&) const;
    QkNorm qk_norm(const BlockPass&, const BlockWeights& w) const;
    Rope rope(const BlockPass&, void* qkv, bool inverse, uint32_t* amax) const;
    // Gradients of both halves; dw is nullptr where only the inputs' is asked for.
    void backward(BlockPass&, const BlockWeights& w, char* dw, const BlockActivations& a, const WeightGradInputs& d,
                  void* dresid, Fp8Scale* of_dresid) const;
    void norm_backward(BlockPass&, void* dx, char* dw, float* dw_sum, const void* dy, const void* x, const void* w,
                       const float* rstd, const void* dresidual, uint32_t* amax) const;

    ModelConfig config_;  // of this part
    DType dtype_, grad_dtype_;
    const float *cos_, *sin_;
    TensorParallel* tp_;
    bool codes_;
    int64_t norm1_, norm2_;  // where they are in the unit, in elements
    int64_t qkv_bias_;       // likewise, of q, k and v side by side; -1: none
    int64_t qk_norm_;        // of q's and k's gains, side by side; -1: none
    int64_t sharers_;        // ranks that have the same key heads
    std::vector<ElementRange> matrices_;
    ParallelLinear qkv_, out_, gate_up_, down_;
    Attention attention_;
};

// `p` keeps what a forward pass left in `a` and weight_grad reads: these change places, and `a` can serve another
// micro-batch. What is recomputed does not: its place is in `p`. Returns the activations as input_grad finds them.
BlockActivations exchange(BlockActivations& a, WeightGradInputs& p, Recompute recompute);

// dw (C) grad_dtype += sum (C): what a norm's input half has summed.
void add_norm_gradient(Stream&, void* dw, const float* sum, int64_t C, DType grad_dtype);

}  // namespace rz
