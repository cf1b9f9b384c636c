// Records which kernels ran, and runs launches. The CUDA runtime is the emulator's (test/simt/fake_cudart.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "test/ptx/counts.h"
#include "test/ptx/module.h"

namespace ptx {

struct Options {
    bool check_order = false;  // PTX_ORDER=1
    bool in_order = false;     // PTX_SEED=0: in order, asynchronous work at once
    uint32_t resident = 2;     // blocks at a time, or simt::options().resident if those are more
};
Options& options();

// Names (demangled) of the kernels launched since the last call
std::vector<std::string> take_launched();
// The modules registered by the program whose PTX was looked at, in order.
const std::vector<std::unique_ptr<Module>>& modules();
int device_arch();  // 80, 90
Counts* counts();   // null unless PTX_COUNTS is set

}  // namespace ptx
