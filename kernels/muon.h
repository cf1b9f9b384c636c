#pragma once
// Muon (Jordan 2024; torch.optim.Muon) without its products: the momentum, the norm, the second half of a symmetric
// product, NorMuon's rows and the step.
//
//   m = mu m + (1 - mu) g,   u = (1 - mu) g + mu m             g = grad * *grad_scale; u is Nesterov's sum
//   X = Newton-Schulz of u / max(|u|_F, 1e-7)                  gemm/newton_schulz.h
//   v = beta2 v + (1 - beta2) mean of the row's X^2,   Y = X / (sqrt(v) + 1e-10),   X = Y |X|_F / (|Y|_F + 1e-10)
//                                                              where NorMuon is asked for (Li et al. 2025)
//   w = w (1 - lr decay) - lr s X
//
// m, and a master that is a bf16 parameter, may be bf16: stored with stochastic rounding drawn from seed, step and
// logical offset, as AdamW's are. If *grad_scale is not finite the state stays bit for bit, and u is zero. Any cut of a
// range gives the same bits.

#include "kernels/runtime/device.h"

namespace rz {

struct MuonMomentum {
    void* out;                // (n) out_dtype   =   u
    void* m;                  // (n) m_dtype     in place
    const void* grad;         // (n) grad_dtype
    const float* grad_scale;  // (1) f32, on the device: clipping and averaging factor
    int64_t n;
    int64_t first = 0;  // logical offset of the first element
    float momentum;
    int64_t step;  // 1 for the first: draws the stochastic rounding
    uint64_t seed = 0;
    DType out_dtype, grad_dtype;
    DType m_dtype = DType::f32;  // or bf16
};

// x /= max(*norm, 1e-7) * margin
struct MuonNormalise {
    void* x;            // (n) dtype   in place
    const float* norm;  // (1) f32, on the device
    int64_t n;
    float margin = 1;
    DType dtype;
};

// s(i, j) = s(j, i) for i > j: bits are copied, and what stood below the diagonal is not read.
struct MuonMirror {
    void* s;  // (n, n) dtype   in place
    int64_t n;
    DType dtype;
};

// By row: v = beta2 v + (1 - beta2) mean(x^2), factor = 1 / (sqrt(v) + 1e-10), and the sums of squares before and after
// the row is multiplied by it. A row has the same bits wherever it lies.
struct MuonRowMoments {
    float* v;                 // (rows)   in place; left as it is where *grad_scale is not finite
    float* factor;            // (rows)   =
    double *before, *after;   // (rows)   =
    const void* x;            // (rows, cols) dtype
    const float* grad_scale;  // (1) f32, on the device: only whether it is finite counts
    int64_t rows, cols;
    float beta2;
    DType dtype;  // f32 or bf16
};

// x = x * (factor of its row * (*before / (*after + 1e-10)))
struct MuonScaleRows {
    void* x;                      // (rows, cols) dtype   in place
    const float* factor;          // (rows)
    const float *before, *after;  // (1) norms, on the device
    int64_t rows, cols;
    DType dtype;  // f32 or bf16
};

// NorMuon's part of an update, of one matrix: the two above, and the norms between them.
struct MuonRows {
    void* x;  // (rows, cols) dtype   in place: the orthogonal matrix
    float* v;
    const float* grad_scale;
    int64_t rows, cols;
    float beta2;
    DType dtype;
    void* work;  // muon_rows_bytes(), 64-byte aligned
};
int64_t muon_rows_bytes(int64_t rows);
void muon_rows(Stream&, const MuonRows&);

struct MuonStep {
    void* param;              // (n) param_dtype   =
    void* master;             // (n) master_dtype  in place; param itself if the dtypes are the same
    const void* x;            // (n) x_dtype: the orthogonal matrix
    const float* grad_scale;  // (1) f32, on the device: only whether it is finite counts
    int64_t n;
    int64_t first = 0;
    float keep, rate;  // w = keep w - rate x
    int64_t step;
    uint64_t seed = 0;
    DType param_dtype, x_dtype;
    DType master_dtype = DType::f32;
};

void muon_momentum(Stream&, const MuonMomentum&);
void muon_normalise(Stream&, const MuonNormalise&);
void muon_mirror(Stream&, const MuonMirror&);
void muon_row_moments(Stream&, const MuonRowMoments&);
void muon_scale_rows(Stream&, const MuonScaleRows&);
void muon_step(Stream&, const MuonStep&);

void muon_momentum_cpu(const MuonMomentum&);
void muon_normalise_cpu(const MuonNormalise&);
void muon_mirror_cpu(const MuonMirror&);
void muon_row_moments_cpu(const MuonRowMoments&);
void muon_scale_rows_cpu(const MuonScaleRows&);
void muon_step_cpu(const MuonStep&);
void muon_momentum_cuda(const MuonMomentum&, CudaStream);
void muon_normalise_cuda(const MuonNormalise&, CudaStream);
void muon_mirror_cuda(const MuonMirror&, CudaStream);
void muon_row_moments_cuda(const MuonRowMoments&, CudaStream);
void muon_scale_rows_cuda(const MuonScaleRows&, CudaStream);
void muon_step_cuda(const MuonStep&, CudaStream);

}  // namespace rz
