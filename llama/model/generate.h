#pragma once
// Text from a model: one sequence, a cache of keys and values, and a choice of the next token.

#include <functional>
#include <map>
#include <vector>

#include "llama/model/block.h"
#include "llama/parallel/executor.h"
#include "zero/parameter_source.h"

namespace rz {

struct Sampling {
    double temperature = 0.8;  // 0: the likeliest token
    int64_t top_k = 0;         // 0: all
    double top_p = 1.0;
    uint64_t seed = 0;
};

// The next token: softmax(logits / temperature) cut to top_k, then to the fewest tokens that reach top_p, then drawn
// with the `position`-th number of the seed's Philox stream. Ties go to the lower id, so the same logits give the same
// token.
int32_t choose_token(const std::vector<float>& logits, const Sampling&, int64_t position);

// The forward pass of one sequence, a few tokens at a time. The cache holds rotated qkv rows as the projection writes
// them, so nothing is copied: attention reads k and v in place. With `tp` the table is a part of each tensor, and all
// ranks of the axis append the same tokens.
class Decoder {
   public:
    Decoder(const ModelConfig&, const ParamTable&, DType, Device, Stream&, ParameterSource&, int64_t max_positions,
            TensorParallel* tp = nullptr);
    // One rank of a pipeline, with its program of a forward pass; `head_rank` of the pp axis holds the last unit. All
    // ranks of the axis append the same tokens.
    Decoder(const ModelConfig&, const ParamTable&, DType, Device, Stream&, ParameterSource&, int64_t max_positions,
            const RankProgram& forward, Mesh&, int head_rank, TensorParallel* tp = nullptr);

    // Appends tokens (ids below the vocabulary) and returns the logits (V) after the last one, on every rank.
    // Synchronises.
    std::vector<float> append(const std::vector<int32_t>& tokens);
    int64_t position() const { return position_; }
    int64_t max_positions() const { return max_positions_; }
    void reset() { position_ = 0; }

   private:
    struct Host;
    Decoder(const ModelConfig&, const ParamTable&, DType, Device, Stream&, ParameterSource&, int64_t max_positions,
            RankProgram, Mesh*, int head_rank, TensorParallel*);
    int64_t own_rows(int64_t count) const { return tp_ ? tp_->rows(count) : count; }
    void forward_chunk(const int32_t* tokens, int64_t count);
    void forward_unit(int unit, const StageUnits&, int64_t count);
    void forward_head(int64_t count, const void* previous_mid);

    ModelConfig config_, part_;  // of the model; of what this rank holds of a block
    const ParamTable& table_;
    TensorParallel* tp_;
    DType dtype_;
    Device device_;
    Stream& stream_;
    ParameterSource& parameters_;
    RankProgram program_;  // one forward pass
    Mesh* mesh_;           // of a pipeline
    int head_rank_;
    Executor executor_;
    int64_t max_positions_, position_ = 0;
    Buffer cos_, sin_, window_;
    Block block_;
    std::vector<Buffer> buffers_;
    std::vector<void*> cache_;      // by layer (max_positions, Q); nullptr: another rank's
    std::map<int, void*> outputs_;  // by stage (tokens, C), but of the last
    BlockActivations a_;
    BlockScratch scratch_;
    void* final_norm_ = nullptr;  // (n, C)
    int32_t* tokens_ = nullptr;
    void* logits_ = nullptr;       // of this rank's part of the vocabulary
    float* own_logits_ = nullptr;  // likewise, with tp
    float* logits32_ = nullptr;
    std::vector<float> host_;
};

// Continues `prompt` (not empty) by up to max_tokens, calling emit for each new token; stops after emit returns false,
// at one of the config's eos ids, or when the positions are used up. Returns the number of new tokens.
int64_t generate(Decoder&, const ModelConfig&, const std::vector<int32_t>& prompt, int64_t max_tokens, const Sampling&,
                 const std::function<bool(int32_t)>& emit);

}  // namespace rz
