// What fake_cudart.cpp and fake_device.cpp share.
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace simt {

// A number in the environment.
size_t number_from(const char* variable, size_t otherwise);

int current_device();    // of this thread
size_t device_memory();  // bytes that each device has

// Notes an error for the next call that returns pending ones, and returns it.
cudaError_t report(cudaError_t e);

}  // namespace simt
