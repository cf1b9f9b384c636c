#pragma once
// What `train_llama export` can be asked for.

#include <optional>
#include <string>

#include "kernels/runtime/dtype.h"
#include "llama/train/option_table.h"

namespace rz {

struct ExportOptions {
    std::string from, to;
    bool overwrite = false;      // a model that is there already
    std::optional<DType> dtype;  // of the weights written; none: as stored
    std::string tokenizer;       // whose files are copied; empty: those of `from`
};

CommandTable command_table(ExportOptions&);

}  // namespace rz
