#pragma once
// A model as one GGUF file (version 3), for llama.cpp and what is built on it: metadata, tokenizer, tensors.
//
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Matrices are of the type that is asked for, norms
// F32. Rows of q and k are reordered within each head, since llama.cpp rotates neighbouring elements where Hugging
// Face's layout rotates halves. RoPE scaling: the frequencies of llama3 and yarn become the tensor rope_freqs.weight
// (llama.cpp's own yarn has one pair of betas and rounds them), linear and yarn's factor of cos and sin metadata;
// dynamic, which changes nothing within the model's positions, is left out.

#include <string>

#include "llama/model/config.h"
#include "llama/model/hf.h"
#include "llama/tokenizer/tokenizer.h"

namespace rz {

// Written whole or not at all. tokenizer: nullptr leaves it out. Throws on a tokenizer that llama.cpp has no name for.
void save_gguf(const std::string& path, const ModelConfig&, const ParamTable&, DType, const HfWeights&,
               const Tokenizer* tokenizer);

}  // namespace rz
