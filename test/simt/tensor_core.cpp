// ldmatrix, stmatrix, mma.sync and the approximate functions. Sums run in order of k in fp32: tensor cores neither
// round nor order them so, and tests need a tolerance.
#include <bit>
#include <cmath>

#include "test/simt/runtime.h"

namespace simt {

float half_to_float(uint16_t bits, Half type) {
    if (type == Half::bf16) return std::bit_cast<float>(uint32_t(bits) << 16);
    return float(std::bit_cast<_Float16>(bits));
}

namespace {

#define SIMT_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

__attribute__((always_inline)) SIMT_UNCHECKED inline void multiply_loops(float* __restrict__ c,
                                                                         const float* __restrict__ a,
                                                                         const float* __restrict__ b, int n) {
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) {
            const float x = a[i * 16 + k];
            for (int j = 0; j < n; j++) c[i * n + j] += x * b[k * n + j];
        }
}
SIMT_UNCHECKED __attribute__((optimize("O3"))) void multiply_baseline(float* c, const float* a, const float* b, int n) {
    multiply_loops(c, a, b, n);
}
#if defined(__x86_64__)
SIMT_UNCHECKED __attribute__((optimize("O3"), target("avx2,fma"))) void multiply_avx2(float* c, const float* a,
                                                                                      const float* b, int n) {
    multiply_loops(c, a, b, n);
}
#endif

struct MmaPart {
    float* d;
    const uint32_t *a, *b;
    const float* c;
    Half type;
};

// Row and column of what lane l holds; see the fragment layout in kernels/cuda/ptx.cuh.
void complete_mma(Fiber* const* lanes, uint32_t) {
    float a[16][16], b[16][8], c[16][8];
    for (int l = 0; l < 32; l++) {
        const auto& p = *static_cast<MmaPart*>(lanes[l]->payload);
        const int g = l / 4, t = l % 4 * 2;
        for (int r = 0; r < 4; r++)
            for (int h = 0; h < 2; h++)
                a[g + r % 2 * 8][t + r / 2 * 8 + h] = half_to_float(uint16_t(p.a[r] >> 16 * h), p.type);
        for (int r = 0; r < 2; r++)
            for (int h = 0; h < 2; h++) b[t + r * 8 + h][g] = half_to_float(uint16_t(p.b[r] >> 16 * h), p.type);
        for (int r = 0; r < 4; r++) c[g + r / 2 * 8][t + r % 2] = p.c[r];
    }
    multiply(c[0], a[0], b[0], 8);
    for (int l = 0; l < 32; l++) {
        const auto& p = *static_cast<MmaPart*>(lanes[l]->payload);
        for (int r = 0; r < 4; r++) p.d[r] = c[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
    }
}

struct MatrixPart {
    uint32_t* r;
    unsigned char* row;
    int matrices;
    bool trans;
};

void check_row(const char* op, const void* row, Site at) {
    if (uintptr_t(row) & 15) fail("%s at %s: row address %p is not 16-byte aligned", op, where(at).c_str(), row);
    if (!owner_of_shared(row)) fail("%s at %s: row address %p is not in shared memory", op, where(at).c_str(), row);
}

void complete_ldmatrix(Fiber* const* lanes, uint32_t) {
    const auto part = [&](int l) -> MatrixPart& { return *static_cast<MatrixPart*>(lanes[l]->payload); };
    for (int i = 0; i < part(0).matrices; i++) {
        uint16_t m[8][8];
        for (int j = 0; j < 8; j++) memcpy(m[j], part(i * 8 + j).row, 16);
        for (int l = 0; l < 32; l++) {
            const int g = l / 4, t = l % 4 * 2;
            part(l).r[i] =
                part(0).trans ? m[t][g] | uint32_t(m[t + 1][g]) << 16 : m[g][t] | uint32_t(m[g][t + 1]) << 16;
        }
    }
}

void complete_stmatrix(Fiber* const* lanes, uint32_t) {
    const auto part = [&](int l) -> MatrixPart& { return *static_cast<MatrixPart*>(lanes[l]->payload); };
    for (int i = 0; i < part(0).matrices; i++) {
        uint16_t m[8][8];
        for (int l = 0; l < 32; l++)
            for (int h = 0; h < 2; h++) {
                const int g = l / 4, t = l % 4 * 2 + h;
                (part(0).trans ? m[t][g] : m[g][t]) = uint16_t(part(l).r[i] >> 16 * h);
            }
        for (int j = 0; j < 8; j++) memcpy(part(i * 8 + j).row, m[j], 16);
    }
}

}  // namespace

void multiply(float* c, const float* a, const float* b, int n) {
#if defined(__x86_64__)
    static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2) return multiply_avx2(c, a, b, n);
#endif
    multiply_baseline(c, a, b, n);
}

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, const float* c, Half type, Site at) {
    MmaPart p{d, a, b, c, type};
    warp_collective(~0u, &p, complete_mma, type == Half::bf16 ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16", at);
}

void ldmatrix(uint32_t* r, const void* row, int matrices, bool trans, Site at) {
    MatrixPart p{r, static_cast<unsigned char*>(const_cast<void*>(row)), matrices, trans};
    const char* op = trans ? "ldmatrix.trans" : "ldmatrix";
    if (int(current->lane) < matrices * 8) {
        check_row(op, row, at);
        if (race) race->access(row, 16, Access::warp_read, at);
    }
    warp_collective(~0u, &p, complete_ldmatrix, op, at);
}

void stmatrix(void* row, const uint32_t* r, int matrices, bool trans, Site at) {
    MatrixPart p{const_cast<uint32_t*>(r), static_cast<unsigned char*>(row), matrices, trans};
    const char* op = trans ? "stmatrix.trans" : "stmatrix";
    if (int(current->lane) < matrices * 8) {
        check_row(op, row, at);
        if (race) race->access(row, 16, Access::write, at);
    }
    warp_collective(~0u, &p, complete_stmatrix, op, at);
}

// Flush to zero as the device does; the last bits differ.
static float flush(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
float ex2(float x) { return flush(std::exp2(flush(x))); }
float lg2(float x) { return std::log2(flush(x)); }
float rcp(float x) { return flush(1.0f / flush(x)); }

}  // namespace simt
