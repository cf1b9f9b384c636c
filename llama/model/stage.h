#pragma once
// A run of the model's units on one rank: their activations, forward and backward pass. The whole model is one stage;
// of a pipeline a rank has one or two. A stage is told which unit to work on, in which slot, and never decides what
// comes next (llama/parallel/program.h does); parameters are whole when it is called, and gradients are where the sink
// says.
//
// One tensor (N, C) enters a stage and one leaves it: the residual stream. In between a block leaves two, mid and
// branch, which the next one adds as it reads them, so the forward units of a micro-batch are called one after the
// other.
//
// With tensor parallelism (StageOptions::tp) a rank holds a part of each tensor and, of a micro-batch's N rows of the
// residual stream, R neighbouring ones: what enters and leaves a stage is (R, C). All ranks of the tp axis run the same
// units in the same order, on the same batch.
//
// Slots hold what several micro-batches in flight need at once: a forward slot the activations from forward to backward
// (or input_grad), a weight slot what weight_grad reads after input_grad.

#include <memory>
#include <optional>
#include <vector>

#include "kernels/runtime/graph.h"
#include "kernels/runtime/memory.h"
#include "llama/data/batch.h"
#include "llama/model/block.h"
#include "llama/model/config.h"
#include "llama/model/fp8_weights.h"
#include "llama/model/linear_fp8.h"
#include "llama/model/param_table.h"
#include "llama/model/residual_offload.h"
#include "zero/gradient_sink.h"
#include "zero/parameter_source.h"

namespace rz {

struct StageOptions {
    int64_t B, T;  // largest micro-batch
    DType dtype = DType::f32, grad_dtype = DType::f32;
    std::optional<DType> block_grad_dtype = {};  // of blocks; none: grad_dtype
    Recompute recompute = Recompute::none;
    int64_t logits_bytes = int64_t(1) << 30;  // largest chunk of logits
    TensorParallel* tp = nullptr;             // nullptr: this rank holds all of each tensor; outlives the stages
    ContextParallel* context = nullptr;       // T is then this rank's part of each sequence; likewise
    Fp8Options fp8 = {};                      // of the blocks' linear layers
    bool offload = false;                     // with Recompute::block: what blocks keep is on the host meanwhile
    float z_loss = 0;                         // factor of (log sum exp of the logits)^2 in training's loss
};

// Purpose of a pass.
enum class Pass {
    train,   // forward of the last unit is the final norm; its backward is the head (logits, loss, dX, dW) and the norm
    loss,    // forward only; the token losses are added to Workspace::loss_sum()
    score,   // forward only: each token's loss, and the likeliest token in its place
    logits,  // forward only
};
struct PassArgs {
    Pass pass;
    float grad_scale =
        0;  // train: gradients are those of grad_scale * (sum of token losses); 1 / targets of the update
    const float* loss_scale = nullptr;  // train: (1) on the device, a further factor of the gradients; optional
    BlockStats watch = {};              // train: of block 0, those of the others after it; optional
    void* logits = nullptr;             // logits: where they go, (B*T, V) dtype, on the device
    float* losses = nullptr;            // score: (B*T), 0 where there is no target, on the device
    int32_t* best = nullptr;            // score: (B*T) tokens (kernels/argmax.h), on the device
};

// Memory and tables that the stages of a rank use one after the other.
class Workspace {
   public:
    // `with_head`: one of the stages has the last unit; `whole_backward`: some call backward, not its halves alone.
    Workspace(const ModelConfig&, const ParamTable&, const StageOptions&, bool with_head, Device, Stream& compute,
              bool whole_backward = true);

    // Block of a unit: its layers in fp8 or not.
    const Block& block(int unit) const { return fp8_options_.covers(unit - 1, blocks_) ? *fp8_block_ : block_; }
    // Weights that a block reads of parameters that lie whole.
    BlockWeights weights(int unit, const void* whole, int64_t version);
    const BlockScratch& scratch() const { return scratch_; }
    void* logits() const { return logits_; }  // (chunk_rows, V) dtype
    int64_t chunk_rows() const { return chunk_rows_; }
    float* losses() const { return losses_; }  // (N)
    // (N) with StageOptions::z_loss; and their sum, (1) double, as loss_sum() is that of the losses.
    float* z_losses() const { return z_losses_; }
    double* z_sum() const { return z_losses_ ? loss_sum() + 1 : nullptr; }

    // (tp + 1, chunk_rows, kVocabStats) with tp: what each rank says of a row, then this one's.
    float* vocab_stats() const { return vocab_stats_; }
    // (tp + 1, chunk_rows) with tp: each rank's likeliest token of a row, then this one's.
    int32_t* vocab_best() const { return vocab_best_; }
    // (1) double on the device: the token losses added up since reset_loss(). Zero without a head, and on all ranks of
    // the tp axis but the first.
    double* loss_sum() const { return loss_sum_.as<double>(); }
    void reset_loss() { stream_.zero(loss_sum_.data(), loss_sum_.bytes()); }

   private:
    Stream& stream_;
    Buffer cos_, sin_, window_;
    Block block_;
    int64_t blocks_;  // of the model
    Fp8Options fp8_options_;
    std::optional<Fp8Linear> fp8_;
    std::optional<Block> fp8_block_;
    std::optional<Fp8Weights> fp8_weights_;
    std::vector<Buffer> buffers_;
    BlockScratch scratch_;
    void* logits_ = nullptr;
    float *losses_ = nullptr, *z_losses_ = nullptr, *vocab_stats_ = nullptr;
    int32_t* vocab_best_ = nullptr;
    int64_t chunk_rows_ = 0;
    Buffer loss_sum_;
};

class Stage {
   public:
    // Units first_unit..last_unit, at least one block among them. The workspace, parameters and gradients outlive this;
    // `gradients` may be nullptr for forward-only work.
    Stage(const ModelConfig&, const ParamTable&, const StageOptions&, int first_unit, int last_unit, int forward_slots,
          int weight_slots, Device, Stream& compute, Workspace&, ParameterSource&, GradientSink* gradients);

    int first_unit() const { return first_unit_; }
    int last_unit() const { return last_unit_; }

    // Each enqueues one unit of a micro-batch and returns. `slot` keeps the activations until its backward or
    // input_grad of the stage's first unit. Throws if the batch is larger than the stage was built for.
    void forward(int unit, int slot, const DeviceBatch&, const PassArgs&);
    void backward(int unit, int slot, const DeviceBatch&, const PassArgs&);
    void input_grad(int unit, int slot, int weight_slot, const DeviceBatch&, const PassArgs&);
    // `then_below`: the unit below comes next, and nothing in between.
    void weight_grad(int unit, int weight_slot, const DeviceBatch&, bool then_below = false);

    // (R, C) dtype of a slot: what enters the first unit (with unit 0: the embedding writes it), what leaves the last
    // unit (not with the model's last unit), and the gradient of either, which the backward pass turns from that of the
    // output into that of the input.
    void* input(int slot) const { return slots_[size_t(slot)].blocks.front().resid; }
    void* output(int slot) const { return slots_[size_t(slot)].output; }
    void* gradient(int slot) const { return slots_[size_t(slot)].gradient; }

    // Enqueues now what is made of parameters once per change, so that no pass of a block does it.
    void ready_weights();

    // From now on each block's passes and the head are replayed as CUDA graphs. What is done between them is not
    // recorded.
    void replay_graphs() { replays_ = true; }
    const GraphSet& graphs() const { return graphs_; }

   private:
    struct Slot {
        std::vector<BlockActivations> blocks;
        void *output = nullptr, *gradient = nullptr;         // (R, C)
        void *final_resid = nullptr, *final_norm = nullptr;  // (R, C)   with the model's last unit
        float* final_rstd = nullptr;                         // (R)
    };
    struct WeightSlot {
        std::vector<WeightGradInputs> blocks;
        void* embedding_gradient = nullptr;  // (R, C)  with unit 0
        float* dw_final_norm = nullptr;      // (C)     with the model's last unit
    };
    enum class GraphRegion { forward, backward, input_grad, weight_grad, head, loss, score };

    bool has_embedding() const { return first_unit_ == 0; }
    bool has_head() const { return last_unit_ == model_last_; }
    int first_block() const { return std::max(first_unit_, 1); }
    int last_block() const { return has_head() ? last_unit_ - 1 : last_unit_; }
    size_t index(int unit) const { return size_t(unit - first_block()); }

    void add_slot(int number);
    void add_weight_slot(int number);
    void* take(int64_t rows, int64_t columns, int64_t element, MemKind kind, const std::string& name);
    Fp8Scale* take_scales(const std::string& of_slot);
    void zero_scales(Fp8Scale* of_slot);
    const char* parameters(const Tensor&);
    BlockWeights block_weights(int unit);
    char* gradients(const Tensor&);
    void check(const DeviceBatch&) const;
    int64_t own_rows(const DeviceBatch& b) const { return options_.tp ? options_.tp->rows(b.B * b.T) : b.B * b.T; }
    void final_norm(const Slot&, int64_t rows);
    void head(const Slot&, const DeviceBatch&, const PassArgs&);
    void head_chunk(const char* x, const char* w, char* dw, int64_t first, int64_t rows, const DeviceBatch&,
                    const PassArgs&);
    void losses(int64_t first, int64_t rows, const DeviceBatch&, const PassArgs&);
    void final_norm_backward(const Slot&, int64_t rows, void* dx, float* dw_sum, Fp8Scale* of_dx);
    Fp8Scale* scale_of_dout(int unit, const Slot&, const WeightSlot* pending = nullptr) const;
    void measure_dout(int unit, Fp8Scale* scale, const void* dout, int64_t rows);
    void embedding_gradient(const void* dx, const DeviceBatch&);
    void graph_region(const GraphSet::Key& key, const std::function<void()>& enqueue);

    ModelConfig config_, part_;  // of the model; of what this rank holds of a block
    const ParamTable& table_;
    StageOptions options_;
    TensorShard vocab_;  // rows of the embedding and the head that this rank holds
    int first_unit_, last_unit_, model_last_;
    Device device_;
    Stream& stream_;
    Workspace& work_;
    ParameterSource& parameters_;
    GradientSink* gradients_;
    std::vector<Buffer> buffers_;
    std::vector<Slot> slots_;
    std::vector<WeightSlot> weight_slots_;
    std::optional<ResidualOffload> offload_;
    Event dout_there_;  // of the next weight_grad
    bool replays_ = false;
    GraphSet graphs_;
};

// First keys for attention where no batch has its own: max(0, position - window + 1), by position, or, where
// ranks share sequences, of this rank's rows of each of B. Empty where no query is further on. Waits for the stream.
Buffer make_window(const ModelConfig&, int64_t positions, Device, Stream&, const ContextParallel* context = nullptr);

// Fills RoPE tables (positions, head_dim / 2) on a device; waits for the stream.
void make_rope_tables(const ModelConfig&, int64_t positions, Device, Stream&, Buffer& cos_table, Buffer& sin_table);

// Rows of the residual stream from the embedding, this rank's into lookup.x. Each rank of the tp axis looks up its own
// part of the vocabulary: of the ranks' sums, all terms but one are zero.
struct EmbeddingForward;
void embed(Stream&, EmbeddingForward lookup, const BlockScratch&, TensorParallel*);

}  // namespace rz
