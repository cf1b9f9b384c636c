// ldmatrix, mma.sync and the approximate functions. Sums run in order of k in fp32: tensor cores neither
// round nor order them so, and tests need a tolerance.
#include <cfloat>
#include <cmath>

#include "test/simt/models.h"
#include "test/simt/runtime.h"

namespace simt {

namespace {

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
        const auto half = [&](uint32_t x, int h) {
            return models::half_to_float(uint16_t(x >> 16 * h), p.type == Half::bf16);
        };
        for (int h = 0; h < 2; h++) {
            for (int r = 0; r < 4; r++) a[models::a_row(l, r)][models::a_column(l, r, h)] = half(p.a[r], h);
            for (int r = 0; r < 2; r++) b[models::b_row(l, r, h)][models::b_column(l)] = half(p.b[r], h);
        }
        for (int r = 0; r < 4; r++) c[models::d_row(l, r)][models::d_column(l, r)] = p.c[r];
    }
    models::multiply(c[0], a[0], b[0], 8);
    for (int l = 0; l < 32; l++) {
        const auto& p = *static_cast<MmaPart*>(lanes[l]->payload);
        for (int r = 0; r < 4; r++) p.d[r] = c[models::d_row(l, r)][models::d_column(l, r)];
    }
}

struct MatrixPart {
    uint32_t* r;
    unsigned char* row;
    bool trans;
};

void check_row(const char* op, const void* row, Site at) {
    if (uintptr_t(row) & 15) fail("%s at %s: row address %p is not 16-byte aligned", op, where(at).c_str(), row);
    if (!owner_of_shared(row)) fail("%s at %s: row address %p is not in shared memory", op, where(at).c_str(), row);
}

void complete_ldmatrix(Fiber* const* lanes, uint32_t) {
    const auto part = [&](int l) -> MatrixPart& { return *static_cast<MatrixPart*>(lanes[l]->payload); };
    for (int i = 0; i < 4; i++) {
        uint16_t m[8][8];
        for (int j = 0; j < 8; j++) memcpy(m[j], part(i * 8 + j).row, 16);
        for (int l = 0; l < 32; l++) {
            uint32_t value = 0;
            for (int h = 0; h < 2; h++) {
                int row, column;
                models::matrix_place(l, h, part(0).trans, &row, &column);
                value |= uint32_t(m[row][column]) << 16 * h;
            }
            part(l).r[i] = value;
        }
    }
}

struct TransposedPart {
    uint32_t in, out;
};

void complete_movmatrix(Fiber* const* lanes, uint32_t) {
    const auto part = [&](int l) -> TransposedPart& { return *static_cast<TransposedPart*>(lanes[l]->payload); };
    uint32_t in[32], out[32];
    for (int l = 0; l < 32; l++) in[l] = part(l).in;
    models::transpose_matrix(out, in);
    for (int l = 0; l < 32; l++) part(l).out = out[l];
}

}  // namespace

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, const float* c, Half type, Site at) {
    MmaPart p{d, a, b, c, type};
    warp_collective(~0u, &p, complete_mma, type == Half::bf16 ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16", at);
}

void ldmatrix(uint32_t* r, const void* row, bool trans, Site at) {
    MatrixPart p{r, static_cast<unsigned char*>(const_cast<void*>(row)), trans};
    const char* op = trans ? "ldmatrix.trans" : "ldmatrix";
    check_row(op, row, at);
    if (race) race->access(row, 16, Access::warp_read, at);
    warp_collective(~0u, &p, complete_ldmatrix, op, at);
}

uint32_t movmatrix(uint32_t x, Site at) {
    TransposedPart p{x, 0};
    warp_collective(~0u, &p, complete_movmatrix, "movmatrix", at);
    return p.out;
}

// Flush to zero as the device does; the last bits differ.
static float flush(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
float ex2(float x) { return flush(std::exp2(flush(x))); }
float rcp(float x) { return flush(1.0f / flush(x)); }

}  // namespace simt
