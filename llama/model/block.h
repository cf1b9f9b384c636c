#pragma once
// One transformer block, forward and backward, on whatever memory it is given:
//
//   resid = previous mid + previous branch            (the residual stream at the block's entrance)
//   h1    = rmsnorm(resid)
//   qkv   = rope(h1 Wqkv^T),  o = attention(qkv),  branch = o Wo^T
//   mid   = resid + branch
//   h2    = rmsnorm(mid)
//   gate_up = h2 Wgu^T,  branch = swiglu(gate_up) Wdown^T        (added to mid at the next block's entrance)
//
// q, k and v projections lie side by side in the flat buffer, so they are one matrix; so do gate and up.
//
// The backward pass has two halves. input_grad computes what the block below waits for and keeps in a PendingBlock what
// weight_grad reads; weight_grad alone touches gradients, and reads no parameters. backward is both on shared memory,
// op by op, and gives the same bits.
//
// With tensor parallelism (llama/parallel/tensor_parallel.h) a rank holds some heads and some columns of ffn: `heads`,
// `kv_heads` and `ffn` below are its own. Of the N rows each rank keeps R of the residual stream, of h1 and h2; all are
// gathered before the products that read them, and the rows of a branch are added over the ranks and scattered. Without
// it R is N.

#include <functional>

#include "kernels/attention/attention.h"
#include "llama/model/config.h"
#include "llama/model/linear_fp8.h"
#include "llama/model/param_table.h"
#include "zero/parameter_source.h"
#include "llama/parallel/tensor_parallel.h"

namespace rz {

class ContextParallel;

// The config with the heads and the ffn columns that a holder of this part of the table has.
ModelConfig part_config(const ModelConfig&, const ParamTable&);

// Where a block's tensors begin, in elements from the start of its unit as it is held. The same for every block.
struct BlockOffsets {
    int64_t norm1, qkv, out, norm2, gate_up, down;
    explicit BlockOffsets(const ParamTable&);
};

// A block's parameters: all of the unit in its type; or gathered in fp8, the matrices being qkv, out, gate with up, and
// down, the rest the two norms.
struct BlockWeights {
    const char* whole = nullptr;
    Fp8Parameters fp8 = {};

    BlockWeights(const char* whole) : whole(whole) {}
    BlockWeights(const Fp8Parameters& fp8) : fp8(fp8) {}
    const void* address() const { return whole ? static_cast<const void*>(whole) : fp8.codes; }
};

// Elements of a unit of a block that are matrices of linear layers, in that order.
std::vector<ElementRange> block_matrices(const ModelConfig&, const ParamTable&);

struct BlockShape {
    int64_t B, T;                        // new rows: N = B * T
    int64_t first_position = 0;          // > 0 when a cache already holds that many positions (B is 1 then)
    const int32_t* positions = nullptr;  // (B, T) of RoPE, where they are not first_position + t
    const int32_t* first_key = nullptr;  // (B, T) as attention's, where documents are packed
    int64_t rows() const { return B * T; }
};

// Where layers are in fp8 with one scale for each operand: the scale of each tensor that their products read, found
// once by whoever writes the tensor. h1 and h2, which nothing but products reads, are then kept as e4m3 codes. With
// tensor parallelism these have the scale of all ranks' rows, so the codes that are gathered are those of the gathered
// rows; gradients that come in rows of all ranks are measured when they are there.
enum ScaleOf {
    kOfH1,
    kOfO,
    kOfH2,
    kOfAct,
    kOfGateUpGradient,
    kOfQkvGradient,
    kOfOutputGradient,
    kOfMidGradient,
    kBlockScales
};

// What the backward pass reads again. All dtype unless noted; C = dim, Q = (heads + 2 kv_heads) * head_dim, F = ffn.
struct BlockActivations {
    void* resid = nullptr;       // (R, C)
    void* h1 = nullptr;          // (R, C)   or codes
    void* qkv = nullptr;         // (N, Q) rotated; the rows of a cache start first_position rows before
    void* o = nullptr;           // (N, heads * head_dim)
    void* mid = nullptr;         // (R, C)
    void* h2 = nullptr;          // (R, C)   or codes
    void* gate_up = nullptr;     // (N, 2F)
    float* rstd1 = nullptr;      // (R)
    float* rstd2 = nullptr;      // (R)
    float* lse = nullptr;        // (B, heads, T), or as ContextParallel has it
    Fp8Scale* scales = nullptr;  // (kBlockScales) or none
};

// What weight_grad reads. All dtype unless noted.
struct PendingBlock {
    void* h1 = nullptr;          // (R, C)   or codes, as h2
    void* h2 = nullptr;          // (R, C)
    void* o = nullptr;           // (N, heads * head_dim)
    void* gate_up = nullptr;     // (N, 2F)  the gradient of gate and up
    void* act = nullptr;         // (N, F)   swiglu output
    void* dqkv = nullptr;        // (N, Q)
    void* dout = nullptr;        // (R, C)   gradient of the block's output, mid + branch
    void* dmid = nullptr;        // (R, C)   gradient of mid
    float* dw_norm1 = nullptr;   // (C) f32  this micro-batch's sum for the norm's weight
    float* dw_norm2 = nullptr;   // (C) f32
    Fp8Scale* scales = nullptr;  // (kBlockScales) or none
};

// Memory that lives within one block's pass.
struct BlockScratch {
    void* branch = nullptr;     // (R, C)   the block's last output, until the next block adds it
    void* act = nullptr;        // (N, F)   swiglu output; its gradient in the backward pass
    void* dqkv = nullptr;       // (N, Q)
    void* dh = nullptr;         // (N, max(C, heads * head_dim)); partial sums of (N, C) have tp's wire type
    void* dnorm = nullptr;      // (R, C)   gradient of a norm's output: dh without tp
    void* whole = nullptr;      // (N, C)   with tp: gathered rows, or partial sums in its wire type
    void* ahead = nullptr;      // (N, C)   with tp's overlap: rows gathered for a weight's gradient
    void* attention = nullptr;  // attention_backward_workspace
    float* norm = nullptr;      // rmsnorm_backward_scratch(C)
    Fp8Scale* parts = nullptr;  // (ranks)  with tp, where norms are kept as codes: each rank's magnitude
};

// Whether blocks in fp8 have the scales above: not where a product reads its operand part by part.
bool keeps_codes(Fp8Recipe recipe, const TensorParallel* tp);

// What a forward pass adds to for --stats-every (kernels/statistics.h), of rows that this rank has: mean squares of the
// residual stream at the block's entrance, and the largest logit of attention. All on the device.
struct BlockWatch {
    double* squares = nullptr;  // (1)
    float* largest = nullptr;   // (1)
};

class Block {
   public:
    // `tp` is nullptr where the table's holder has all of each tensor, `context` where this rank has whole sequences;
    // with `fp8` the products of the four linear layers are its. They outlive this.
    Block(const ModelConfig&, const ParamTable&, DType dtype, DType grad_dtype, const float* cos_table,
          const float* sin_table, TensorParallel* tp = nullptr, const Fp8Linear* fp8 = nullptr,
          ContextParallel* context = nullptr);

    // Enters with the residual stream in a.resid, or, if previous_mid is given, in previous_mid + scratch.branch. `w`
    // is the unit's parameters. With `watch` attention tells its largest logit: on a CPU that has whole sequences as it
    // goes, elsewhere by a run of its own before.
    void forward(Stream&, const BlockShape&, const BlockWeights& w, const BlockActivations& a, const BlockScratch&,
                 const void* previous_mid, const BlockWatch* watch = nullptr) const;

    // dresid (R, C): in, the gradient of mid + branch (the block's output); out, that of resid. dw (the unit's
    // gradients) is added to. Overwrites a.gate_up. With gate_up_again, gate_up is recomputed first.
    void backward(Stream&, const BlockShape&, const BlockWeights& w, char* dw, const BlockActivations& a,
                  const BlockScratch&, void* dresid, bool gate_up_again) const;

    // dresid (R, C) =: the gradient of resid, from that of the block's output in p.dout. The forward pass's h1, h2, o
    // and gate_up are in `p` already: exchange() comes first.
    void input_grad(Stream&, const BlockShape&, const BlockWeights& w, const BlockActivations& a, const PendingBlock& p,
                    const BlockScratch&, void* dresid) const;
    // dw += what `p` holds. With tp's overlap, `chain` has the rows of the next block's dout gathered while this one's
    // last product is computed: its scratch.whole is then taken until that block's weight_grad.
    struct Chain {
        Event dout;  // p.dout's rows are in scratch.whole after it; none: they are not on their way
        const void* next_dout = nullptr;  // of the block whose weight_grad comes next, if one does
    };
    void weight_grad(Stream&, const BlockShape&, char* dw, const PendingBlock& p, const BlockScratch&,
                     Chain* chain) const;

    AttentionShape attention_shape(const BlockShape&) const;

   private:
    int64_t own_rows(int64_t N) const { return tp_ ? tp_->rows(N) : N; }
    void attend(Stream&, const BlockShape&, const BlockActivations& a, float sharpness, uint32_t* amax,
                float* largest = nullptr) const;
    void watch_block(Stream&, const BlockActivations& a, const BlockWatch&, int64_t N, const float* lse,
                     float sharpness) const;
    template <class Body>
    const void* gathered(Stream&, int64_t N, const void* own, const BlockScratch&, const Body& product) const;
    const void* gathered(Stream&, int64_t N, const void* own, const BlockScratch&) const;
    // Of h1 or h2, which with slots are codes.
    template <class Body>
    void gathered_norm(Stream&, int64_t N, const void* own, const Fp8Scale* slots, const BlockScratch&,
                       const Body& product) const;
    const void* gathered_norm(Stream&, int64_t N, const void* own, const Fp8Scale* slots, const BlockScratch&,
                              const Event& begun) const;
    void row_parallel(Stream&, int64_t N, const void* x, const Operand& w, int64_t in, const BlockScratch&,
                      Fp8Scale* scale) const;
    void column_parallel_gradient(Stream&, int64_t N, const void* dy, const Operand& w, int64_t out,
                                  const BlockScratch&, Event* done, Fp8Scale* scale) const;
    // With tp's overlap, what goes on beside compute between the two halves of a backward pass: the rows of a weight's
    // gradient on their way to scratch.ahead, and those of dnorm on theirs.
    struct Beside {
        Event rows, dnorm;
    };
    Event start_gather(Stream&, int64_t N, const void* own, const BlockScratch&, void* all) const;
    const void* gathered(Stream&, int64_t N, const void* own, const BlockScratch&, const Event& begun) const;
    const void* arrived(Stream&, int64_t N, const void* own, const BlockScratch&, const Event& begun) const;
    void wait_for(Stream&, const Event&) const;

    void gate_up(Stream&, int64_t N, const BlockWeights& w, const BlockActivations& a, const BlockScratch&) const;
    const void* mlp_inputs(Stream&, int64_t N, const BlockWeights& w, const PendingBlock& p, const BlockScratch&,
                           Beside* beside) const;
    // `rows_free`: dout, or dmid, has been read by what is enqueued so far.
    void mlp_weights(Stream&, int64_t N, char* dw, const PendingBlock& p, const void* dout, const BlockScratch&,
                     const Event& h2_begun, const std::function<void()>& rows_free = nullptr) const;
    const void* attention_inputs(Stream&, const BlockShape&, const BlockWeights& w, const BlockActivations& a,
                                 const PendingBlock& p, const BlockScratch&, Beside* beside) const;
    void attention_weights(Stream&, int64_t N, char* dw, const PendingBlock& p, const void* dmid, const BlockScratch&,
                           const Event& h1_begun, const std::function<void()>& rows_free = nullptr) const;

    // The block's slots if its products have one scale for each operand.
    Fp8Scale* slots(Fp8Scale* scales) const { return fp8_ && keeps_codes(fp8_->recipe(), tp_) ? scales : nullptr; }
    uint32_t* fresh(Stream&, Fp8Scale* slots, ScaleOf which) const;
    void measure(Stream&, Fp8Scale* slots, ScaleOf which, const void* x, int64_t n) const;
    void* norm_place(void* kept, const Fp8Scale* slots, const BlockScratch& scratch) const;
    void keep_norm(Stream&, void* kept, Fp8Scale* slots, ScaleOf which, const BlockScratch&, int64_t rows) const;

    enum Matrix { kQkv, kOut, kGateUp, kDown };
    Operand matrix(const BlockWeights& w, Matrix which) const;
    const void* norm_weight(const BlockWeights& w, int which) const;

    ModelConfig config_;  // of this part
    BlockOffsets at_;
    std::vector<ElementRange> matrices_;
    DType dtype_, grad_dtype_;
    const float *cos_, *sin_;
    TensorParallel* tp_;
    const Fp8Linear* fp8_;
    ContextParallel* context_;
};

// h1, h2, o, gate_up and scales change places: `p` keeps what a forward pass left in `a`, and `a` can serve another
// micro-batch.
void exchange(BlockActivations& a, PendingBlock& p);

// dw (C) grad_dtype += sum (C): what a norm's input half has summed.
void add_norm_gradient(Stream&, void* dw, const float* sum, int64_t C, DType grad_dtype);

}  // namespace rz
