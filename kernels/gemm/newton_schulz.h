#pragma once
// Newton-Schulz's iteration (Jordan 2024): singular values close to 1, by products alone.
//
//   x = x / max(|x|_F, 1e-7)
//   of each step:  S = x x^T,   x = a x + (b S + c S S) x       x^T x on the other side where x has more rows
//
// Each product is rounded once to x's type, as torch's addmm is. A matrix gives the same bits wherever it lies.

#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/runtime/device.h"

namespace rz {

struct Quintic {
    float a, b, c;
};
// Jordan's coefficients, `steps` times; and those of Polar Express (Amsel et al. 2025, their algorithm 2), which differ
// from step to step and bring every singular value of at least 0.001 of the norm close to 1.
std::vector<Quintic> jordan_steps(int steps);
std::vector<Quintic> polar_express_steps(int steps);
constexpr float kPolarExpressMargin = 1.01f;  // of the norm: rounding may not take a singular value beyond 1

// A product that is symmetric, C or what is added too: M is N, C dense. Parts of its rows, from the diagonal on, and
// their mirror image: C is symmetric to the bit. A small one is computed whole.
void gemm_symmetric(Stream&, const Gemm&);
double symmetric_flops(Device, int64_t n, int64_t k);  // of C (n, n), summed over k

// Enqueues products of kernels/gemm and ops of kernels/muon.h.
struct NewtonSchulz {
    void* x;  // (rows, cols) dtype   in place: u, then the orthogonal matrix
    int64_t rows, cols;
    DType dtype;  // f32 or bf16
    std::vector<Quintic> steps;
    float margin = 1;
    void* work;  // newton_schulz_bytes(), 64-byte aligned
};
int64_t newton_schulz_bytes(int64_t rows, int64_t cols, DType dtype);
double newton_schulz_flops(Device, int64_t rows, int64_t cols, int steps);
void newton_schulz(Stream&, const NewtonSchulz&);

}  // namespace rz
