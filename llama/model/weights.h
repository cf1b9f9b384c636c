#pragma once
// Weights between files and devices.

#include <string>

#include "llama/model/config.h"
#include "llama/model/param_table.h"
#include "zero/zero.h"

namespace rz {

// Reads a Hugging Face folder into what this rank owns of the masters, and publishes. Warnings go to stderr.
void load_weights(const std::string& folder, const ParamTable&, Device, Stream&, Zero&);
// The same into resident parameters.
void load_weights(const std::string& folder, const ParamTable&, DType, Device, Stream&, ResidentParameters&);

// Saves a model folder that opens in Hugging Face's libraries. All ranks call it, each unit is gathered in turn and
// `writes` says who writes the file. Synchronises.
void save_weights(const std::string& folder, const ModelConfig&, const ParamTable&, DType, Device, Stream&,
                  ParameterSource&, bool writes, const std::string& tokenizer_from);

}  // namespace rz
