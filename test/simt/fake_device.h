// Shared by fake_cudart.cpp and fake_device.cpp.
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace simt {

// A number in the environment.
size_t number_from(const char* variable, size_t otherwise);

int current_device();    // of this thread
size_t device_memory();  // bytes that each device has

// Device memory that a library made, or mapped; counted: it takes room on the device.
void note_memory(void* p, size_t bytes, int device, bool counted);
void forget_memory(void* p);
bool room_on_device(size_t bytes);  // the current one
// Addresses where there is memory only while some is noted there: a copy elsewhere among them is a fault.
void note_addresses(void* p, size_t bytes);
void forget_addresses(void* p);

// Notes an error for the next call that returns pending ones, and returns it.
cudaError_t report(cudaError_t e);

}  // namespace simt
