#pragma once
// The weights as a model folder that opens in Hugging Face's libraries, written by all ranks.

#include <string>

#include "comm/process.h"
#include "llama/model/config.h"
#include "llama/model/hf.h"
#include "llama/model/param_table.h"
#include "zero/zero.h"

namespace rz {

constexpr int64_t kExportPiece = int64_t(4) << 20;  // elements that a rank moves at a time

// Collective. Every rank writes what it owns of the parameters into the one file, or into those of their units
// (tensor_files()); nothing is gathered. The files appear whole or not at all, an index of several last; what fails on
// one rank is thrown on all. Several hosts need a shared file system. Waits for the stream.
void export_weights(const std::string& folder, const ModelConfig&, const ParamTable&, Process&, Device, Stream& compute,
                    const Zero&, const TokenizerFiles& tokenizer, int64_t shard_above = kShardAbove);

}  // namespace rz
