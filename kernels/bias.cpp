#include "kernels/bias.h"

#include "kernels/checks.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/bias.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

template <class T>
void add_bias_t(const AddBias& a) {
    const T* bias = static_cast<const T*>(a.bias);
#pragma omp parallel for schedule(static) if (a.N * a.C >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        T* x = static_cast<T*>(a.x) + n * a.C;
        for_vectors(a.C, [&](int64_t c, auto lanes)
                             RZ_LAMBDA { store(x + c, load(x + c, lanes) + load(bias + c, lanes), lanes); });
    }
}

template <class T, class G>
void bias_backward_t(const BiasBackward& a) {
    const int64_t parts = a.N < kBiasBackwardParts ? a.N : kBiasBackwardParts;
#pragma omp parallel for schedule(static) if (a.N * a.C >= kSerialBelow)
    for (int64_t p = 0; p < parts; ++p) {
        float* sum = a.scratch + p * a.C;
        for (int64_t c = 0; c < a.C; ++c) sum[c] = 0;
        for (int64_t n = p * a.N / parts; n < (p + 1) * a.N / parts; ++n) {
            const T* dy = static_cast<const T*>(a.dy) + n * a.C;
            for_vectors(a.C, [&](int64_t c, auto lanes)
                                 RZ_LAMBDA { store(sum + c, load(sum + c, lanes) + load(dy + c, lanes), lanes); });
        }
    }
    G* dbias = static_cast<G*>(a.dbias);
    for_vectors(a.C, [&](int64_t c, auto lanes) RZ_LAMBDA {
        Vec sum{};
        for (int64_t p = 0; p < parts; ++p) sum += load(a.scratch + p * a.C + c, lanes);
        store(dbias + c, load(dbias + c, lanes) + sum, lanes);
    });
}

void add_bias(const AddBias& a) {
    with_dtype(a.dtype, [&]<class T>() { add_bias_t<T>(a); });
}

void bias_backward(const BiasBackward& a) {
    with_grad_dtype(a.dtype, a.grad_dtype, [&]<class T, class G>() { bias_backward_t<T, G>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

int64_t bias_backward_scratch(int64_t C) {
    return checked_mul(kBiasBackwardParts, C, "bias_backward: rows of scratch x C");
}

void add_bias_cpu(const AddBias& a) { RZ_SIMD_CALL(add_bias, a); }
void bias_backward_cpu(const BiasBackward& a) { RZ_SIMD_CALL(bias_backward, a); }

void add_bias(Stream& stream, const AddBias& a) {
    const char* op = "add_bias";
    check_sizes(op, {{"N", a.N, 0}, {"C", a.C, 1}});
    if (a.N == 0) return;
    check_pointers(op, {{"x", a.x, 16}, {"bias", a.bias, 16}});
    stream.run(a, add_bias_cpu, RZ_CUDA_OP(add_bias_cuda));
}

void bias_backward(Stream& stream, const BiasBackward& a) {
    const char* op = "bias_backward";
    check_sizes(op, {{"N", a.N, 0}, {"C", a.C, 1}});
    check_grad_dtype(op, a.grad_dtype, a.dtype);
    if (a.N == 0) return;
    check_pointers(op, {{"dbias", a.dbias, 16}, {"dy", a.dy, 16}, {"scratch", a.scratch, 16}});
    stream.run(a, bias_backward_cpu, RZ_CUDA_OP(bias_backward_cuda));
}

}  // namespace rz
#endif
