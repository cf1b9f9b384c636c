// The only file with inline PTX: one small wrapper per instruction, each with its functional model beside it (the
// models live in test/simt/). All pointers are generic; the conversion to a 32-bit shared address happens in here.
#pragma once

#include <cstdint>

#include "kernels/gpu.cuh"

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

// ---- cp.async: global to shared, asynchronous. Both addresses aligned to the size. Only src_bytes are read; the rest
// of the destination becomes zero (src_bytes = 0 is how a tail row is masked; src must still be a valid pointer).

PTX_FN void cp_async4(void* dst, const void* src, int src_bytes = 4 PTX_AT) {
#if defined(SIMT_EMU)
    simt::cp_async(dst, src, 4, src_bytes, at);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_u32(dst)), "l"(src), "r"(src_bytes)
                 : "memory");
#endif
}

PTX_FN void cp_async8(void* dst, const void* src, int src_bytes = 8 PTX_AT) {
#if defined(SIMT_EMU)
    simt::cp_async(dst, src, 8, src_bytes, at);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_u32(dst)), "l"(src), "r"(src_bytes)
                 : "memory");
#endif
}

PTX_FN void cp_async16(void* dst, const void* src, int src_bytes = 16 PTX_AT) {
#if defined(SIMT_EMU)
    simt::cp_async(dst, src, 16, src_bytes, at);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_u32(dst)), "l"(src), "r"(src_bytes)
                 : "memory");
#endif
}

PTX_FN void cp_async_commit() {
#if defined(SIMT_EMU)
    simt::cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most N of this thread's groups are in flight. Other threads see the data only after a barrier.
template <int N>
PTX_FN void cp_async_wait() {
#if defined(SIMT_EMU)
    simt::cp_async_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// ---- ldmatrix: 1, 2 or 4 matrices of 8x8 16-bit values. Lane 8i+j gives the address (16-byte aligned, shared) of row
// j of matrix i. Lane l receives in r[i] elements (l/4, 2(l%4)) and (l/4, 2(l%4)+1) of matrix i, or of its transpose.

#if defined(SIMT_EMU)
#define PTX_LDMATRIX(n, trans, ...) simt::ldmatrix(r, row, n, trans, at)
#else
#define PTX_LDMATRIX(n, trans, text, ...) \
    asm volatile("ldmatrix.sync.aligned.m8n8." text : __VA_ARGS__ : "r"(smem_u32(row)) : "memory")
#endif

PTX_FN void ldmatrix_x1(uint32_t (&r)[1], const void* row PTX_AT) {
    PTX_LDMATRIX(1, false, "x1.shared.b16 {%0}, [%1];", "=r"(r[0]));
}
PTX_FN void ldmatrix_x1_trans(uint32_t (&r)[1], const void* row PTX_AT) {
    PTX_LDMATRIX(1, true, "x1.trans.shared.b16 {%0}, [%1];", "=r"(r[0]));
}
PTX_FN void ldmatrix_x2(uint32_t (&r)[2], const void* row PTX_AT) {
    PTX_LDMATRIX(2, false, "x2.shared.b16 {%0,%1}, [%2];", "=r"(r[0]), "=r"(r[1]));
}
PTX_FN void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row PTX_AT) {
    PTX_LDMATRIX(2, true, "x2.trans.shared.b16 {%0,%1}, [%2];", "=r"(r[0]), "=r"(r[1]));
}
PTX_FN void ldmatrix_x4(uint32_t (&r)[4], const void* row PTX_AT) {
    PTX_LDMATRIX(4, false, "x4.shared.b16 {%0,%1,%2,%3}, [%4];", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]));
}
PTX_FN void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row PTX_AT) {
    PTX_LDMATRIX(4, true, "x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]));
}

// ---- mma.sync: D[16x8] = A[16x16] B[16x8] + C[16x8], 16-bit inputs, f32 accumulator. d and c may be one array.
// With g = lane/4, t = lane%4 (two 16-bit values per register, the lower column or k in the lower half):
//   a[0] (g, 2t..)   a[1] (g+8, 2t..)   a[2] (g, 2t+8..)   a[3] (g+8, 2t+8..)
//   b[0] (k 2t.., n g)   b[1] (k 2t+8.., n g)     c[0],c[1] (g, 2t..)   c[2],c[3] (g+8, 2t..)

#if defined(SIMT_EMU)
#define PTX_MMA(type, model) simt::mma_m16n8k16(d, a, b, c, model, at)
#else
#define PTX_MMA(type, model)                                                                           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                      \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]),        \
                   "f"(c[1]), "f"(c[2]), "f"(c[3]))
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

// ---- fast approximations. Subnormal inputs and results become zero.

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
// log2(x), absolute error below 2^-22 near 1, relative error below 2^-22 elsewhere
PTX_FN float lg2(float x) {
#if defined(SIMT_EMU)
    return simt::lg2(x);
#else
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

}  // namespace rz::ptx
