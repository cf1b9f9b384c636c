#include "kernels/gemm/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/checks.h"
#include "kernels/global_norm.h"
#include "kernels/muon.h"
#include "kernels/runtime/is_cpu.h"

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

// Four parts leave 5/8 of the work. On a GPU each should fill it: 2048 x 4096 are 256 tiles of 128 x 256.
static int64_t symmetric_rows(Device device, int64_t n) {
    return std::min(n, std::max(int64_t(is_cpu(device) ? 64 : 2048), round_up(ceil_div(n, 4), int64_t(64))));
}

double symmetric_flops(Device device, int64_t n, int64_t k) {
    const int64_t part = symmetric_rows(device, n);
    double elements = 0;
    for (int64_t r = 0; r < n; r += part) elements += double(std::min(part, n - r)) * double(n - r);
    return 2 * elements * double(k);
}

double newton_schulz_flops(Device device, int64_t rows, int64_t cols, int steps) {
    const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
    return steps * (symmetric_flops(device, m, m + n) + 2 * double(m) * double(m) * double(n));
}

void gemm_symmetric(Stream& stream, const Gemm& whole) {
    require(whole.M == whole.N && whole.dtype == whole.c_dtype, "gemm_symmetric: C is %ld x %ld, %s; op(A) is %s",
            whole.M, whole.N, name_of(whole.c_dtype), name_of(whole.dtype));
    const int64_t n = whole.M, part = symmetric_rows(stream.device(), n), e = size_of(whole.dtype);
    Gemm g = whole;
    if (g.lda == 0) g.lda = g.trans_a ? n : g.K;
    if (g.ldb == 0) g.ldb = g.trans_b ? g.K : n;
    g.ldc = n;
    for (int64_t r = 0; r < n; r += part) {
        g.M = std::min(part, n - r), g.N = n - r;
        g.a = static_cast<const char*>(whole.a) + r * (g.trans_a ? 1 : g.lda) * e;
        g.b = static_cast<const char*>(whole.b) + r * (g.trans_b ? g.ldb : 1) * e;
        g.c = static_cast<char*>(whole.c) + r * (n + 1) * e;
        if (whole.add) g.add = static_cast<const char*>(whole.add) + r * (n + 1) * e;
        gemm(stream, g);
    }
    if (part < n) muon_mirror(stream, {.s = whole.c, .n = n, .dtype = whole.dtype});
}

void newton_schulz(Stream& stream, const NewtonSchulz& a) {
    const char* op = "newton_schulz";
    check_sizes(op, {{"rows", a.rows, 1}, {"cols", a.cols, 1}});
    require(a.dtype != DType::f16, "%s: x is fp16; it may be fp32 or bf16", op);
    check_pointers(op, {{"x", a.x, 16}, {"work", a.work, 64}});
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
                                 float alpha, float beta, const void* add) {
            return Gemm{.c = c,
                        .a = left,
                        .b = right,
                        .M = M,
                        .N = N,
                        .K = K,
                        .alpha = alpha,
                        .beta = beta,
                        .dtype = a.dtype,
                        .c_dtype = a.dtype,
                        .add = add};
        };
        Gemm square = product(s, x, x, small, small, n / small, 1, 0, nullptr);
        square.trans_a = !wide, square.trans_b = wide;
        gemm_symmetric(stream, square);
        gemm_symmetric(stream, product(p, s, s, small, small, small, q.c, q.b, s));
        gemm(stream, product(next, wide ? p : x, wide ? x : p, a.rows, a.cols, small, 1, q.a, x));
        std::swap(x, next);
    }
    if (x != a.x) stream.copy(a.x, x, n * e);
}

}  // namespace rz
