// The fake device's queues, shared by the fake CUDA runtime, cuBLASLt and NCCL.
#pragma once

#include <functional>
#include <string>

#include <cuda_runtime_api.h>

namespace simt {

// Queues work on a stream (or records it, if the stream is being captured).
cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
// Queues work that may have to wait for another process: called again, between other streams' work, until it says true.
cudaError_t enqueue_polled(cudaStream_t stream, std::function<bool()> poll);

uint64_t events_made();  // by this process so far

// Kernels can be launched only there.
bool is_of_current_device(cudaStream_t stream);

// CUDA may load a kernel's code when it is first launched, and a product's when it is first run, and wait for the
// device's work meanwhile. So such a first time while an operation of NCCL is under way on the device ends the
// program: on a real device both may wait forever.
void code_is_loaded(const void* kernel);
void first_use(const void* kernel);
void first_use_of_product(const std::string& what);
void collectives_open(int device, int more);

// Tells the race build that a library wrote device memory.
void mark_written(const void* p, size_t bytes);

}  // namespace simt
