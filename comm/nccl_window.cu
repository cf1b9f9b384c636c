#include "comm/nccl_window.h"

#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)

#include <nccl.h>
#ifdef RZ_NCCL_DEVICE_API
#include <nccl_device.h>

#include "kernels/cuda/gpu.cuh"

#ifndef __CUDACC__
void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer);  // test/simt: NVIDIA's is nvcc's alone
#endif

namespace rz {
namespace {

__global__ void nccl_window_parts_kernel(char** parts, ncclWindow_t window, int ranks) {
    for (int r = int(threadIdx.x); r < ranks; r += int(blockDim.x))
        parts[r] = static_cast<char*>(ncclGetLsaPointer(window, 0, r));
}

}  // namespace

void nccl_window_parts(char** parts, ncclWindow_vidmem* window, int ranks, CudaStream stream) {
    launch(kernel<nccl_window_parts_kernel>, LaunchConfig(dim3(1), dim3(32), 0, stream), parts, window, ranks);
}

}  // namespace rz

#endif
#endif
