#include "kernels/runtime/capability.h"

#include "kernels/runtime/context.h"
#include "kernels/runtime/request.h"

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

int compute_capability(Device device) {
    if (device.is_planned()) return device.context ? device.context->planned.capability : 0;
    int major = 0, minor = 0;
#ifdef RZ_CUDA
    if (device.is_cuda()) {
        CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
        CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
    }
#endif
    return 10 * major + minor;
}

void require_products(const char* flag, DType dtype, int capability, const char* nearest) {
    require_request(has_products(capability, dtype),
                    "%s %s: a GPU of compute capability %d.%d has no %s products, which came with 8.0\n  nearest: %s",
                    flag, name_of(dtype), capability / 10, capability % 10, name_of(dtype), nearest);
}

}  // namespace rz
