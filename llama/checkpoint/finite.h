#pragma once
// NaN and infinity in a training state, which must never hold them.

#include <string>

#include "comm/process.h"
#include "llama/base/finite.h"
#include "llama/model/param_table.h"
#include "zero/zero.h"

namespace rz {

constexpr int64_t kFinitePiece = int64_t(1) << 20;  // elements that a rank looks at at a time

// Collective: "" if every parameter is finite, else what is not and where. Waits for the stream.
std::string find_not_finite(Process&, Device, Stream& compute, const Zero&, const ParamTable&);

}  // namespace rz
