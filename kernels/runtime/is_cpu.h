#pragma once
#include "kernels/runtime/context.h"

namespace rz {

// A CPU, or planned as one.
inline bool is_cpu(const Device& d) {
    return d.kind == DeviceKind::cpu || (d.is_planned() && d.context && d.context->one_memory);
}

}  // namespace rz
