#include "kernels/runtime/load.h"

#include <algorithm>
#include <chrono>
#include <vector>

#ifdef RZ_CUDA
#include "kernels/runtime/cuda_check.h"
#endif

namespace rz {

// Filled by constructors of statics, so made at the first call.
static std::vector<const void*>& program_kernels() {
    static std::vector<const void*>& all = *new std::vector<const void*>;
    return all;
}

void note_kernel(const void* kernel) { program_kernels().push_back(kernel); }

std::string LoadedKernels::text() const {
    return format("%d kernels loaded in %.2f s, %s", count, seconds, human_bytes(bytes).c_str());
}

#ifdef RZ_CUDA
static int64_t free_bytes() {
    size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return int64_t(free);
}
#endif

LoadedKernels load_kernels(Device device) {
    LoadedKernels loaded;
    if (!device.is_cuda()) return loaded;
#ifdef RZ_CUDA
    const auto begin = std::chrono::steady_clock::now();
    CUDA_CHECK(cudaSetDevice(device.index));
    const int64_t free = free_bytes();
    for (const void* kernel : program_kernels()) {
        cudaFuncAttributes attributes;
        const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
        if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
            cudaGetLastError();
            cudaDeviceProp card;
            CUDA_CHECK(cudaGetDeviceProperties(&card, device.index));
            require(10 * card.major + card.minor >= 75,
                    "%s has compute capability %d.%d, and the kernels need 7.5 (Turing) or newer, for ldmatrix and "
                    "mma.sync\n  nearest: --device cpu",
                    card.name, card.major, card.minor);
            fail(
                "%s has compute capability %d.%d, and this program has no code for it\n  build it with: make SM=%d%d%s",
                card.name, card.major, card.minor, card.major, card.minor, card.major == 9 ? "a" : "");
        }
        CUDA_CHECK(status);
    }
    loaded.count = int(program_kernels().size());
    loaded.bytes = std::max<int64_t>(0, free - free_bytes());
    loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
#endif
    return loaded;
}

}  // namespace rz
