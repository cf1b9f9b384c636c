// The fake device's queues, shared by the fake CUDA runtime, cuBLASLt and NCCL.
#pragma once

#include <functional>

#include <cuda_runtime_api.h>

namespace simt {

// Queues work on a stream (or records it, if the stream is being captured).
cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
// Queues work that may have to wait for another process: called again, between other streams' work, until it says true.
cudaError_t enqueue_polled(cudaStream_t stream, std::function<bool()> poll);

// Kernels can be launched only there.
bool is_of_current_device(cudaStream_t stream);

// Tells the race build that a library wrote device memory.
void mark_written(const void* p, size_t bytes);

}  // namespace simt
