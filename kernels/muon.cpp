#include "kernels/muon.h"

#include "kernels/checks.h"
#include "kernels/global_norm.h"
#include "kernels/stochastic_rounding.h"

#define RZ_SIMD_FILE "kernels/muon.cpp"
#include "kernels/cpu/simd.h"

#ifdef RZ_SIMD_PASS
namespace rz::RZ_SIMD_PASS {

#include "kernels/cpu/simd_vec.h"
#include "kernels/cpu/simd_chance.h"

// Calls body(begin, end) for pieces of at most kBlock elements.
template <class Body>
void for_blocks(int64_t n, Body&& body) {
    const int64_t blocks = ceil_div(n, kBlock);
#pragma omp parallel for schedule(static) if (n >= kSerialBelow)
    for (int64_t b = 0; b < blocks; ++b) body(b * kBlock, n - b * kBlock < kBlock ? n : (b + 1) * kBlock);
}

template <class U, class A, class G>
void momentum_t(const MuonMomentum& a) {
    constexpr bool kRounds = !std::is_same_v<A, float>;
    const float scale = *a.grad_scale, mu = a.momentum, fresh = float(1.0 - double(a.momentum));
    const bool finite = __builtin_isfinite(scale);
    U* u = static_cast<U*>(a.out);
    A* m = static_cast<A*>(a.m);
    const G* grad = static_cast<const G*>(a.grad);
    for_blocks(a.n, [&](int64_t begin, int64_t end) {
        Chance chance;
        if constexpr (kRounds) chance.fill(a.seed, a.first + begin, end - begin, moment_stream(a.step));
        for_vectors(end - begin, [&](int64_t k, auto lanes) RZ_LAMBDA {
            const int64_t i = begin + k;
            if (!finite) return store(u + i, Vec{}, lanes);
            const Vec g = fresh * (load(grad + i, lanes) * scale);
            const Vec m_new = mu * load(m + i, lanes) + g;
            store_by_chance(m + i, m_new, kRounds ? chance.at(k) : VecBits{}, lanes);
            store(u + i, g + mu * m_new, lanes);
        });
    });
}

void momentum(const MuonMomentum& a) {
    with_dtype(a.grad_dtype, [&]<class G>() {
        if (a.m_dtype == DType::bf16)
            a.out_dtype == DType::f32 ? momentum_t<float, bf16, G>(a) : momentum_t<bf16, bf16, G>(a);
        else
            a.out_dtype == DType::f32 ? momentum_t<float, float, G>(a) : momentum_t<bf16, float, G>(a);
    });
}

template <class T>
void normalise_t(const MuonNormalise& a) {
    T* x = static_cast<T*>(a.x);
    const float by = (*a.norm > 1e-7f ? *a.norm : 1e-7f) * a.margin;
    for_blocks(a.n, [&](int64_t begin, int64_t end) {
        for_vectors(end - begin, [&](int64_t k, auto lanes)
                                     RZ_LAMBDA { store(x + begin + k, load(x + begin + k, lanes) / by, lanes); });
    });
}

void normalise(const MuonNormalise& a) { a.dtype == DType::f32 ? normalise_t<float>(a) : normalise_t<bf16>(a); }

// In tiles, so that the lines that are read stay in the cache.
template <class Word>
void mirror_t(const MuonMirror& a) {
    constexpr int64_t kTile = 32;
    Word* s = static_cast<Word*>(a.s);
#pragma omp parallel for schedule(dynamic) if (a.n * a.n >= kSerialBelow)
    for (int64_t i0 = 0; i0 < a.n; i0 += kTile)
        for (int64_t j0 = 0; j0 <= i0; j0 += kTile)
            for (int64_t i = i0; i < i0 + kTile && i < a.n; ++i)
                for (int64_t j = j0; j < j0 + kTile && j < i; ++j) s[i * a.n + j] = s[j * a.n + i];
}

void mirror(const MuonMirror& a) { size_of(a.dtype) == 4 ? mirror_t<uint32_t>(a) : mirror_t<uint16_t>(a); }

template <class T>
void row_moments_t(const MuonRowMoments& a) {
    const bool finite = __builtin_isfinite(*a.grad_scale);
    const float fresh = float(1.0 - double(a.beta2));
#pragma omp parallel for schedule(static) if (a.rows * a.cols >= kSerialBelow)
    for (int64_t r = 0; r < a.rows; ++r) {
        const T* x = static_cast<const T*>(a.x) + r * a.cols;
        Vec squares{};
        for_vectors(a.cols, [&](int64_t c, auto lanes) RZ_LAMBDA {
            const Vec here = load(x + c, lanes);
            squares += here * here;
        });
        const float sum = sum_of(squares);
        const float v = finite ? a.beta2 * a.v[r] + fresh * (sum / float(a.cols)) : a.v[r];
        const float factor = 1.0f / (__builtin_sqrtf(v) + 1e-10f);
        a.v[r] = v, a.factor[r] = factor;
        a.before[r] = double(sum), a.after[r] = double(sum) * double(factor) * double(factor);
    }
}

void row_moments(const MuonRowMoments& a) { a.dtype == DType::f32 ? row_moments_t<float>(a) : row_moments_t<bf16>(a); }

template <class T>
void scale_rows_t(const MuonScaleRows& a) {
    const float all = *a.before / (*a.after + 1e-10f);
#pragma omp parallel for schedule(static) if (a.rows * a.cols >= kSerialBelow)
    for (int64_t r = 0; r < a.rows; ++r) {
        T* x = static_cast<T*>(a.x) + r * a.cols;
        const float by = a.factor[r] * all;
        for_vectors(a.cols, [&](int64_t c, auto lanes) RZ_LAMBDA { store(x + c, load(x + c, lanes) * by, lanes); });
    }
}

void scale_rows(const MuonScaleRows& a) { a.dtype == DType::f32 ? scale_rows_t<float>(a) : scale_rows_t<bf16>(a); }

template <class P, class M, class X>
void step_t(const MuonStep& a) {
    constexpr bool kRounds = !std::is_same_v<M, float>;
    P* param = static_cast<P*>(a.param);
    M* w = static_cast<M*>(a.master);
    const X* x = static_cast<const X*>(a.x);
    const bool write_param = a.param != a.master;
    for_blocks(a.n, [&](int64_t begin, int64_t end) {
        Chance chance;
        if constexpr (kRounds) chance.fill(a.seed, a.first + begin, end - begin, master_stream(a.step));
        for_vectors(end - begin, [&](int64_t k, auto lanes) RZ_LAMBDA {
            const int64_t i = begin + k;
            const Vec w_new = a.keep * load(w + i, lanes) - a.rate * load(x + i, lanes);
            store_by_chance(w + i, w_new, kRounds ? chance.at(k) : VecBits{}, lanes);
            if (write_param) store(param + i, w_new, lanes);
        });
    });
}

template <class P, class M>
void step_m(const MuonStep& a) {
    a.x_dtype == DType::f32 ? step_t<P, M, float>(a) : step_t<P, M, bf16>(a);
}

void step(const MuonStep& a) {
    if (a.master_dtype == DType::bf16)
        step_m<bf16, bf16>(a);
    else
        with_dtype(a.param_dtype, [&]<class P>() { step_m<P, float>(a); });
}

}  // namespace rz::RZ_SIMD_PASS
#else

namespace rz {

void muon_momentum_cpu(const MuonMomentum& a) { RZ_SIMD_CALL(momentum, a); }
void muon_normalise_cpu(const MuonNormalise& a) { RZ_SIMD_CALL(normalise, a); }
void muon_mirror_cpu(const MuonMirror& a) { RZ_SIMD_CALL(mirror, a); }
void muon_row_moments_cpu(const MuonRowMoments& a) { RZ_SIMD_CALL(row_moments, a); }
void muon_scale_rows_cpu(const MuonScaleRows& a) { RZ_SIMD_CALL(scale_rows, a); }
void muon_step_cpu(const MuonStep& a) {
    if (std::isfinite(*a.grad_scale)) RZ_SIMD_CALL(step, a);
}

static void check_wide(const char* op, const char* name, DType dtype) {
    require(dtype != DType::f16, "%s: %s is fp16; it may be fp32 or bf16", op, name);
}

void muon_momentum(Stream& stream, const MuonMomentum& a) {
    const char* op = "muon_momentum";
    check_sizes(op, {{"n", a.n, 0}, {"first", a.first, 0}, {"step (1 is the first)", a.step, 1}});
    require(a.momentum >= 0 && a.momentum < 1, "%s: momentum %g; it must be in [0, 1) (0.95 is usual)", op,
            double(a.momentum));
    check_wide(op, "out", a.out_dtype);
    check_wide(op, "m", a.m_dtype);
    if (a.n == 0) return;
    check_pointers(op, {{"out", a.out, size_of(a.out_dtype)},
                        {"m", a.m, size_of(a.m_dtype)},
                        {"grad", a.grad, size_of(a.grad_dtype)},
                        {"grad_scale", a.grad_scale}});
    stream.run(a, muon_momentum_cpu, RZ_CUDA_OP(muon_momentum_cuda));
}

void muon_normalise(Stream& stream, const MuonNormalise& a) {
    const char* op = "muon_normalise";
    check_size(op, "n", a.n, 0);
    check_wide(op, "x", a.dtype);
    if (a.n == 0) return;
    check_pointers(op, {{"x", a.x, size_of(a.dtype)}, {"norm", a.norm}});
    stream.run(a, muon_normalise_cpu, RZ_CUDA_OP(muon_normalise_cuda));
}

void muon_mirror(Stream& stream, const MuonMirror& a) {
    const char* op = "muon_mirror";
    check_size(op, "n", a.n, 0);
    if (a.n == 0) return;
    check_pointer(op, "s", a.s, size_of(a.dtype));
    stream.run(a, muon_mirror_cpu, RZ_CUDA_OP(muon_mirror_cuda));
}

void muon_row_moments(Stream& stream, const MuonRowMoments& a) {
    const char* op = "muon_row_moments";
    check_sizes(op, {{"rows", a.rows, 0}, {"cols", a.cols, 1}});
    require(a.beta2 >= 0 && a.beta2 < 1, "%s: beta2 %g; it must be in [0, 1) (0.95 is usual)", op, double(a.beta2));
    check_wide(op, "x", a.dtype);
    if (a.rows == 0) return;
    check_pointers(op, {{"v", a.v},
                        {"factor", a.factor},
                        {"before", a.before},
                        {"after", a.after},
                        {"x", a.x, size_of(a.dtype)},
                        {"grad_scale", a.grad_scale}});
    stream.run(a, muon_row_moments_cpu, RZ_CUDA_OP(muon_row_moments_cuda));
}

void muon_scale_rows(Stream& stream, const MuonScaleRows& a) {
    const char* op = "muon_scale_rows";
    check_sizes(op, {{"rows", a.rows, 0}, {"cols", a.cols, 1}});
    check_wide(op, "x", a.dtype);
    if (a.rows == 0) return;
    check_pointers(op, {{"x", a.x, size_of(a.dtype)}, {"factor", a.factor}, {"before", a.before}, {"after", a.after}});
    stream.run(a, muon_scale_rows_cpu, RZ_CUDA_OP(muon_scale_rows_cuda));
}

// The sums before and after, the factors, and two norms, each beside the scale of a clip that nobody asks for.
int64_t muon_rows_bytes(int64_t rows) { return checked_mul(rows, 20, "NorMuon") + 16; }

void muon_rows(Stream& stream, const MuonRows& a) {
    check_pointer("muon_rows", "work", a.work, 64);
    double *before = static_cast<double*>(a.work), *after = before + a.rows;
    float *norms = reinterpret_cast<float*>(after + a.rows), *factor = norms + 4;
    muon_row_moments(stream, {.v = a.v,
                              .factor = factor,
                              .before = before,
                              .after = after,
                              .x = a.x,
                              .grad_scale = a.grad_scale,
                              .rows = a.rows,
                              .cols = a.cols,
                              .beta2 = a.beta2,
                              .dtype = a.dtype});
    for (const int i : {0, 1})
        clip_scale(stream, {.norm = norms + 2 * i,
                            .scale = norms + 2 * i + 1,
                            .partial = i == 0 ? before : after,
                            .count = a.rows,
                            .average = 1,
                            .max_norm = 0});
    muon_scale_rows(stream, {.x = a.x,
                             .factor = factor,
                             .before = norms,
                             .after = norms + 2,
                             .rows = a.rows,
                             .cols = a.cols,
                             .dtype = a.dtype});
}

void muon_step(Stream& stream, const MuonStep& a) {
    const char* op = "muon_step";
    check_sizes(op, {{"n", a.n, 0}, {"first", a.first, 0}, {"step (1 is the first)", a.step, 1}});
    check_wide(op, "x", a.x_dtype);
    if (a.n == 0) return;
    check_pointers(op, {{"param", a.param, size_of(a.param_dtype)},
                        {"master", a.master, size_of(a.master_dtype)},
                        {"x", a.x, size_of(a.x_dtype)},
                        {"grad_scale", a.grad_scale}});
    require(a.master_dtype == DType::f32 || (a.master_dtype == DType::bf16 && a.param == a.master),
            "%s: %s masters beside %s parameters; a master is fp32, or the bf16 parameter itself", op,
            name_of(a.master_dtype), name_of(a.param_dtype));
    require(a.param != a.master || a.param_dtype == a.master_dtype,
            "%s: param is the master itself, but one is %s and the other %s", op, name_of(a.param_dtype),
            name_of(a.master_dtype));
    stream.run(a, muon_step_cpu, RZ_CUDA_OP(muon_step_cuda));
}

}  // namespace rz
#endif
