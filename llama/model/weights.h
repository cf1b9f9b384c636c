#pragma once
// Weights from files to devices (checkpoint/export_weights.h has the way back).

#include <string>

#include "llama/model/config.h"
#include "llama/model/param_table.h"
#include "zero/zero.h"

namespace rz {

constexpr int64_t kWeightsPiece = int64_t(4) << 20;  // elements moved at a time

// Reads a Hugging Face folder into what this rank owns of the masters, and publishes. Warnings go to stderr.
// grow: as of HfWeights.
void load_weights(const std::string& folder, const ParamTable&, Device, Stream&, Zero&, const uint64_t* grow = nullptr);
// The same into the owned slices of parameters that train nowhere, and publishes.
void load_weights(const std::string& folder, const ParamTable&, DType, Device, Stream&, const Ownership&,
                  ParameterCache&);
// The same into resident parameters.
void load_weights(const std::string& folder, const ParamTable&, DType, Device, Stream&, ResidentParameters&);

}  // namespace rz
