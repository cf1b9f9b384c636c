// In place of PyTorch's header, for FlashAttention's sources; nothing here drops out.
#pragma once
#include <cstdint>
#include <tuple>
namespace at {
struct PhiloxCudaState {};
namespace cuda::philox {
__host__ __device__ inline std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState) { return {0, 0}; }
}  // namespace cuda::philox
}  // namespace at
