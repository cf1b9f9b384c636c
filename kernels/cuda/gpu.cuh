// The one header that kernel sources include. Under nvcc: the CUDA headers. Under a C++ compiler with -DSIMT_EMU: the
// emulator in test/simt, which runs every CUDA thread as a fiber, so that the same file is executed without a GPU.
//
// Rules for that (checked by test/simt/lint.sh): inline PTX only in kernels/cuda/ptx.cuh, launches only by
// launch() below, dynamic shared memory only by GPU_DYN_SMEM, no cooperative_groups.h, and a `__shared__` variable
// on one line with its name.
#pragma once

#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(SIMT_EMU)
#include "test/simt/simt.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#endif

#include "kernels/runtime/check.h"
#include "kernels/runtime/load.h"

// Declares `unsigned char* name`, the block's dynamic shared memory, aligned to 1024 bytes (128-byte TMA swizzle).
#if defined(SIMT_EMU)
#define GPU_DYN_SMEM(name) unsigned char* name = ::simt::dyn_smem()
#else
#define GPU_DYN_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace rz {

struct LaunchConfig {
    dim3 grid, block;
    size_t smem = 0;  // bytes of dynamic shared memory
    cudaStream_t stream = nullptr;
    std::source_location at;

    LaunchConfig(dim3 grid, dim3 block, size_t smem, cudaStream_t stream,
                 std::source_location at = std::source_location::current())
        : grid(grid), block(block), smem(smem), stream(stream), at(at) {}
};

namespace detail {
inline void check_launch(cudaError_t err, const LaunchConfig& c) {
    if (err == cudaSuccess) return;
    cudaGetLastError();  // clear it, so that the next call does not report it again
    fail("%s:%u: kernel launch of grid (%u,%u,%u), block (%u,%u,%u), %zu bytes of dynamic shared memory: %s (%s)",
         c.at.file_name(), unsigned(c.at.line()), c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.smem,
         cudaGetErrorName(err), cudaGetErrorString(err));
}
}  // namespace detail

// A kernel as launch() takes it: kernel<rope_kernel<T, kVec>>. Each that the program names so is in the list that
// load_kernels() reads, since it is made before main().
template <class... P>
class Kernel {
   public:
    explicit Kernel(void (*function)(P...)) : function_(function) { note_kernel(address()); }
    void (*function() const)(P...) { return function_; }
    const void* address() const { return reinterpret_cast<const void*>(function_); }

   private:
    void (*function_)(P...);
};
template <auto function>
inline const auto kernel = Kernel(function);

// Enqueues kernel(args...) on config.stream; arguments are converted to the kernel's parameter types. Throws rz::Error
// naming the launch's file and line when the launch is refused (a fault inside the kernel is reported by the next
// synchronisation, as always in CUDA).
template <class... P, class... A>
void launch(const Kernel<P...>& kernel, const LaunchConfig& c, A&&... args) {
    static_assert(sizeof...(P) == sizeof...(A), "launch: wrong number of kernel arguments");
#if defined(SIMT_EMU)
    static_assert((std::is_trivially_copyable_v<P> && ...), "launch: kernel parameters are copied bytewise");
    auto body = [function = kernel.function(), values = std::tuple<P...>(static_cast<P>(std::forward<A>(args))...)] {
        std::apply(function, values);
    };
    const simt::Launch shape{c.grid, c.block, c.smem, kernel.address(), c.at};
    detail::check_launch(simt::launch(c.stream, shape, std::move(body)), c);
#else
    if (c.smem > 48 * 1024)
        detail::check_launch(
            cudaFuncSetAttribute(kernel.address(), cudaFuncAttributeMaxDynamicSharedMemorySize, int(c.smem)), c);
    cudaLaunchConfig_t config{};
    config.gridDim = c.grid;
    config.blockDim = c.block;
    config.dynamicSmemBytes = c.smem;
    config.stream = c.stream;
    detail::check_launch(cudaLaunchKernelEx(&config, kernel.function(), static_cast<P>(std::forward<A>(args))...), c);
#endif
}

}  // namespace rz
