// Loops compiled once per instruction set, chosen when the program runs: a binary travels and is still fast. A source
// that wants this includes itself through this header:
//
//   #include "kernels/rmsnorm.h"                  // everything it needs comes first
//   #define RZ_SIMD_FILE "kernels/rmsnorm.cpp"
//   #include "kernels/cpu/simd.h"
//   #ifdef RZ_SIMD_PASS
//   namespace rz::RZ_SIMD_PASS { void rmsnorm_forward(const RmsnormForward&) { ...plain loops... } }
//   #else
//   void rz::rmsnorm_forward_cpu(const RmsnormForward& a) { RZ_SIMD_CALL(rmsnorm_forward, a); }
//   #endif
//
// Each pass is a namespace of its own, compiled under `#pragma GCC target`, which templates, lambdas and OpenMP regions
// inherit (target_clones reaches none of them, and its ifunc resolvers crash under ThreadSanitizer). A pass defines
// RZ_SIMD_WIDTH, the bytes of a vector register. A source that defines RZ_SIMD_WANT_BF16 is compiled once more for CPUs
// with bf16 instructions, with RZ_SIMD_BF16. Clang's pragmas do not reach lambdas and OpenMP regions: it compiles the
// baseline alone. Results may differ between instruction sets in the last bits (order of reductions, fused
// multiply-add), never between runs or numbers of threads.
//
// No #pragma once: included once per pass.

#ifndef RZ_SIMD_PASS

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd_level.h"

#define RZ_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifdef RZ_SIMD_PASSES
#ifdef RZ_SIMD_WANT_BF16
#define RZ_SIMD_PASS avx512_bf16
#define RZ_SIMD_WIDTH 64
#define RZ_SIMD_BF16
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")
#include RZ_SIMD_FILE
#pragma GCC pop_options
#undef RZ_SIMD_PASS
#undef RZ_SIMD_WIDTH
#undef RZ_SIMD_BF16
#endif

#define RZ_SIMD_PASS avx512
#define RZ_SIMD_WIDTH 64
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#include RZ_SIMD_FILE
#pragma GCC pop_options
#undef RZ_SIMD_PASS
#undef RZ_SIMD_WIDTH

#define RZ_SIMD_PASS avx2
#define RZ_SIMD_WIDTH 32
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#include RZ_SIMD_FILE
#pragma GCC pop_options
#undef RZ_SIMD_PASS
#undef RZ_SIMD_WIDTH
#endif

#define RZ_SIMD_PASS baseline
#define RZ_SIMD_WIDTH 16
#include RZ_SIMD_FILE
#undef RZ_SIMD_PASS
#undef RZ_SIMD_WIDTH

#ifndef RZ_SIMD_CALL
#ifdef RZ_SIMD_PASSES
#define RZ_SIMD_CALL_PLAIN(fn, ...)                                                \
    (::rz::simd_level() >= ::rz::SimdLevel::avx512 ? ::rz::avx512::fn(__VA_ARGS__) \
     : ::rz::simd_level() == ::rz::SimdLevel::avx2 ? ::rz::avx2::fn(__VA_ARGS__)   \
                                                   : ::rz::baseline::fn(__VA_ARGS__))
#else
#define RZ_SIMD_CALL_PLAIN(fn, ...) ::rz::baseline::fn(__VA_ARGS__)
#endif
#if defined(RZ_SIMD_PASSES) && defined(RZ_SIMD_WANT_BF16)
#define RZ_SIMD_CALL(fn, ...)                                                                \
    (::rz::simd_level() == ::rz::SimdLevel::avx512_bf16 ? ::rz::avx512_bf16::fn(__VA_ARGS__) \
                                                        : RZ_SIMD_CALL_PLAIN(fn, __VA_ARGS__))
#else
#define RZ_SIMD_CALL RZ_SIMD_CALL_PLAIN
#endif
#endif

#endif  // RZ_SIMD_PASS
