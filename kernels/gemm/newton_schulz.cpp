#include "kernels/gemm/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/checks.h"
#include "kernels/gemm/gemm.h"
#include "kernels/global_norm.h"
#include "kernels/muon.h"

namespace rz {

std::vector<Quintic> jordan_steps(int steps) {
    return std::vector<Quintic>(size_t(steps), {3.4445f, -4.7750f, 2.0315f});
}

std::vector<Quintic> polar_express_steps(int steps) {
    constexpr double kSteps[][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                    {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                    {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                    {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                    {2.300652019954817, -1.6689039845749493, 0.4188073119525673},
                                    {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                    {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
                                    {1.875, -1.25, 0.375}};
    constexpr int kKnown = int(std::size(kSteps));
    const double margin = double(kPolarExpressMargin);
    std::vector<Quintic> out;
    for (int i = 0; i < steps; ++i) {
        const double* p = kSteps[std::min(i, kKnown - 1)];
        const double by = i < kKnown - 1 ? margin : 1;
        out.push_back({float(p[0] / by), float(p[1] / std::pow(by, 3)), float(p[2] / std::pow(by, 5))});
    }
    return out;
}

namespace {

constexpr int64_t kNormBlock = 16384;  // elements whose squares are summed together

// The second X, S, b S + c S S, the norm and its sums.
struct Work {
    int64_t x2 = 0, s, s2, norm, sums, bytes;
    Work(int64_t rows, int64_t cols, DType dtype) {
        const auto place = [](int64_t at, int64_t bytes) { return round_up(at + bytes, int64_t(256)); };
        const int64_t small = std::min(rows, cols), e = size_of(dtype);
        s = place(x2, checked_mul(checked_mul(rows, cols, "Newton-Schulz"), e, "Newton-Schulz"));
        s2 = place(s, small * small * e);
        norm = place(s2, small * small * e);
        sums = norm + 256;
        bytes = place(sums, ceil_div(rows * cols, kNormBlock) * 8);
    }
};

}  // namespace

int64_t newton_schulz_bytes(int64_t rows, int64_t cols, DType dtype) { return Work(rows, cols, dtype).bytes; }

double newton_schulz_flops(int64_t rows, int64_t cols, int steps) {
    const double m = double(std::min(rows, cols)), n = double(std::max(rows, cols));
    return steps * (4 * m * m * n + 2 * m * m * m);
}

void newton_schulz(Stream& stream, const NewtonSchulz& a) {
    const char* op = "newton_schulz";
    check_size(op, "rows", a.rows, 1);
    check_size(op, "cols", a.cols, 1);
    require(a.dtype != DType::f16, "%s: x is fp16; it may be fp32 or bf16", op);
    check_pointer(op, "x", a.x, 16);
    check_pointer(op, "work", a.work, 64);
    const int64_t n = a.rows * a.cols, e = size_of(a.dtype), small = std::min(a.rows, a.cols);
    const bool wide = a.rows <= a.cols;
    const Work at(a.rows, a.cols, a.dtype);
    char* work = static_cast<char*>(a.work);
    float* norm = reinterpret_cast<float*>(work + at.norm);
    double* sums = reinterpret_cast<double*>(work + at.sums);
    sum_squares(stream, {.partial = sums, .x = a.x, .n = n, .block = kNormBlock, .dtype = a.dtype});
    clip_scale(stream, {.norm = norm,
                        .scale = norm + 1,
                        .partial = sums,
                        .count = ceil_div(n, kNormBlock),
                        .average = 1,
                        .max_norm = 0});
    muon_normalise(stream, {.x = a.x, .norm = norm, .n = n, .margin = a.margin, .dtype = a.dtype});
    void *x = a.x, *next = work + at.x2, *s = work + at.s, *p = work + at.s2;
    for (const Quintic& q : a.steps) {
        const auto product = [&](void* c, const void* left, const void* right, int64_t M, int64_t N, int64_t K,
                                 float alpha, float beta, bool trans_a = false, bool trans_b = false) {
            gemm(stream, {.c = c,
                          .a = left,
                          .b = right,
                          .M = M,
                          .N = N,
                          .K = K,
                          .trans_a = trans_a,
                          .trans_b = trans_b,
                          .alpha = alpha,
                          .beta = beta,
                          .dtype = a.dtype,
                          .c_dtype = a.dtype});
        };
        product(s, x, x, small, small, wide ? a.cols : a.rows, 1, 0, !wide, wide);
        stream.copy(p, s, small * small * e);
        product(p, s, s, small, small, small, q.c, q.b);
        stream.copy(next, x, n * e);
        product(next, wide ? p : x, wide ? x : p, a.rows, a.cols, small, 1, q.a);
        std::swap(x, next);
    }
    if (x != a.x) stream.copy(a.x, x, n * e);
}

}  // namespace rz
