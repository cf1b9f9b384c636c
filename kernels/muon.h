#pragma once
// Muon (Jordan 2024; torch.optim.Muon) without its products: the momentum, the norm and the step.
//
//   m = mu m + (1 - mu) g,   u = (1 - mu) g + mu m             g = grad * *grad_scale; u is Nesterov's sum
//   X = Newton-Schulz of u / max(|u|_F, 1e-7)                  gemm/newton_schulz.h
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
void muon_step(Stream&, const MuonStep&);

void muon_momentum_cpu(const MuonMomentum&);
void muon_normalise_cpu(const MuonNormalise&);
void muon_step_cpu(const MuonStep&);
void muon_momentum_cuda(const MuonMomentum&, CudaStream);
void muon_normalise_cuda(const MuonNormalise&, CudaStream);
void muon_step_cuda(const MuonStep&, CudaStream);

}  // namespace rz
