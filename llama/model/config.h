#pragma once
// The architecture of a LLaMA or a relative of it: what Hugging Face's config.json says, under shorter names.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/rope.h"
#include "kernels/runtime/dtype.h"

namespace rz {

struct ModelConfig {
    int64_t dim = 0;             // C, hidden_size; a multiple of 8, so that every tensor starts on a 16-byte boundary
    int64_t layers = 0;          // L
    int64_t heads = 0;           // H, query heads; divides dim
    int64_t kv_heads = 0;        // divides heads; 0: as many as heads (until resolve())
    int64_t head_dim = 0;        // D, even; 0: dim / heads (until resolve())
    int64_t ffn = 0;             // F, intermediate_size
    int64_t vocab = 0;           // V
    int64_t max_seq_len = 2048;  // max_position_embeddings

    double rope_theta = 10000;
    RopeScaling rope_scaling;  // factor 1: none; of dynamic, original_max_position is max_seq_len
    double norm_eps = 1e-5;
    bool tied = false;       // the head is the embedding
    bool qk_norm = false;    // RMSNorm of each head of q and of k, before RoPE
    bool post_norm = false;  // norms of what attention and MLP add, not of what they read; of all of q, all of k
    bool qkv_bias = false;   // q, k and v have biases
    int64_t nope_every = 0;  // blocks N - 1, 2N - 1, ... do not rotate q and k; 0: all rotate
    int64_t window = 0;      // keys that a query sees at most, its own among them; 0: all up to its own
    double init_std = 0.02;
    // A factor of init_std for o_proj and down_proj, whose products are added to the residual stream. Below 0: it is
    // 1 / sqrt(2 L), as in GPT-2. config.json does not have it.
    double branch_init = -1;

    int64_t bos = -1;          // -1: none
    std::vector<int64_t> eos;  // any of them ends a text
    int64_t pad = -1;

    // Derives what is 0, then checks every field and every product of fields; throws naming the field, the value found
    // and the nearest valid one. Call it once after the last override; everything else expects a resolved config.
    void resolve();

    int64_t q_rows() const { return heads * head_dim; }
    int64_t kv_rows() const { return kv_heads * head_dim; }
    int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
    // Gains of the norms of q and of k, before RoPE: those of one head for each head, or of all together; 0: no norms.
    int64_t q_gains() const { return qk_norm ? head_dim : post_norm ? q_rows() : 0; }
    int64_t k_gains() const { return qk_norm ? head_dim : post_norm ? kv_rows() : 0; }
    // True: the block rotates q and k by their positions.
    bool rotates(int64_t block) const { return nope_every == 0 || (block + 1) % nope_every != 0; }
    // The window, where it hides anything of the longest sequence; else 0.
    int64_t hiding_window() const { return window < max_seq_len ? window : 0; }
    // Distinct parameters; a tied head counts once.
    int64_t parameter_count() const;
    // 2 x this is the matmul FLOPs of a token's forward pass without attention scores: all but the norms and the
    // lookup.
    int64_t matmul_parameters() const;
};

// The integer fields, for flags, for config.json and for comparisons: each name is written once, here.
struct ConfigField {
    const char* name;  // of the flag
    const char* key;   // in config.json; nullptr: the architecture says it there
    int64_t ModelConfig::*member;
    int64_t min, max;
    const char* help;
};
std::span<const ConfigField> config_fields();

// Likewise the fields that are on or off.
struct ConfigSwitch {
    const char* name;
    bool ModelConfig::*member;
    const char* help;
};
std::span<const ConfigSwitch> config_switches();

// An architecture of transformers: a config.json that names it is read by this row, and a config is written as the
// first row that has all of its switches and no more. resolve() refuses a config that no row computes.
struct Architecture {
    const char* type;  // model_type
    const char* name;  // of transformers' class
    const char* gguf;  // llama.cpp's name
    bool qkv_bias = false, qk_norm = false, post_norm = false, nope = false, window = false;
    bool pairs = false;  // llama.cpp rotates neighbours of a head, not halves: rows of q and k are in another order
    bool rope_factors = false;  // llama.cpp reads rope_freqs.weight
    bool gguf_heads = true;     // llama.cpp reads head_dim; else it is the width over the heads
    bool gguf_tied = true;      // llama.cpp takes the embedding where there is no head
    // For files that do not say: transformers' defaults. 0: as ModelConfig.
    int64_t kv_heads = 0, head_dim = 0, max_seq_len = 0;
    double rope_theta = 1e4;  // absent from Llama-1 and early Llama-2 files
    double norm_eps = 1e-6;   // though every popular Llama file says 1e-5
    int64_t bos = -1, eos = -1, pad = -1;
    bool tied = false;
};
const Architecture& architecture_of(const ModelConfig&);

// "46.5M parameters: dim 512, 5 layers, 8 heads (4 kv) of 64, ffn 1280, vocab 32000, untied"
std::string summary(const ModelConfig&);

// Throws where the model can't be cut into `tp` parts, naming the nearest numbers: heads are dealt out evenly, as are
// key/value heads or, where they are fewer, parts among them; ffn and vocabulary need not divide.
void check_tensor_parallel(const ModelConfig&, int64_t tp);

// One line per field of the model's shape or arithmetic that differs ("layers: 5 in a, 6 in b"); empty if the same
// weights compute the same function under both. Token ids and initialisation are not compared.
std::string differences(const ModelConfig& a, const ModelConfig& b, std::string_view name_a, std::string_view name_b);

// config.json of an Architecture; a MistralForCausalLM without sliding window is a LlamaForCausalLM. Reads the forms of
// transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters), ignores unknown keys, and refuses by key name
// whatever it can't honour. `where` is named in errors. The result is resolved.
ModelConfig config_from_json(std::string_view text, const std::string& where);
// The form that both transformers 4 and 5 read: the older pair of rope keys, both dtype keys.
std::string config_to_json(const ModelConfig&, DType weights);

}  // namespace rz
