#pragma once
// Options of `train_llama export` and `train_llama average`.

#include <optional>
#include <string>
#include <vector>

#include "kernels/runtime/dtype.h"
#include "kernels/runtime/names.h"
#include "llama/model/hf.h"
#include "llama/train/option_table.h"

namespace rz {

enum class ModelFormat { hf, gguf };
template <>
inline constexpr auto kNames<ModelFormat> = std::to_array<Named<ModelFormat>>({{ModelFormat::hf, "hf"},
                                                                               {ModelFormat::gguf, "gguf"}});

struct ExportOptions {
    ModelFormat format = ModelFormat::hf;
    std::string from, to;
    bool average = false;        // the average of the weights instead
    bool overwrite = false;      // a model that is there already
    std::optional<DType> dtype;  // of the weights written; none: as stored
    int64_t shard_above_mib = kShardAbove >> 20;
    std::string tokenizer;  // whose files are copied; empty: those of `from`
};

CommandTable command_table(ExportOptions&);

// For `train_llama average A B C --to D`: `from` has A,B,C.
struct AverageOptions : ExportOptions {};
CommandTable command_table(AverageOptions&);
// The words after `average`, up to the first flag, as the value of --from.
std::vector<std::string> models_as_flag(std::vector<std::string> arguments);

}  // namespace rz
