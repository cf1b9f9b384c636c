#include "kernels/swiglu.h"

#include "kernels/magnitude.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/swiglu.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

void swiglu_forward(const SwigluForward& a) {
    with_dtype(a.dtype, [&]<class T>() {
#pragma omp parallel for schedule(static) if (a.N * a.F >= kSerialBelow)
        for (int64_t n = 0; n < a.N; ++n) {
            const T* gate = static_cast<const T*>(a.gate_up) + n * 2 * a.F;
            const T* up = gate + a.F;
            T* h = static_cast<T*>(a.h) + n * a.F;
            for_vectors(a.F, [&](int64_t f, auto lanes) RZ_LAMBDA {
                const Vec g = load(gate + f, lanes);
                store(h + f, g * sigmoid(g) * load(up + f, lanes), lanes);
            });
        }
    });
}

template <class T, bool kWriteH>
void swiglu_backward_t(const SwigluBackward& a) {
#pragma omp parallel for schedule(static) if (a.N * a.F >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        const T* gate = static_cast<const T*>(a.gate_up) + n * 2 * a.F;
        const T* up = gate + a.F;
        const T* dh = static_cast<const T*>(a.dh) + n * a.F;
        T* dgate = static_cast<T*>(a.dgate_up) + n * 2 * a.F;
        T* dup = dgate + a.F;
        T* h = kWriteH ? static_cast<T*>(a.h) + n * a.F : nullptr;
        for_vectors(a.F, [&](int64_t f, auto lanes) RZ_LAMBDA {
            const Vec g = load(gate + f, lanes), u = load(up + f, lanes), d = load(dh + f, lanes);
            const Vec s = sigmoid(g);
            const Vec silu = g * s;
            store(dgate + f, d * u * s * (1.0f + g - silu), lanes);  // silu' = s (1 + g (1 - s))
            store(dup + f, d * silu, lanes);
            if (kWriteH) store(h + f, silu * u, lanes);
        });
    }
}

void swiglu_backward(const SwigluBackward& a) {
    with_dtype(a.dtype, [&]<class T>() {
        if (a.h)
            swiglu_backward_t<T, true>(a);
        else
            swiglu_backward_t<T, false>(a);
    });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void swiglu_forward_cpu(const SwigluForward& a) {
    RZ_SIMD_CALL(swiglu_forward, a);
    if (a.amax) join_magnitudes(a.amax, a.dtype, a.h, a.N, a.F, a.F);
}
void swiglu_backward_cpu(const SwigluBackward& a) {
    RZ_SIMD_CALL(swiglu_backward, a);
    if (a.amax) join_magnitudes(a.amax, a.dtype, a.dgate_up, a.N, 2 * a.F, 2 * a.F);
    if (a.h_amax) join_magnitudes(a.h_amax, a.dtype, a.h, a.N, a.F, a.F);
}

void swiglu_forward(Stream& stream, const SwigluForward& a) {
    const char* op = "swiglu_forward";
    check_sizes(op, {{"N", a.N, 0}, {"F", a.F, 1}});
    if (a.N == 0) return;
    check_pointers(op, {{"h", a.h, 16}, {"gate_up", a.gate_up, 16}});
    stream.run(a, swiglu_forward_cpu, RZ_CUDA_OP(swiglu_forward_cuda));
}

void swiglu_backward(Stream& stream, const SwigluBackward& a) {
    const char* op = "swiglu_backward";
    check_sizes(op, {{"N", a.N, 0}, {"F", a.F, 1}});
    if (a.N == 0) return;
    check_pointers(op, {{"dgate_up", a.dgate_up, 16}, {"dh", a.dh, 16}, {"gate_up", a.gate_up, 16}});
    if (a.h) check_pointer(op, "h", a.h, 16);
    require(a.h || !a.h_amax, "%s: h_amax is set, and h is not", op);
    stream.run(a, swiglu_backward_cpu, RZ_CUDA_OP(swiglu_backward_cuda));
}

}  // namespace rz
#endif
