// Which bytes kernels may touch. Global memory is host memory that was made known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ptx {

void add_memory(const void* p, size_t bytes, const std::string& name);
void remove_memory(const void* p);
void watch_memory();  // makes the fake CUDA runtime's allocations known
// Fails, naming the nearest area, unless the bytes lie within one of them.
void check_global(uint64_t address, uint64_t bytes, uint32_t lane);

// Generic addresses: host pointers, or a window in the bits that those never have.
constexpr uint64_t kSharedWindow = 1ull << 60, kLocalWindow = 2ull << 60, kParamWindow = 3ull << 60,
                   kWindow = 7ull << 60;
// A shared address is rank << 24 | 1024 + offset, as on Hopper: kernels mask the rank away to reach another block's.
constexpr uint32_t kSharedBase = 1024, kRankShift = 24, kOffsetMask = (1u << kRankShift) - 1;

}  // namespace ptx
