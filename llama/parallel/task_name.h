#pragma once
// Names of tasks in traces and profilers.

#include <string>

#include "kernels/runtime/check.h"
#include "llama/parallel/program.h"

namespace rz {

inline std::string task_name(const Instr& i) {
    return name_of(i.what) + format(" %d of stage %d", i.micro_batch, i.stage);
}

}  // namespace rz
