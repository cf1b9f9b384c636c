#pragma once
// Addresses at which members of an NCCL communicator have mapped a window: ncclGetLsaPointer, NCCL's public function
// for kernels, from 2.28 on. (From 2.29 on the host may ask too, but only there.) It is compiled in from NCCL's header,
// so a program knows the windows of the NCCL that it was built with.
//
//   parts   (ranks) addresses   =   in device memory: of the window's first byte on each rank, as this GPU reaches it
//
// Compiled where NCCL is. RZ_NCCL_DEVICE_API: its header has the device API.

#if defined(RZ_CUDA) && defined(RZ_HAVE_NCCL)

#include <nccl.h>
#if NCCL_VERSION_CODE >= 22800
#define RZ_NCCL_DEVICE_API

#include "kernels/runtime/device.h"

namespace rz {

void nccl_window_parts(char** parts, ncclWindow_vidmem* window, int ranks, CudaStream stream);

}  // namespace rz

#endif
#endif
