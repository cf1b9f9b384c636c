// The emulator in place of CUDA's device headers, for kernel sources (kernels/cuda/gpu.cuh includes this under
// -DSIMT_EMU): qualifiers, builtin variables, barriers, warp collectives, atomics, intrinsics, and the models behind
// kernels/cuda/ptx.cuh: what kernels use, no more. Types and conversions (float4, bf16, fp16, fp8) are those of CUDA's
// own headers.
#pragma once
#if defined(__CUDACC__)
#error "test/simt/simt.h is for the host compiler"
#endif

// Standard headers first: CUDA's host_defines.h makes __noinline__ a macro, which breaks libstdc++ when it comes later.
#include <cassert>
#include <cfloat>
#include <math.h>  // and not <cmath>: isfinite, abs... at global scope, as in CUDA
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __noinline__
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline

// Static shared memory. The executable's thread-local segment is one range that the runtime can find, poison before
// every block and swap between blocks that run together. ASan gives redzones to statics but not to thread-locals, so
// there the runtime learns the variables from ASan's own table instead (shared.cpp).
#if defined(__SANITIZE_ADDRESS__)
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

namespace simt {

using Site = std::source_location;

struct Launch {
    dim3 grid, block;
    size_t smem;
    const void* kernel;
    Site at;
};
// Checks the configuration and queues the launch on the stream; `body` runs one CUDA thread.
cudaError_t launch(cudaStream_t stream, const Launch& shape, std::function<void()> body);

[[noreturn]] void fail(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

extern const uint3* current_thread_idx;
extern Launch current_launch;
uint3 block_idx();
unsigned char* dyn_smem();

void block_barrier(const char* op, Site at);
void named_barrier(int id, int threads, bool wait, Site at);
void warp_barrier(uint32_t mask, Site at);
void spin(Site at);
uint32_t lane_id();
uint64_t shuffle(uint32_t mask, uint64_t value, uint32_t source, const char* op, Site at);
uint32_t ballot(uint32_t mask, bool predicate, const char* op, Site at);
void atomic_access(const void* p, size_t bytes);
void thread_fence();

// Models of the instructions in kernels/cuda/ptx.cuh; contracts there.
enum class Half { bf16, fp16 };
void cp_async(void* dst, const void* src, int bytes, int src_bytes, Site at);
void cp_async_commit();
void cp_async_wait(int groups);
void ldmatrix(uint32_t* r, const void* row, bool trans, Site at);
uint32_t movmatrix(uint32_t x, Site at);
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, const float* c, Half type, Site at);
float ex2(float x);
float rcp(float x);

void mbar_init(uint64_t* bar, uint32_t count, Site at);
void mbar_arrive(uint64_t* bar, uint32_t tx_bytes, Site at);
void mbar_wait(uint64_t* bar, uint32_t parity, Site at);
void tma_load(void* dst, const void* map, uint64_t* bar, const int* coords, int rank, Site at);
void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar, Site at);

uint32_t shared_address(const void* p);
void wgmma(float* d, int n, const uint32_t* a_regs, uint64_t desc_a, uint64_t desc_b, bool accumulate, bool trans_a,
           bool trans_b, Half type, Site at);
void wgmma_commit(Site at);
void wgmma_wait(int groups, Site at);

template <class T>
uint64_t to_bits(const T& v) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t b = 0;
    memcpy(&b, &v, sizeof(T));
    return b;
}
template <class T>
T from_bits(uint64_t b) {
    T v;
    memcpy(&v, &b, sizeof(T));
    return v;
}

}  // namespace simt

#define threadIdx (*::simt::current_thread_idx)
#define blockIdx (::simt::block_idx())
#define blockDim (::simt::current_launch.block)
#define gridDim (::simt::current_launch.grid)
static constexpr int warpSize = 32;

// ---- barriers and warp collectives

inline void __syncthreads(simt::Site at = simt::Site::current()) { simt::block_barrier("__syncthreads", at); }
inline void __syncwarp(unsigned mask = ~0u, simt::Site at = simt::Site::current()) { simt::warp_barrier(mask, at); }
inline void __threadfence() { simt::thread_fence(); }
inline void __nanosleep(unsigned, simt::Site at = simt::Site::current()) { simt::spin(at); }
[[noreturn]] inline void __trap() { simt::fail("__trap()"); }

namespace simt {
template <class T>
T shuffle_as(uint32_t mask, T v, uint32_t source, const char* op, Site at) {
    return from_bits<T>(shuffle(mask, to_bits(v), source, op, at));
}
}  // namespace simt
template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, simt::Site at = simt::Site::current()) {
    const uint32_t base = simt::lane_id() & ~uint32_t(width - 1);
    return simt::shuffle_as(mask, v, base + (uint32_t(source) & uint32_t(width - 1)), "__shfl_sync", at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, simt::Site at = simt::Site::current()) {
    const uint32_t l = simt::lane_id(), s = l ^ uint32_t(x);
    return simt::shuffle_as(mask, v, s > (l | uint32_t(width - 1)) ? l : s, "__shfl_xor_sync", at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32, simt::Site at = simt::Site::current()) {
    const uint32_t l = simt::lane_id();
    return simt::shuffle_as(mask, v, (l & uint32_t(width - 1)) < d ? l : l - d, "__shfl_up_sync", at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32, simt::Site at = simt::Site::current()) {
    const uint32_t l = simt::lane_id(), s = l + d;
    return simt::shuffle_as(mask, v, s > (l | uint32_t(width - 1)) ? l : s, "__shfl_down_sync", at);
}
inline unsigned __ballot_sync(unsigned mask, int p, simt::Site at = simt::Site::current()) {
    return simt::ballot(mask, p, "__ballot_sync", at);
}
inline int __any_sync(unsigned mask, int p, simt::Site at = simt::Site::current()) {
    return simt::ballot(mask, p, "__any_sync", at) != 0;
}
inline int __all_sync(unsigned mask, int p, simt::Site at = simt::Site::current()) {
    return simt::ballot(mask, p, "__all_sync", at) == mask;
}

// ---- atomics: one OS thread runs everything, so a plain read-modify-write is atomic. Not instrumented, or the race
// check would see a plain read and a plain write.

namespace simt {
template <class T>
inline constexpr bool atomics_allowed = std::is_integral_v<T>;
template <class T, class F>
__attribute__((no_sanitize("thread"), noinline)) T read_modify_write(T* p, F f) {
    atomic_access(p, sizeof(T));
    const T old = *p;
    *p = f(old);
    return old;
}
}  // namespace simt
#define SIMT_ATOMIC(name, expr)                                                                \
    template <class T>                                                                         \
    T name(T* p, std::type_identity_t<T> v) {                                                  \
        static_assert(simt::atomics_allowed<T>, "atomics on floats: results depend on order"); \
        return simt::read_modify_write(p, [=](T old) { return T(expr); });                     \
    }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicExch, ((void)old, v))
SIMT_ATOMIC(atomicMax, old < v ? v : old)
SIMT_ATOMIC(atomicInc, old >= v ? T(0) : old + 1)
#undef SIMT_ATOMIC

// ---- arithmetic that the host lacks

// glibc declares __expf itself, so only a macro can replace it. It is exact here, where the device errs by a few ulp.
namespace simt {
inline float host_exp(float x) { return std::exp(x); }
}  // namespace simt
#define __expf(x) ::simt::host_exp(x)

inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __float_as_uint(float x) { return simt::from_bits<unsigned>(simt::to_bits(x)); }
inline float __uint_as_float(unsigned x) { return simt::from_bits<float>(x); }

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return C(a) < C(b) ? C(b) : C(a);
}
