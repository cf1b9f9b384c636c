#pragma once
// A linear layer of a block, wherever its product runs: on one rank or on the ranks of the tp axis
// (llama/parallel/tensor_parallel.h), in the tensors' type or in fp8 (linear_fp8.h), with or without rows on their way
// beside compute. With tp a layer is
//
//   column-parallel   each rank has some outputs: rows of x are gathered, partial sums of dx are added and scattered
//   row-parallel      each rank has some inputs: partial sums of y are added and scattered, rows of dy are gathered
//
// so that between the layers each rank has R of the N rows of the residual stream and all rows of some heads or some
// columns of ffn. Without tp R is N. `in` and `out` are this rank's.
//
// In fp8 with one scale for each operand (keeps_codes) the op that writes an operand also finds its magnitude: it is
// given magnitude_of_x() or magnitude_of_dy() as its amax. x of a column-parallel layer, which nothing but products
// reads, is then kept as e4m3 codes. With tp, x of a column-parallel and dy of a row-parallel layer travel as codes:
// they have the scale of all ranks' rows, so the codes that are gathered are those of the gathered rows, part by part
// too.

#include "kernels/runtime/device.h"
#include "llama/model/linear_fp8.h"
#include "llama/parallel/tensor_parallel.h"

namespace rz {

struct BlockShape {
    int64_t B, T;                        // new rows: N = B * T
    int64_t first_position = 0;          // > 0 when a cache already holds that many positions (B is 1 then)
    const int32_t* positions = nullptr;  // (B, T) of RoPE, where they are not first_position + t
    const int32_t* first_key = nullptr;  // (B, T) as attention's, where documents are packed; in the window
    bool rotates = true;                 // whether this block does RoPE
    int64_t rows() const { return B * T; }
};

// Memory that lives within one block's pass. All dtype unless noted; C = dim, Q = (heads + 2 kv_heads) * head_dim,
// F = ffn.
struct BlockScratch {
    void* branch = nullptr;     // (R, C)   the block's last output, until the next block adds it
    void* act = nullptr;        // (N, F)   swiglu output; its gradient in the backward pass
    void* dqkv = nullptr;       // (N, Q)
    void* dh = nullptr;         // (N, max(C, heads * head_dim)); partial sums of (N, C) have tp's wire type
    void* dnorm = nullptr;      // (R, C)   gradient of a norm's output: dh without tp; or codes of dy on their way
    void* whole = nullptr;      // (N, C)   with tp: gathered rows, or partial sums in its wire type
    void* ahead = nullptr;      // (N, C)   with tp's overlap: rows gathered for a weight's gradient
    void* attention = nullptr;  // attention_backward_workspace
    float* norm = nullptr;      // rmsnorm_backward_scratch(C), or what another sum over rows needs if that is more
    float* qk_sums = nullptr;   // (1 + ranks, N, 2)  of all heads' norm: this rank's, then of all; without tp (N, 2)
    Fp8Scale* parts = nullptr;  // (ranks)  with tp, where norms are kept as codes: each rank's magnitude
    void* kept = nullptr;       // attention_kept_bytes of score gradients, where that is not 0
    int64_t kept_bytes = 0;
};

// Shared by the parts of a block in one pass, and, with tp's overlap, what is on its way beside compute.
struct BlockPass {
    Stream& stream;
    const BlockShape& shape;
    const BlockScratch& scratch;
    // (kBlockScales) of this block and micro-batch; nullptr unless the layers keep codes. They are zeroed once, before
    // the micro-batch's first op: what is computed again has the same magnitude.
    Fp8Scale* scales;
    int64_t N, R;
    Event whole = {}, ahead = {}, dnorm = {};  // valid: after it the rows are in the scratch of that name
    const void* transposed_of = nullptr;       // the dy whose codes are there for weight_grad, too
    Operand transposed = nullptr;              // those
};

// Scales of a block's layers: of x and of dy of each of the four.
constexpr int kBlockScales = 8;
inline uint32_t* magnitude_of(Fp8Scale* scale) { return scale ? &scale->amax : nullptr; }
// True: layers in fp8 keep codes.
inline bool keeps_codes(Fp8Recipe recipe) { return recipe == Fp8Recipe::tensor; }

enum class Parallel { column, row };

class ParallelLinear {
   public:
    struct Layer {
        Parallel parallel;
        int64_t in, out;
        int64_t begin;              // of its weight in the unit, in elements
        int number;                 // of the block's four: its scales are 2 number and 2 number + 1
        bool x_is_measured = true;  // the op that writes x finds its magnitude; else it is measured here
        int64_t bias = -1;          // likewise of a column-parallel layer's bias; -1: none
    };
    // `tp` and `fp8` may be nullptr; they outlive this.
    ParallelLinear(const Layer& layer, DType dtype, DType grad_dtype, TensorParallel* tp, const Fp8Linear* fp8)
        : layer_(layer), dtype_(dtype), grad_dtype_(grad_dtype), tp_(tp), fp8_(fp8) {}

    // Every pass enqueues and returns. Column-parallel: x and dx have R rows, y and dy N; row-parallel: the other way
    // round.
    //
    // y = x W^T, plus the bias where the layer has one. Row-parallel: the partial sums pass through scratch.whole.
    void forward(BlockPass&, void* y, const void* x, const Operand& w, const void* bias = nullptr) const;
    // dx = dy W; returns dy with all rows, in scratch.whole with tp, as weight_grad reads it. Column-parallel:, dx is
    // scratch.dnorm and the partial sums pass through scratch.dh. `both`: weight_grad follows before another layer that
    // has all rows of its dy comes here, so dy is quantised once for both; and compute does not wait for dx of a
    // column-parallel layer before wait_for_dx().
    const void* input_grad(BlockPass&, void* dx, const void* dy, const Operand& w, bool both = false) const;
    // dw (a unit's gradients) += dy^T x at the layer's place, and at its bias's += the sum of dy's rows. dy has all
    // rows; those of x are gathered.
    void weight_grad(BlockPass&, char* dw, const void* dy, const void* x) const;

    // Row-parallel:: dy with all rows, for weight_grad.
    const void* all_rows(BlockPass&, const void* dy) const;
    // With tp's overlap the rows that weight_grad, or all_rows, will read set off now; else nothing happens.
    void x_sets_off(BlockPass&, const void* x) const;
    void dy_sets_off(BlockPass&, const void* dy) const;
    // Compute waits for what input_grad has left aside.
    void wait_for_dx(BlockPass&) const;

    // Slot for the magnitude of x, or dy, which the op that writes it fills; nullptr if nobody asks for it. That of dy
    // must be there before input_grad: with tp of this rank's rows.
    uint32_t* magnitude_of_x(const BlockPass&) const;
    uint32_t* magnitude_of_dy(const BlockPass& p) const { return magnitude_of(scale_of_dy(p.scales)); }
    // Finds it in a pass over n elements.
    void measure_dy(BlockPass&, const void* dy, int64_t n) const;
    Fp8Scale* scale_of_dy(Fp8Scale* scales) const { return scales ? scales + 2 * layer_.number + 1 : nullptr; }
    // Column-parallel:: the op that makes x writes it there, then `kept` is made of it, or of the `x` that is there.
    void* place_of_x(const BlockPass& p, void* kept) const { return p.scales ? p.scratch.dnorm : kept; }
    void keep_x(BlockPass&, void* kept, const void* x) const;

   private:
    Fp8Scale* scale_of_x(const BlockPass& p) const { return p.scales ? p.scales + 2 * layer_.number : nullptr; }
    Fp8Scale* scale_of_dy(const BlockPass& p) const { return scale_of_dy(p.scales); }
    Operand operand_x(const BlockPass&, const void* x) const;
    Operand operand_dy(const BlockPass&, const void* dy) const;
    Operand dy_both_ways(BlockPass&, const void* dy) const;
    Operand dy_of_weight_grad(BlockPass&, const void* dy) const;
    bool coded_dy(const BlockPass& p) const { return tp_ && p.scales && layer_.parallel == Parallel::row; }
    // The rows that travel: this rank's, so many columns of a type.
    struct Rows {
        const void* own;
        int64_t columns;
        DType dtype;
    };
    Rows rows_of_x(const BlockPass&, const void* x) const;
    Rows rows_of_dy(BlockPass&, const void* dy) const;
    const void* gather(BlockPass&, const Rows&) const;
    template <class Product>
    const void* by_rows(BlockPass&, const Rows&, const Product& product) const;

    Layer layer_;
    DType dtype_, grad_dtype_;
    TensorParallel* tp_;
    const Fp8Linear* fp8_;
};

}  // namespace rz
