// The only file with inline PTX: one small wrapper per instruction, each with its functional model beside it (the
// models live in test/simt/). All pointers are generic; the conversion to a 32-bit shared address happens in here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/gpu.cuh"

#include <cuda.h>

#if defined(SIMT_EMU)
#define PTX_FN inline
#define PTX_AT , simt::Site at = simt::Site::current()
#define PTX_AT0 simt::Site at = simt::Site::current()
#else
#define PTX_FN __device__ __forceinline__
#define PTX_AT
#define PTX_AT0
#endif

namespace rz::ptx {

#if !defined(SIMT_EMU)
PTX_FN uint32_t smem_u32(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
#endif

// No instruction, but the compiler can't know x afterwards: it computes again from x what it might have kept in
// registers.
template <class T>
PTX_FN void forget([[maybe_unused]] T& x) {
    static_assert(sizeof(T) == 4);
#if !defined(SIMT_EMU)
    asm volatile("" : "+r"(x));
#endif
}

// 16 bytes to global memory in one store. nvcc makes such stores of plain code too, but parts some that stand under
// a condition into four of 4 bytes, each of which touches all sectors of the warp's 512 bytes (SwiGLU's backward pass).
PTX_FN void store16(void* p, const uint4& v) {
#if defined(SIMT_EMU)
    *static_cast<uint4*>(p) = v;
#else
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}

// ---- cp.async: global to shared, asynchronous. Both addresses aligned to the size. Only src_bytes are read; the rest
// of the destination becomes zero (src_bytes = 0 is how a tail row is masked; src must still be a valid pointer).
// Before sm_80 an ordinary copy, over when the call returns.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class Word>
PTX_FN void copy_now(void* dst, const void* src, int src_bytes) {
    Word word{};
    if (src_bytes == int(sizeof word)) {
        word = *static_cast<const Word*>(src);
    } else {
#pragma unroll 1
        for (int i = 0; i < src_bytes; ++i)
            reinterpret_cast<unsigned char*>(&word)[i] = static_cast<const unsigned char*>(src)[i];
    }
    *static_cast<Word*>(dst) = word;
}
#define PTX_CP_ASYNC(Word, ...) copy_now<Word>(dst, src, src_bytes)
#define PTX_CP_ASYNC_GROUP(...)
#else
#define PTX_CP_ASYNC(Word, text) \
    asm volatile("cp.async." text ", %2;" ::"r"(smem_u32(dst)), "l"(src), "r"(src_bytes) : "memory")
#define PTX_CP_ASYNC_GROUP(...) asm volatile(__VA_ARGS__ : "memory")
#endif

PTX_FN void cp_async16(void* dst, const void* src, int src_bytes = 16 PTX_AT) {
#if defined(SIMT_EMU)
    simt::cp_async(dst, src, 16, src_bytes, at);
#else
    PTX_CP_ASYNC(uint4, "cg.shared.global [%0], [%1], 16");
#endif
}

PTX_FN void cp_async_commit() {
#if defined(SIMT_EMU)
    simt::cp_async_commit();
#else
    PTX_CP_ASYNC_GROUP("cp.async.commit_group;" ::);
#endif
}

// Waits until at most N of this thread's groups are in flight. Other threads see the data only after a barrier.
template <int N>
PTX_FN void cp_async_wait() {
#if defined(SIMT_EMU)
    simt::cp_async_wait(N);
#else
    PTX_CP_ASYNC_GROUP("cp.async.wait_group %0;" ::"n"(N));
#endif
}

// ---- ldmatrix: four matrices of 8x8 16-bit values. Lane 8i+j gives the address (16-byte aligned, shared) of row
// j of matrix i. Lane l receives in r[i] elements (l/4, 2(l%4)) and (l/4, 2(l%4)+1) of matrix i, or of its transpose.

#if defined(SIMT_EMU)
#define PTX_LDMATRIX_X4(trans, text) simt::ldmatrix(r, row, trans, at)
#else
#define PTX_LDMATRIX_X4(trans, text)                                          \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" text " {%0,%1,%2,%3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])             \
                 : "r"(smem_u32(row))                                         \
                 : "memory")
#endif

PTX_FN void ldmatrix_x4(uint32_t (&r)[4], const void* row PTX_AT) { PTX_LDMATRIX_X4(false, ".shared.b16"); }
PTX_FN void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row PTX_AT) { PTX_LDMATRIX_X4(true, ".trans.shared.b16"); }

// movmatrix: of an 8x8 matrix that the warp holds as ldmatrix gives it, the transpose
PTX_FN uint32_t movmatrix(uint32_t x PTX_AT) {
#if defined(SIMT_EMU)
    return simt::movmatrix(x, at);
#else
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
#endif
}

// ---- mma.sync: D[16x8] = A[16x16] B[16x8] + C[16x8], 16-bit inputs, f32 accumulator. d and c may be one array.
// With g = lane/4, t = lane%4 (two 16-bit values per register, the lower column or k in the lower half):
//   a[0] (g, 2t..)   a[1] (g+8, 2t..)   a[2] (g, 2t+8..)   a[3] (g+8, 2t+8..)
//   b[0] (k 2t.., n g)   b[1] (k 2t+8.., n g)     c[0],c[1] (g, 2t..)   c[2],c[3] (g+8, 2t..)
// Before sm_80 there is half of it, m16n8k8 with a[0], a[1] and b[0], in fp16 alone: bf16 traps.

#if defined(SIMT_EMU)
#define PTX_MMA(type, model) simt::mma_m16n8k16(d, a, b, c, model, at)
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
PTX_FN void mma_m16n8k8_fp16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const float (&c)[4]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#define PTX_MMA(type, model)                      \
    if constexpr (type[0] == 'b') {               \
        __trap();                                 \
    } else {                                      \
        mma_m16n8k8_fp16(d, a[0], a[1], b[0], c); \
        mma_m16n8k8_fp16(d, a[2], a[3], b[1], d); \
    }
#else
#define PTX_MMA(type, model)                                                                                          \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                               \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                                     \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), \
                   "f"(c[3]))
#endif

PTX_FN void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              const float (&c)[4] PTX_AT) {
    PTX_MMA("bf16", simt::Half::bf16);
}
PTX_FN void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              const float (&c)[4] PTX_AT) {
    PTX_MMA("f16", simt::Half::fp16);
}

// ---- named barriers: id 1..15 (0 is __syncthreads), threads a multiple of 32 counting syncs and arrivals together

PTX_FN void bar_sync(int id, int threads PTX_AT) {
#if defined(SIMT_EMU)
    simt::named_barrier(id, threads, true, at);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
PTX_FN void bar_arrive(int id, int threads PTX_AT) {
#if defined(SIMT_EMU)
    simt::named_barrier(id, threads, false, at);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// ---- fast approximations. Subnormal inputs and results become zero, except of sqrt.

// 2^x, relative error below 2^-22; ex2(-inf) = 0
PTX_FN float ex2(float x) {
#if defined(SIMT_EMU)
    return simt::ex2(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
// 1/x, error at most 1 ulp
PTX_FN float rcp(float x) {
#if defined(SIMT_EMU)
    return simt::rcp(x);
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
// sqrt(x), relative error at most 2^-23
PTX_FN float sqrt(float x) {
#if defined(SIMT_EMU)
    return sqrtf(x);
#else
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// ============================================================ Hopper =================================================
// sm_90 and, for wgmma and setmaxnreg, sm_90a. In code for older architectures these trap, so that one file serves all.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PTX_SM90(...) asm volatile(__VA_ARGS__)
#else
#define PTX_SM90(...) __trap()
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PTX_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define PTX_SM90A(...) __trap()
#endif

// ---- mbarrier: a 64-bit word in shared memory. A phase is complete when `count` arrivals have been made and all bytes
// announced have come; wait(parity) returns once the phase of that parity is complete (a new barrier is in phase 0).

PTX_FN void mbar_init(uint64_t* bar, uint32_t count PTX_AT) {
#if defined(SIMT_EMU)
    simt::mbar_init(bar, count, at);
#else
    PTX_SM90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(bar)), "r"(count) : "memory");
#endif
}
PTX_FN void mbar_arrive(uint64_t* bar PTX_AT) {
#if defined(SIMT_EMU)
    simt::mbar_arrive(bar, 0, at);
#else
    PTX_SM90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_u32(bar)) : "memory");
#endif
}
// Arrives, and announces bytes that bulk copies will bring in this phase.
PTX_FN void mbar_arrive_expect_tx(uint64_t* bar, uint32_t bytes PTX_AT) {
#if defined(SIMT_EMU)
    simt::mbar_arrive(bar, bytes, at);
#else
    PTX_SM90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(bar)), "r"(bytes) : "memory");
#endif
}
PTX_FN void mbar_wait(uint64_t* bar, uint32_t parity PTX_AT) {
#if defined(SIMT_EMU)
    simt::mbar_wait(bar, parity, at);
#else
    PTX_SM90(
        "{\n.reg .pred p;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra wait_%=;\n}" ::"r"(
            smem_u32(bar)),
        "r"(parity)
        : "memory");
#endif
}

// ---- fences: no effect in the emulator, which is sequentially consistent and so can't tell when one is missing

// After mbar_init, before other threads or copies use the barriers (then a block barrier).
PTX_FN void fence_mbar_init() {
#if !defined(SIMT_EMU)
    PTX_SM90("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Between ordinary writes to shared memory and a wgmma that reads them. Our kernels' operands all come by copies: for
// tests of wgmma.
PTX_FN void fence_proxy_async() {
#if !defined(SIMT_EMU)
    PTX_SM90("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- bulk copies of a run of bytes: 16-byte aligned, a multiple of 16 bytes. Called by one thread.

PTX_FN void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar PTX_AT) {
#if defined(SIMT_EMU)
    simt::bulk_load(dst, src, bytes, bar, at);
#else
    PTX_SM90(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem_u32(dst)),
        "l"(src), "r"(bytes), "r"(smem_u32(bar))
        : "memory");
#endif
}
// ---- TMA: one thread moves a box of a tensor; the tensor map is a `const __grid_constant__ CUtensorMap` parameter
// made by tensor_map() below. Coordinates are elements, innermost first; outside the tensor reads give zero, and
// the full box counts as transferred bytes. dst: dynamic shared memory, 128-byte aligned (1024 for the 128-byte
// swizzle).

PTX_FN void tma_load_4d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y, int z, int w PTX_AT) {
#if defined(SIMT_EMU)
    const int coords[4] = {x, y, z, w};
    simt::tma_load(dst, map, bar, coords, 4, at);
#else
    PTX_SM90(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4, %5, %6}], [%2];" ::"r"(smem_u32(dst)),
        "l"(map), "r"(smem_u32(bar)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
#endif
}
// Host: describes a tensor of 16-bit values for TMA. dims: innermost first; strides: bytes, of dims[1], dims[2]...,
// multiples of 16; box: what one copy moves (its inner bytes must fit the swizzle: 128, 64, 32 or 0 = none).
inline CUtensorMap tensor_map(const void* base, std::initializer_list<uint64_t> dims,
                              std::initializer_list<uint64_t> strides, std::initializer_list<uint32_t> box,
                              int swizzle_bytes) {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    static const Encode encode = [] {
        void* fn = nullptr;
        cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        const cudaError_t err =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found);
#else  // the toolkit's own version of the function; it has had one since 12.0
        const cudaError_t err = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &fn, cudaEnableDefault, &found);
#endif
        if (err != cudaSuccess || !fn)
            fail("the CUDA driver has no cuTensorMapEncodeTiled (%s)", cudaGetErrorString(err));
        return reinterpret_cast<Encode>(fn);
    }();
    if (dims.size() != box.size() || strides.size() + 1 != dims.size() || dims.size() > 5)
        fail("tensor_map: %zu dims, %zu strides, %zu box sides", dims.size(), strides.size(), box.size());
    const CUtensorMapSwizzle swizzle = swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                             : CU_TENSOR_MAP_SWIZZLE_NONE;
    const uint32_t ones[5] = {1, 1, 1, 1, 1};
    const std::vector<cuuint64_t> d(dims.begin(), dims.end()), s(strides.begin(), strides.end());
    CUtensorMap map;
    const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, uint32_t(dims.size()), const_cast<void*>(base),
                              d.data(), s.data(), box.begin(), ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
        fail("cuTensorMapEncodeTiled: error %d for base %p, %zu dims, inner box %u, swizzle %d", int(r), base,
             dims.size(), *box.begin(), swizzle_bytes);
    return map;
}

// ---- wgmma: D[64xN] (+)= A[64x16] B[16xN] by the four warps of a warpgroup, asynchronous. 16-bit inputs, f32 sums.
// Thread l of the warpgroup holds in d[4j+q] row 16(l/32) + l%32/4 + 8(q/2), column 8j + 2(l%4) + q%2. Operands in
// shared memory are named by descriptors; A may lie in registers instead (as in mma.m16n8k16, 16 rows per warp).
// Order: fence, wgmma..., commit, wait; in between neither d, a nor the operands may be touched. The compiler does not
// know that d arrives with the wait: wgmma_pin(d) behind it holds reads of d there, and before the fence it holds
// writes of d or a.

// layout: 1 = 128-byte, 2 = 64-byte, 3 = 32-byte swizzle, 0 = none. p: dynamic shared memory; offsets in bytes.
//   K-major, swizzled:  rows of 128/64/32 bytes, `stride` between groups of 8 rows, `leading` not used
//   MN-major, swizzled: rows along MN, `leading` between runs of 64/32/16 elements along MN, `stride` between 8 values
//   of k none:               8x8 blocks of 128 bytes; K-major: `leading` between blocks along k, `stride` along MN;
//                       MN-major: `stride` between blocks along MN, `leading` along k
PTX_FN uint64_t wgmma_descriptor(const void* p, uint32_t leading, uint32_t stride, uint32_t layout) {
#if defined(SIMT_EMU)
    const uint32_t address = simt::shared_address(p);
#else
    const uint32_t address = smem_u32(p);
#endif
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading >> 4 & 0x3fff) << 16 |
           uint64_t(stride >> 4 & 0x3fff) << 32 | uint64_t(layout) << 62;
}
// The descriptor of what lies `bytes` (a multiple of 16) further on. Only the address's half of it is computed.
PTX_FN uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
    return (descriptor & 0xffffffff00000000) | uint32_t(uint32_t(descriptor) + (bytes >> 4));
}

PTX_FN void wgmma_fence() {
#if !defined(SIMT_EMU)
    PTX_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// No instruction: values of x from before this point are not used after it, nor the other way round.
template <int N>
PTX_FN void wgmma_pin([[maybe_unused]] float (&x)[N]) {
#if !defined(SIMT_EMU)
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
#endif
}
template <int M, int N>
PTX_FN void wgmma_pin([[maybe_unused]] uint32_t (&x)[M][N]) {
#if !defined(SIMT_EMU)
#pragma unroll
    for (int i = 0; i < M * N; ++i) asm volatile("" : "+r"(x[i / N][i % N])::"memory");
#endif
}
PTX_FN void wgmma_commit(PTX_AT0) {
#if defined(SIMT_EMU)
    simt::wgmma_commit(at);
#else
    PTX_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int N>
PTX_FN void wgmma_wait(PTX_AT0) {
#if defined(SIMT_EMU)
    simt::wgmma_wait(N, at);
#else
    PTX_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

#if !defined(SIMT_EMU)
// Register lists of 8 operands: names in the text, and constraints.
#define PTX_T0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PTX_T1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define PTX_T2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define PTX_T3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define PTX_T4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define PTX_T5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define PTX_T6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define PTX_T7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_D8(i)                                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define PTX_T_16 PTX_T0
#define PTX_D_16 PTX_D8(0)
#define PTX_T_64 PTX_T0 "," PTX_T1 "," PTX_T2 "," PTX_T3
#define PTX_D_64 PTX_D8(0), PTX_D8(8), PTX_D8(16), PTX_D8(24)
#define PTX_T_96 PTX_T0 "," PTX_T1 "," PTX_T2 "," PTX_T3 "," PTX_T4 "," PTX_T5
#define PTX_D_96 PTX_D8(0), PTX_D8(8), PTX_D8(16), PTX_D8(24), PTX_D8(32), PTX_D8(40)
#define PTX_T_128 PTX_T0 "," PTX_T1 "," PTX_T2 "," PTX_T3 "," PTX_T4 "," PTX_T5 "," PTX_T6 "," PTX_T7
#define PTX_D_128 PTX_D8(0), PTX_D8(8), PTX_D8(16), PTX_D8(24), PTX_D8(32), PTX_D8(40), PTX_D8(48), PTX_D8(56)
// Operands after the r = N/2 results: SS has %r, %r+1 (descriptors), %r+2 (accumulate), %r+3, %r+4 (transposes);
// RS has %r..%r+3 (a), %r+4 (descriptor), %r+5 (accumulate), %r+6 (transpose).
#define PTX_WGMMA_SS(type, n, A, B, P, TA, TB)                                                                    \
    if constexpr (N == n)                                                                                         \
    PTX_SM90A("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
              "." type " {" PTX_T_##n "}, %" A ", %" B ", p, 1, 1, %" TA ", %" TB ";\n}"                          \
              : PTX_D_##n                                                                                         \
              : "l"(desc_a), "l"(desc_b), "r"(int(accumulate)), "n"(int(kTransA)), "n"(int(kTransB)))
#define PTX_WGMMA_RS(type, n, A0, A1, A2, A3, B, P, TB)                                                           \
    if constexpr (N == n)                                                                                         \
    PTX_SM90A("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
              "." type " {" PTX_T_##n "}, {%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B ", p, 1, 1, %" TB ";\n}"        \
              : PTX_D_##n                                                                                         \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(int(accumulate)), "n"(int(kTransB)))
#define PTX_WGMMA_SS_ALL(type)                            \
    PTX_WGMMA_SS(type, 16, "8", "9", "10", "11", "12");   \
    PTX_WGMMA_SS(type, 64, "32", "33", "34", "35", "36"); \
    PTX_WGMMA_SS(type, 96, "48", "49", "50", "51", "52"); \
    PTX_WGMMA_SS(type, 128, "64", "65", "66", "67", "68");
#define PTX_WGMMA_RS_ALL(type)                                        \
    PTX_WGMMA_RS(type, 16, "8", "9", "10", "11", "12", "13", "14");   \
    PTX_WGMMA_RS(type, 64, "32", "33", "34", "35", "36", "37", "38"); \
    PTX_WGMMA_RS(type, 96, "48", "49", "50", "51", "52", "53", "54"); \
    PTX_WGMMA_RS(type, 128, "64", "65", "66", "67", "68", "69", "70");
#endif
template <int N>
inline constexpr bool wgmma_has_n = N == 16 || N == 64 || N == 96 || N == 128;
// Both operands in shared memory. kTrans: the operand is MN-major.
template <int N, bool kTransA = false, bool kTransB = false>
PTX_FN void wgmma_bf16(float (&d)[N / 2], uint64_t desc_a, uint64_t desc_b, bool accumulate PTX_AT) {
    static_assert(wgmma_has_n<N>, "wgmma: no wrapper for this N");
#if defined(SIMT_EMU)
    simt::wgmma(d, N, nullptr, desc_a, desc_b, accumulate, kTransA, kTransB, simt::Half::bf16, at);
#else
    PTX_WGMMA_SS_ALL("bf16")
#endif
}
template <int N, bool kTransA = false, bool kTransB = false>
PTX_FN void wgmma_fp16(float (&d)[N / 2], uint64_t desc_a, uint64_t desc_b, bool accumulate PTX_AT) {
    static_assert(wgmma_has_n<N>, "wgmma: no wrapper for this N");
#if defined(SIMT_EMU)
    simt::wgmma(d, N, nullptr, desc_a, desc_b, accumulate, kTransA, kTransB, simt::Half::fp16, at);
#else
    PTX_WGMMA_SS_ALL("f16")
#endif
}
// A in registers (K-major).
template <int N, bool kTransB = false>
PTX_FN void wgmma_bf16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t desc_b, bool accumulate PTX_AT) {
    static_assert(wgmma_has_n<N>, "wgmma: no wrapper for this N");
#if defined(SIMT_EMU)
    simt::wgmma(d, N, a, 0, desc_b, accumulate, false, kTransB, simt::Half::bf16, at);
#else
    PTX_WGMMA_RS_ALL("bf16")
#endif
}
template <int N, bool kTransB = false>
PTX_FN void wgmma_fp16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t desc_b, bool accumulate PTX_AT) {
    static_assert(wgmma_has_n<N>, "wgmma: no wrapper for this N");
#if defined(SIMT_EMU)
    simt::wgmma(d, N, a, 0, desc_b, accumulate, false, kTransB, simt::Half::fp16, at);
#else
    PTX_WGMMA_RS_ALL("f16")
#endif
}
// ---- registers per thread moved between warpgroups; all warps of a warpgroup execute it. Multiples of 8, 24 to 256.
template <int N>
PTX_FN void setmaxnreg_inc() {
#if !defined(SIMT_EMU)
    PTX_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N>
PTX_FN void setmaxnreg_dec() {
#if !defined(SIMT_EMU)
    PTX_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

}  // namespace rz::ptx
