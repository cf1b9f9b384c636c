#pragma once
// SwiGLU (Shazeer 2020): h = silu(gate) * up, with gate and up side by side in one row, as one GEMM writes them.
// fp32 arithmetic, one rounding. Pointers aligned to 16 bytes; any F works, F % 8 == 0 is fast.

#include "kernels/runtime/device.h"

namespace rz {

struct SwigluForward {
    void* h;              // (N, F) dtype    =
    const void* gate_up;  // (N, 2F) dtype   gate first
    int64_t N, F;
    DType dtype;
    uint32_t* amax = nullptr;  // (1) max= magnitudes of h (magnitude.h); optional
};

struct SwigluBackward {
    void* dgate_up;       // (N, 2F) dtype   =   may alias gate_up
    const void* dh;       // (N, F) dtype
    const void* gate_up;  // (N, 2F) dtype
    void* h = nullptr;    // (N, F) dtype    =   silu(gate) * up again, for the weight gradient; optional, may alias dh
    int64_t N, F;
    DType dtype;
    uint32_t *amax = nullptr, *h_amax = nullptr;  // (1) max= magnitudes of dgate_up, and of h; optional
};

void swiglu_forward(Stream&, const SwigluForward&);
void swiglu_backward(Stream&, const SwigluBackward&);

void swiglu_forward_cpu(const SwigluForward&);
void swiglu_backward_cpu(const SwigluBackward&);
void swiglu_forward_cuda(const SwigluForward&, CudaStream);
void swiglu_backward_cuda(const SwigluBackward&, CudaStream);

}  // namespace rz
