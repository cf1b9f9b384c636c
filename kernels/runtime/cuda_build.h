#pragma once
#include <string>

namespace rz {

// "CUDA 13.0, driver 580 or newer", or "no CUDA": what this program was built with.
std::string cuda_build();

}  // namespace rz
