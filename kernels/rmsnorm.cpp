#include "kernels/rmsnorm.h"

#include "kernels/magnitude.h"
#include "kernels/runtime/context.h"

#define RZ_SIMD_WANT_BF16
#define RZ_SIMD_FILE "kernels/rmsnorm.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"

template <class T>
void rmsnorm_forward_t(const RmsnormForward& a) {
    const T* w = static_cast<const T*>(a.w);
#pragma omp parallel for schedule(static) if (a.N * a.C >= kSerialBelow)
    for (int64_t n = 0; n < a.N; ++n) {
        const T* x = static_cast<const T*>(a.x) + n * a.C;
        T* y = static_cast<T*>(a.y) + n * a.C;
        Vec squares{};
        if (a.residual) {
            const T* residual = static_cast<const T*>(a.residual) + n * a.C;
            T* sum = static_cast<T*>(a.sum) + n * a.C;
            for_vectors(a.C, [&](int64_t c, auto lanes) RZ_LAMBDA {
                const Vec s = rounded<T>(load(x + c, lanes) + load(residual + c, lanes));
                store(sum + c, s, lanes);
                squares += s * s;
            });
            x = sum;
        } else {
            for_vectors(a.C, [&](int64_t c, auto lanes) RZ_LAMBDA {
                const Vec s = load(x + c, lanes);
                squares += s * s;
            });
        }
        const float rstd = 1.0f / __builtin_sqrtf(sum_of(squares) / float(a.C) + a.eps);
        a.rstd[n] = rstd;
        for_vectors(a.C, [&](int64_t c, auto lanes)
                             RZ_LAMBDA { store(y + c, load(x + c, lanes) * rstd * load(w + c, lanes), lanes); });
    }
}

// One row: dx, and this row's share of dw added to dw_part.
template <class T>
inline void backward_row(const RmsnormBackward& a, int64_t n, float* dw_part) {
    const T* dy = static_cast<const T*>(a.dy) + n * a.C;
    const T* x = static_cast<const T*>(a.x) + n * a.C;
    const T* w = static_cast<const T*>(a.w);
    T* dx = static_cast<T*>(a.dx) + n * a.C;
    const float rstd = a.rstd[n];
    Vec dots{};
    for_vectors(a.C, [&](int64_t c, auto lanes) RZ_LAMBDA {
        const Vec g = load(dy + c, lanes) * load(x + c, lanes);
        dots += g * load(w + c, lanes);
        store(dw_part + c, load(dw_part + c, lanes) + g * rstd, lanes);
    });
    const float mean = sum_of(dots) / float(a.C) * rstd * rstd;  // of dy*w*xhat, times rstd: dx uses x, not xhat
    const T* dresidual = a.dresidual ? static_cast<const T*>(a.dresidual) + n * a.C : nullptr;
    const auto write_dx = [&](auto with_residual) RZ_LAMBDA {
        for_vectors(a.C, [&](int64_t c, auto lanes) RZ_LAMBDA {
            Vec d = rstd * (load(dy + c, lanes) * load(w + c, lanes) - load(x + c, lanes) * mean);
            if (with_residual) d += load(dresidual + c, lanes);
            store(dx + c, d, lanes);
        });
    };
    if (dresidual)
        write_dx(std::true_type{});
    else
        write_dx(std::false_type{});
}

template <class T, class G>
void rmsnorm_backward_t(const RmsnormBackward& a) {
    const int64_t parts = a.N < kRmsnormBackwardParts ? a.N : kRmsnormBackwardParts;
#pragma omp parallel for schedule(static) if (a.N * a.C >= kSerialBelow)
    for (int64_t p = 0; p < parts; ++p) {
        float* dw_part = a.scratch + p * a.C;
        for (int64_t c = 0; c < a.C; ++c) dw_part[c] = 0;
        for (int64_t n = p * a.N / parts; n < (p + 1) * a.N / parts; ++n) backward_row<T>(a, n, dw_part);
    }
    G* dw = static_cast<G*>(a.dw);
    constexpr int64_t kColumns = 256;
#pragma omp parallel for schedule(static) if (parts * a.C >= kSerialBelow)
    for (int64_t c0 = 0; c0 < a.C; c0 += kColumns) {
        alignas(64) float sum[kColumns];
        const int64_t columns = a.C - c0 < kColumns ? a.C - c0 : kColumns;
        for_vectors(columns, [&](int64_t c, auto lanes) RZ_LAMBDA { store(sum + c, Vec{}, lanes); });
        for (int64_t p = 0; p < parts; ++p)
            for_vectors(columns, [&](int64_t c, auto lanes) RZ_LAMBDA {
                store(sum + c, load(sum + c, lanes) + load(a.scratch + p * a.C + c0 + c, lanes), lanes);
            });
        for_vectors(columns, [&](int64_t c, auto lanes) RZ_LAMBDA {
            if (dw)
                store(dw + c0 + c, load(dw + c0 + c, lanes) + load(sum + c, lanes), lanes);
            else
                store(a.dw_sum + c0 + c, load(sum + c, lanes), lanes);
        });
    }
}

void rmsnorm_forward(const RmsnormForward& a) {
    with_dtype(a.dtype, [&]<class T>() { rmsnorm_forward_t<T>(a); });
}

void rmsnorm_backward(const RmsnormBackward& a) {
    with_grad_dtype(a.dtype, a.grad_dtype, [&]<class T, class G>() { rmsnorm_backward_t<T, G>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

int64_t rmsnorm_backward_threads(int64_t C, int64_t vec) {
    const int64_t threads = round_up(ceil_div(ceil_div(C, vec), 2), 32);
    return threads < 32 ? 32 : threads > kRmsnormBackwardThreads ? kRmsnormBackwardThreads : threads;
}

int64_t rmsnorm_backward_scratch(int64_t C) {
    const int64_t parts = 256 * (kRmsnormBackwardThreads / rmsnorm_backward_threads(C, 8));
    return checked_mul(parts, C, "rmsnorm_backward: rows of scratch x C");
}

void rmsnorm_forward_cpu(const RmsnormForward& a) {
    RZ_SIMD_CALL(rmsnorm_forward, a);
    if (a.amax) join_magnitudes(a.amax, a.dtype, a.y, a.N, a.C, a.C);
}
void rmsnorm_backward_cpu(const RmsnormBackward& a) {
    RZ_SIMD_CALL(rmsnorm_backward, a);
    if (a.amax) join_magnitudes(a.amax, a.dtype, a.dx, a.N, a.C, a.C);
}

void rmsnorm_forward(Stream& stream, const RmsnormForward& a) {
    const char* op = "rmsnorm_forward";
    check_sizes(op, {{"N", a.N, 0}, {"C", a.C, 1}});
    if (a.N == 0) return;
    check_pointers(op, {{"y", a.y, 16}, {"rstd", a.rstd}, {"x", a.x, 16}, {"w", a.w, 16}});
    require(a.eps > 0, "%s: eps is %g; it must be positive, or a row of zeros divides by zero", op, double(a.eps));
    if (a.residual) check_pointers(op, {{"residual", a.residual, 16}, {"sum (needed with residual)", a.sum, 16}});
    stream.run(a, rmsnorm_forward_cpu, RZ_CUDA_OP(rmsnorm_forward_cuda));
}

void rmsnorm_backward(Stream& stream, const RmsnormBackward& a) {
    const char* op = "rmsnorm_backward";
    check_sizes(op, {{"N", a.N, 0}, {"C", a.C, 1}});
    check_grad_dtype(op, a.grad_dtype, a.dtype);
    if (a.N == 0) return;
    check_pointer(op, "dx", a.dx, 16);
    require(!a.dw != !a.dw_sum, "%s: dw or dw_sum is needed, and not both", op);
    if (a.dw) check_pointer(op, "dw", a.dw, 16);
    if (a.dw_sum) check_pointer(op, "dw_sum", a.dw_sum, 16);
    check_pointers(op,
                   {{"dy", a.dy, 16}, {"x", a.x, 16}, {"w", a.w, 16}, {"rstd", a.rstd}, {"scratch", a.scratch, 16}});
    if (a.dresidual) check_pointer(op, "dresidual", a.dresidual, 16);
    RmsnormBackward call = a;
    call.beside = stream.context().beside;
    stream.run(call, rmsnorm_backward_cpu, RZ_CUDA_OP(rmsnorm_backward_cuda));
}

}  // namespace rz
#endif
