#pragma once

#include "kernels/runtime/device.h"

namespace rz {

inline const Device kCpu{DeviceKind::cpu, 0};

}  // namespace rz
