#pragma once
// Which instruction set the CPU ops use: the best that this CPU has, or less if
// RZ_SIMD=baseline|avx2|avx512|avx512_bf16 asks for less (for tests and comparisons).

// Each loop is compiled once per instruction set (kernels/cpu/simd.h), not for the baseline alone.
#if defined(__x86_64__) && !defined(__clang__)
#define RZ_SIMD_PASSES
#endif

namespace rz {

enum class SimdLevel : int { baseline, avx2, avx512, avx512_bf16 };

SimdLevel simd_level();
const char* name_of(SimdLevel level);
// For tests: false, and no change, if this CPU lacks it. Not while ops run.
bool set_simd_level(SimdLevel level);

}  // namespace rz
