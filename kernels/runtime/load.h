#pragma once
// Kernels are loaded before anything communicates. By default CUDA loads a kernel's code at its first launch, and that
// may wait until the device is idle (CUDA C++ Programming Guide, "Lazy Loading"). Where a kernel of NCCL is under way
// there, it waits for a peer, and the peer may be in the same place: neither ends.

#include <string>

#include "kernels/runtime/device.h"

namespace rz {

struct LoadedKernels {
    int count = 0;
    int64_t bytes = 0;  // of the device's memory that went
    double seconds = 0;
    std::string text() const;
};

// Loads every kernel of the program on this device, and makes it current. Throws where the program has no code for it.
// Nothing on a device that is no GPU.
LoadedKernels load_kernels(Device);

// Adds a kernel to the program's list; gpu.cuh does, before main().
void note_kernel(const void* kernel);

}  // namespace rz
