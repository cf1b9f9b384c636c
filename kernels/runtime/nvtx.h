#pragma once
// Ranges for Nsight Systems, on the thread that enqueues, named as in trace.json: "step 12", "forward 3 of stage 0".
// Without a profiler, or in a build without CUDA's headers, they do nothing.

#include <string>

#if defined(RZ_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define RZ_NVTX 1
#endif

namespace rz {

#ifdef RZ_NVTX
inline void nvtx_push(const std::string& name) { nvtxRangePushA(name.c_str()); }
inline void nvtx_pop() { nvtxRangePop(); }
#else
inline void nvtx_push(const std::string&) {}
inline void nvtx_pop() {}
#endif

}  // namespace rz
