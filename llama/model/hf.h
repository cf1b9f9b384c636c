#pragma once
// Hugging Face model folders: config.json and safetensors under Hugging Face's tensor names, in one file or in shards.
// Import and export copy bytes: RoPE runs in the same half-rotated layout, so no weight is permuted.

#include <functional>
#include <map>
#include <optional>
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llama/model/config.h"
#include "llama/model/param_table.h"
#include "llama/base/safetensors.h"

namespace rz {

// The folder that `spec` means: a folder with a config.json; the path of a config.json, model.safetensors or
// model.safetensors.index.json; or a repo id "org/name", optionally "@revision", in the local Hugging Face cache
// ($HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub: the first that is set).
// Nothing is downloaded: if the repo is not there, the error has the command that fetches it.
std::string resolve_model(const std::string& spec);

// The folder's config.json, resolved.
ModelConfig load_config(const std::string& folder);

// The weight_map of a model.safetensors.index.json: tensor -> file. Refuses names that are no plain file names.
std::map<std::string, std::string> parse_weight_map(std::string_view json, const std::string& where);

// A folder's weights, checked against a table before any is read.
class HfWeights {
   public:
    // Throws one error with the whole list of what is wrong: tensors that are missing, unexpected, of another shape, of
    // a type that is no weight, or stored twice; shards that are missing or not what the index says.
    // "*.rotary_emb.inv_freq" of old files is ignored. A tied model may carry lm_head.weight; a warning says if it is
    // not the embedding.
    // grow: a seed. The table's vocabulary may then be larger than the files': a row that they lack is the mean of
    // those they have, with noise of a hundredth of their standard deviation.
    // average: those of a checkpoint's optimizer/ema.safetensors (--ema) instead.
    HfWeights(const std::string& folder, const ParamTable&, const uint64_t* grow = nullptr, bool average = false);

    const std::vector<std::string>& warnings() const { return warnings_; }
    DType stored_dtype(const Tensor&) const;
    // The type of all weights, or of most parameters if they are mixed: what an export should use.
    DType dtype() const { return dtype_; }

    // Elements [first, first + count) of a tensor of the table, converted. Any thread.
    void read(const Tensor&, int64_t first, int64_t count, DType, void* out) const;

   private:
    struct TensorInFile {
        const Safetensors* file;
        const StoredTensor* tensor;
    };
    void open_shards(const std::string& folder);
    void open_average(const std::string& folder);
    void index_tensors();
    void compare_with(const ParamTable&);
    void check_stored_head(const ParamTable&);
    void make_rows(const Tensor&);
    const TensorInFile& place(const Tensor&) const;

    std::vector<Safetensors> files_;
    std::unordered_map<std::string, TensorInFile> places_;
    struct NewRows {
        int64_t stored;  // elements that the files have
        uint64_t stream;
        std::vector<float> mean;
        float noise;
    };
    std::unordered_map<std::string, NewRows> new_rows_;
    std::optional<uint64_t> grow_;
    std::vector<std::string> problems_, warnings_;
    DType dtype_ = DType::f32;
};

// Writes elements [first, first + count) of the tensor to `out`, in the type that is being saved. Called for every
// tensor once, in order, piece by piece.
using WeightSource = std::function<void(const Tensor&, int64_t first, int64_t count, void* out)>;

// The small files of a model's folder, in memory: what a checkpoint needs is read when the run begins, and may go away
// after that.
class TokenizerFiles {
   public:
    TokenizerFiles() = default;
    // A tokenizer's folder, or one of its files; empty: none. A file with a name of its own is the tokenizer, which it
    // is called here; of its folder only tokenizer_config.json goes with it.
    TokenizerFiles(const std::string& from);
    TokenizerFiles(const char* from) : TokenizerFiles(std::string(from)) {}
    // All that lies beside a model's weights and config.json, in folders too: tokenizer, generation_config.json, chat
    // template, license. Left out are weights, hidden files, and folders that hold a model or a run of their own.
    // Each is what its name says (JSON, text, a picture); others and those above 64 MiB are left out, and those of the
    // tokenizer refused.
    static TokenizerFiles beside_model(const std::string& folder);

    bool has_tokenizer() const;
    // The tokenizer is `from`'s. What only fits the one before (merges, chat template) goes.
    void replace_tokenizer(const TokenizerFiles& from);
    // The chat template is `from`'s where there is none yet: conversations were prepared with it.
    void add_chat_template(const TokenizerFiles& from);
    // generation_config.json gets the model's token ids, and keeps what else it says; one is made where there is none
    // and the model has an end token.
    void set_token_ids(const ModelConfig&);
    void write_to(const std::string& folder) const;
    const std::vector<std::string>& left_out() const { return left_out_; }  // lines for people

   private:
    void take(const std::string& folder, const std::string& name);
    std::vector<std::string> left_out_;
    std::map<std::string, std::string> files_;  // name inside the folder, content
};

// generation_config.json's token ids, where there is one: they go before config.json's.
void read_generation_config(const std::string& folder, ModelConfig&);

// Deletes a model's weights (model*.safetensors), configuration and tokenizer from the folder.
void remove_model(const std::string& folder);

// Makes the folder if need be, and copies the tokenizer's files from `tokenizer`.
void prepare_model_folder(const std::string& folder, const TokenizerFiles& tokenizer);

// Writes the weights and config.json into `folder` (made if need be), each file whole or not at all, and copies the
// tokenizer's files if there are any. Several files of weights get an index, written last. Refuses a folder with
// another model's index of shards.
void save_model(const std::string& folder, const ModelConfig&, const ParamTable&, DType, const WeightSource&,
                const TokenizerFiles& tokenizer = {}, int64_t shard_above = 0);

// The tensors of `table` as one safetensors file would hold them, in table order.
std::vector<TensorSpec> tensor_specs(const ParamTable&, DType);

// A file of tensors, by their numbers in the table, ascending.
struct TensorFile {
    std::string path;
    std::vector<int> tensors = {};
    SafetensorsLayout layout = {};
    bool holds(int tensor) const { return std::binary_search(tensors.begin(), tensors.end(), tensor); }
    size_t place(int tensor) const {  // among them
        return size_t(std::lower_bound(tensors.begin(), tensors.end(), tensor) - tensors.begin());
    }
    int64_t offset(int tensor) const { return layout.offsets[place(tensor)]; }
};
// STEM.safetensors; where that would be larger than `shard_above` bytes (0: never), STEM-00001-of-00034.safetensors and
// so on, one for each unit: ranks that write one file at once wait for each other on a cluster's file system. `shape`:
// of a tensor in them; empty: it is left out.
std::vector<TensorFile> tensor_files(
    const std::string& stem, const ParamTable&, DType, int64_t shard_above,
    const std::function<std::vector<int64_t>(const Tensor&)>& shape = [](const Tensor& t) { return t.shape; });
// transformers wants this file beside several files of weights.
constexpr const char* kWeightIndex = "model.safetensors.index.json";
std::string weight_index(const std::vector<TensorFile>&, const ParamTable&);
constexpr int64_t kShardAbove = int64_t(5) << 30;  // bytes

}  // namespace rz
