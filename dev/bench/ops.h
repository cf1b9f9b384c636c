#pragma once
// Each op once: from its sizes and types, the arguments of a call, with their tensors made in some memory, and how far
// two devices' outputs may be apart. The tests of the kernels (test/kernels/kernel_*.cpp: against the CPU op, twice, in
// place, at the widths of the presets) and the microbenchmarks (bench_*.cpp) all call an op through the cases here:
//
//   const ops::NormCase c{.N = 7, .C = 576, .dtype = DType::bf16};
//   rmsnorm_forward(t.stream(), c.forward(t));
//
// An argument that an op can do without is a field of its case, or is set by whoever calls. A tolerance counts
// roundings, for numbers as the case makes them: normal, of which none in millions is beyond 6.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/fp8/quantise.h"
#include "kernels/fp8/quantise_blocks.h"
#include "kernels/fp8/quantise_mx.h"
#include "kernels/gemm/gemm.h"
#include "kernels/qk_norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "kernels/vocab_cross_entropy.h"

namespace rz::ops {

// Memory that was handed out: whichever pointer an argument is
struct Placed {
    void* data;
    template <class T>
    operator T*() const {
        return static_cast<T*>(data);
    }
};

// |got - want| <= relative * |want| + absolute
struct Tolerance {
    double relative = 0, absolute = 0;
    double allowed(double want) const { return relative * std::abs(want) + absolute; }
};
constexpr Tolerance kExact;

// A distance of one unit in the last place, relative to the value
inline double ulp(DType t) { return t == DType::f32 ? 0x1p-23 : t == DType::bf16 ? 0x1p-7 : 0x1p-10; }

// Two fp32 results that differ by no more than this may fall on two sides of a rounding boundary: one unit more, which
// is 2^-24 among fp16's smallest numbers.
inline Tolerance rounded(DType t, double relative, double absolute) {
    return {ulp(t) + relative, absolute + (t == DType::f16 ? 0x1p-24 : 0)};
}

// Sums of n values of about 1 in two orders: the rounding errors of partial sums of size sqrt(n) add up like a random
// walk, to about n * 2^-24. Four times that is allowed, twice as much for products, which are larger and round too.
inline double sum_error(int64_t n) { return 4 * double(n) * 0x1p-24; }
inline double product_sum_error(int64_t n) { return 2 * sum_error(n); }

// An op's output: its name, and how close two devices must come. Ops that have no case may leave that open.
struct Output {
    const char* name;
    std::optional<Tolerance> close;
    Output(const char* name) : name(name) {}
    Output(const char* name, Tolerance close) : name(name), close(close) {}
};

// Makes tensors in the memory of one device. Two that are asked for the same tensors have the same bits in them.
class Tensors {
   public:
    virtual ~Tensors() = default;
    virtual Stream& stream() = 0;
    // Normal numbers, rounded to dtype
    virtual Placed in(int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) = 0;
    // Read and written by the op, or (`out`, NaN before) written only. Compared under its name.
    virtual Placed inout(Output x, int64_t n, DType dtype, uint64_t seed, float std = 1, float mean = 0) = 0;
    virtual Placed out(Output x, int64_t n, DType dtype) = 0;
    virtual Placed scratch(int64_t bytes) = 0;
    template <class T>
    Placed values(const std::vector<T>& host) {
        return copy_of(host.data(), int64_t(host.size() * sizeof(T)));
    }

   protected:
    virtual Placed copy_of(const void* host, int64_t bytes) = 0;
};

struct NormCase {
    int64_t N, C;
    DType dtype, grad_dtype = DType::f32;
    bool residual = false;
    bool in_place = false;  // forward: the sum is where the residual was. backward: dx is where its gradient was

    // A row sum of C fp32 terms, in another order on each side, is off by at most (log2(C) + C / threads) roundings:
    // for C up to 2^17 by less than this part of itself.
    static constexpr double kSum = 0x1p-17;

    // kSum moves rstd by half as much; then come two products. The sum is one fp32 addition and one rounding.
    RmsnormForward forward(Tensors& t) const {
        RmsnormForward a{};
        a.y = t.out({"y", rounded(dtype, kSum, 0)}, N * C, dtype);
        a.rstd = t.out({"rstd", {kSum, 0}}, N, DType::f32);
        a.x = t.in(N * C, dtype, 1);
        a.w = t.in(C, dtype, 2, 0.3f, 1);
        if (residual && in_place) a.residual = a.sum = t.inout({"sum", kExact}, N * C, dtype, 3);
        if (residual && !in_place) a.residual = t.in(N * C, dtype, 3), a.sum = t.out({"sum", kExact}, N * C, dtype);
        a.N = N, a.C = C, a.eps = 1e-5f, a.dtype = dtype;
        return a;
    }
    // dx: rstd (dy w - xhat mean) + dresidual has terms of a few units that may cancel, each off by kSum of itself.
    // `apart`: the sum of dw, left for who adds it later
    RmsnormBackward backward(Tensors& t, bool apart = false) const {
        const Output dx{"dx", rounded(dtype, 0, 8 * kSum)};
        RmsnormBackward a{};
        a.dx = residual && in_place ? t.inout(dx, N * C, dtype, 4) : t.out(dx, N * C, dtype);
        if (apart)
            a.dw_sum = t.out({"dw_sum", rounded(DType::f32, 0, product_sum_error(N))}, C, DType::f32);
        else
            a.dw = t.inout({"dw", rounded(grad_dtype, 0, product_sum_error(N))}, C, grad_dtype, 5);
        a.dy = t.in(N * C, dtype, 3);
        a.x = t.in(N * C, dtype, 1, 2);
        a.w = t.in(C, dtype, 2, 0.3f, 1);
        a.rstd = t.in(N, DType::f32, 6, 0.05f, 0.5f);
        if (residual) a.dresidual = in_place ? a.dx : static_cast<void*>(t.in(N * C, dtype, 4));
        a.scratch = t.scratch(4 * rmsnorm_backward_scratch(C));
        a.N = N, a.C = C, a.dtype = dtype, a.grad_dtype = grad_dtype;
        return a;
    }
};

struct SwigluCase {
    int64_t N, F;
    DType dtype;
    float std = 1;  // of gates and ups

    // The exponential's argument is rounded (|g| < 6 std: at most 6 std * 1.44 * 2^-24 of the result), then come two
    // approximations of 2^-22 and a few products, on each side: below this part of the value.
    double error() const { return 16 * (1 + double(std)) * 0x1p-24; }
    Output h() const { return {"h", rounded(dtype, error(), 0)}; }

    SwigluForward forward(Tensors& t) const {
        SwigluForward a{};
        a.h = t.out(h(), N * F, dtype);
        a.gate_up = t.in(N * 2 * F, dtype, 1, std);
        a.N = N, a.F = F, a.dtype = dtype;
        return a;
    }
    // The derivative of silu passes through zero near -1.28, where its two terms of about 0.3 cancel; |dh * up| < 20
    // std. In place, gate and up become their gradients and dh becomes h.
    SwigluBackward backward(Tensors& t, bool writes_h = true, bool in_place = false) const {
        const Output both{"dgate_up", rounded(dtype, error(), 20 * double(std) * error())};
        SwigluBackward a{};
        a.dgate_up = in_place ? t.inout(both, N * 2 * F, dtype, 1, std) : t.out(both, N * 2 * F, dtype);
        a.gate_up = in_place ? a.dgate_up : static_cast<void*>(t.in(N * 2 * F, dtype, 1, std));
        if (writes_h) a.h = in_place ? t.inout(h(), N * F, dtype, 2) : t.out(h(), N * F, dtype);
        a.dh = in_place ? a.h : static_cast<void*>(t.in(N * F, dtype, 2));
        a.N = N, a.F = F, a.dtype = dtype;
        return a;
    }
};

// Each row's own position, instead of one after the other
inline std::vector<int32_t> scattered_positions(int64_t N, int64_t positions) {
    std::vector<int32_t> own;
    for (int64_t i = 0; i < N; ++i) own.push_back(int32_t(i * 7 % positions));
    return own;
}

struct RopeCase {
    int64_t N, T, heads, D;
    int64_t gap = 0;  // elements of a row after the heads; they must stay as they are
    DType dtype;
    int64_t first_position = 0;
    bool own = false;  // every row has a position of its own

    // Two products of values below 6 and their sum, fused or not: three roundings of at most 8
    Rope args(Tensors& t, bool inverse = false) const {
        const int64_t positions = first_position + T;
        std::vector<float> cosines(size_t(positions * D / 2)), sines(cosines.size());
        rope_tables(cosines.data(), sines.data(), positions, D, 10000, {});
        Rope a{};
        a.row_stride = heads * D + gap;
        a.x = t.inout({"x", rounded(dtype, 0, 3 * 8 * 0x1p-24)}, N * a.row_stride, dtype, 1);
        a.cos_table = t.values(cosines);
        a.sin_table = t.values(sines);
        a.N = N, a.T = T, a.first_position = first_position;
        if (own) a.positions = t.values(scattered_positions(N, positions));
        a.heads = heads, a.D = D, a.inverse = inverse, a.dtype = dtype;
        return a;
    }
};

struct BiasCase {
    int64_t N, C;
    DType dtype, grad_dtype = DType::f32;

    AddBias add(Tensors& t) const {  // one fp32 addition and one rounding
        void* const x = t.inout({"x", kExact}, N * C, dtype, 1);
        return {.x = x, .bias = t.in(C, dtype, 2), .N = N, .C = C, .dtype = dtype};
    }
    BiasBackward backward(Tensors& t) const {
        BiasBackward a{};
        a.dbias = t.inout({"dbias", rounded(grad_dtype, 0, sum_error(N))}, C, grad_dtype, 3);
        a.dy = t.in(N * C, dtype, 4);
        a.scratch = t.scratch(4 * bias_backward_scratch(C));
        a.N = N, a.C = C, a.dtype = dtype, a.grad_dtype = grad_dtype;
        return a;
    }
};

struct QkNormCase {
    int64_t N, T, heads, kv_heads, D, gap;
    DType dtype, grad_dtype = DType::f32;
    bool rotates = true, own = false;  // own: every row has a position of its own
    int64_t ranks = 0, sharers = 1;    // > 0: all heads together
    int64_t first_position = 3;

    int64_t all() const { return (heads + kv_heads) * D; }
    int64_t row() const { return all() + gap; }
    int64_t gains() const { return ranks > 0 ? heads + kv_heads : 2; }

    // Sums of the ranks over all heads: near `each` for each element
    Placed sums_of_ranks(Tensors& t, float each, uint64_t seed) const {
        std::mt19937_64 generator(seed);
        std::normal_distribution<float> draw(each, 0.2f * each);
        std::vector<float> sums(size_t(ranks * N * 2));
        for (size_t i = 0; i < sums.size(); ++i) sums[i] = draw(generator) * float((i % 2 ? kv_heads : heads) * D);
        return t.values(sums);
    }
    QkNorm norm(Tensors& t) const {
        const int64_t positions = first_position + T;
        QkNorm a{};
        a.N = N, a.T = T, a.heads = heads, a.kv_heads = kv_heads, a.D = D, a.row_stride = row();
        a.wq = t.in(D * (ranks > 0 ? heads : 1), dtype, 1, 0.3f, 1);
        a.wk = t.in(D * (ranks > 0 ? kv_heads : 1), dtype, 2, 0.3f, 1);
        if (ranks > 0) a.squares = sums_of_ranks(t, 1, 6), a.ranks = ranks, a.sharers = sharers;
        a.first_position = first_position, a.eps = 1e-5f, a.dtype = dtype;
        if (!rotates) return a;
        std::vector<float> cosines(size_t(positions * D / 2)), sines(cosines.size());
        rope_tables(cosines.data(), sines.data(), positions, D, 10000, {});
        a.cos_table = t.values(cosines);
        a.sin_table = t.values(sines);
        if (own) a.positions = t.values(scattered_positions(N, positions));
        return a;
    }
    // A mean of D squares in another order is off by less than 2^-18 of itself, so rstd by 2^-19; then come four
    // products and a sum of two of them, values below 16.
    QkNormForward forward(Tensors& t, bool keeps = true) const {
        QkNormForward a{};
        a.x = t.inout({"x", rounded(dtype, 0, 16 * 0x1p-18)}, N * row(), dtype, 3);  // what lies between the rows stays
        if (keeps) a.kept = t.out({"kept", kExact}, N * all(), dtype);
        a.norm = norm(t);
        return a;
    }
    // dx has terms of a few units that may cancel, each off by 2^-17 of itself. So are the n = N * heads products near
    // 1 whose sum dw is, together by 2^-17 sqrt(n): below 16 * 2^-17 or, where n > 256, below the sum's own error.
    QkNormBackward backward(Tensors& t, bool adds = true) const {
        const double terms = 16 * 0x1p-17, sum = product_sum_error(N * heads) + terms;
        QkNormBackward a{};
        a.dx = t.inout({"dx", rounded(dtype, 0, terms)}, N * row(), dtype, 4);
        a.kept = t.in(N * all(), dtype, 3);
        if (adds)
            a.dw = t.inout({"dw", rounded(grad_dtype, 0, sum)}, gains() * D, grad_dtype, 5);
        else
            a.dw_sum = t.out({"dw", rounded(DType::f32, 0, sum)}, gains() * D, DType::f32);
        a.scratch = t.scratch(4 * qk_norm_backward_scratch(D, gains()));
        a.grad_dtype = grad_dtype;
        a.norm = norm(t);
        if (ranks > 0) a.dots = sums_of_ranks(t, 0.5f, 7);
        return a;
    }
    // Sums of n squares, or of products with the gradient, which may cancel: each addition is off by 2^-24 of what
    // there is then.
    QkSums sums(Tensors& t, bool squares = true) const {
        const double n = double(heads * D);
        QkSums a{};
        a.sums = t.out({"sums", {0, n * (4 * std::sqrt(n) + 16) * 0x1p-24}}, 2 * N, DType::f32);
        a.x = t.in(N * (squares ? row() : all()), dtype, 3);
        if (!squares) a.dy = t.in(N * row(), dtype, 4);
        a.norm = norm(t);
        if (squares) a.norm.squares = nullptr;
        return a;
    }
};

struct EmbeddingCase {
    int64_t N, C, V;
    std::vector<int32_t> tokens;
    DType dtype, grad_dtype = DType::f32;
    int64_t first = 0, vocab = V;  // the table's rows are tokens [first, first + V)

    EmbeddingForward forward(Tensors& t) const {
        EmbeddingForward a{};
        a.x = t.out({"x", kExact}, N * C, dtype);
        a.table = t.in(V * C, dtype, 1);
        a.tokens = t.values(tokens);
        a.N = N, a.C = C, a.V = V, a.dtype = dtype, a.first = first;
        return a;
    }
    EmbeddingBackward backward(Tensors& t) const {  // all rows may be of one hot token
        std::vector<int32_t> rows(tokens.size()), starts(rows.size() + 1), ids(rows.size());
        EmbeddingBackward a{};
        a.distinct = embedding_plan(tokens.data(), N, vocab, rows.data(), starts.data(), ids.data());
        a.dtable = t.inout({"dtable", rounded(grad_dtype, 0, sum_error(N))}, V * C, grad_dtype, 3);
        a.dx = t.in(N * C, dtype, 2);
        a.rows = t.values(rows);
        a.starts = t.values(starts);
        a.ids = t.values(ids);
        a.N = N, a.C = C, a.V = V, a.dtype = dtype, a.grad_dtype = grad_dtype, a.first = first;
        return a;
    }
};

struct LogitsCase {
    int64_t N, V;
    std::vector<int32_t> targets;
    DType dtype;
    float grad_scale = 1;
    int64_t first = 0, vocab = V;  // a part of the vocabulary

    // Each exponential: argument x - max, in units of log2, rounded (|x - max| < 16: 2^-20 of the result) and
    // approximated (2^-22); the sum of V of them in another order: below 2^-17. So the log-sum-exp and each probability
    // are within 2^-16, of 1 and of themselves; a part's sum, and a probability from given sums, within 2^-17.
    static constexpr double kProbability = 0x1p-16, kOfPart = 0x1p-17;
    // A target's p - 1 cancels where p is near 1, as among few tokens, and has an absolute error then. Among more
    // tokens of such logits p is at most 1/2, and its error a part of 1 - p, too.
    Tolerance gradient_tolerance(double probability = kProbability) const {
        return rounded(dtype, probability, vocab < 256 ? double(grad_scale) * probability : 0);
    }

    CrossEntropy loss(Tensors& t, bool gradient) const {
        CrossEntropy a{};
        a.loss = t.out({"loss", {0, 2 * kProbability}}, N, DType::f32);
        a.logits = t.inout({"logits", gradient ? gradient_tolerance() : kExact}, N * V, dtype, 1, 2);
        a.targets = t.values(targets);
        a.N = N, a.V = V, a.grad_scale = grad_scale, a.write_gradient = gradient, a.dtype = dtype;
        return a;
    }
    VocabSoftmax softmax_of_part(Tensors& t) const {
        VocabSoftmax a{};
        a.stats = t.out({"stats", {kOfPart, 0}}, N * kVocabStats, DType::f32);
        a.logits = t.in(N * V, dtype, 1, 2);
        a.targets = t.values(targets);
        a.N = N, a.V = V, a.first = first, a.dtype = dtype;
        return a;
    }
    // From the stats of all parts
    VocabCrossEntropy loss_of_part(Tensors& t, bool gradient, const std::vector<float>& stats) const {
        VocabCrossEntropy a{};
        a.loss = t.out({"loss", {0, 2 * kOfPart}}, N, DType::f32);
        a.logits = t.inout({"logits", gradient ? gradient_tolerance(kOfPart) : kExact}, N * V, dtype, 1, 2);
        a.stats = t.values(stats);
        a.targets = t.values(targets);
        a.N = N, a.V = V, a.first = first, a.parts = int64_t(stats.size()) / (N * kVocabStats), a.vocab = vocab;
        a.grad_scale = grad_scale, a.write_gradient = gradient, a.dtype = dtype;
        return a;
    }
};

// q, k and v, or their gradients: three tensors, or `packed` side by side in the rows of one
struct AttentionCase {
    int64_t B, Tq, Tk, H, K, D;
    DType dtype;
    bool packed = false;

    AttentionShape shape() const {
        const int64_t row = (H + 2 * K) * D;
        AttentionShape s{};
        s.B = B, s.Tq = Tq, s.Tk = Tk, s.H = H, s.K = K, s.D = D;
        s.q_row = packed ? row : H * D, s.kv_row = packed ? row : K * D, s.o_row = H * D;
        s.q_batch = s.q_row * Tq, s.kv_batch = s.kv_row * Tk, s.o_batch = s.o_row * Tq;
        s.scale = float(1 / std::sqrt(double(D)));
        s.dtype = dtype;
        return s;
    }
    struct Qkv {
        char *q, *k, *v;
    };
    // `place` makes one tensor: of a name, a number of elements and a seed.
    template <class Place>
    Qkv qkv(Place&& place) const {
        const AttentionShape s = shape();
        if (!packed)
            return {place("q", B * s.q_batch, 1), place("k", B * s.kv_batch, 2), place("v", B * s.kv_batch, 3)};
        char* all = place("qkv", B * s.q_batch, 1);
        const int64_t width = size_of(dtype) * D;
        return {all, all + H * width, all + (H + K) * width};
    }
    Qkv inputs(Tensors& t) const {
        return qkv([&](const char*, int64_t n, uint64_t seed) -> char* { return t.in(n, dtype, seed); });
    }
    // o is an average of values below 5, weighted by p. Scores (about 1, D roundings) and exponentials are within
    // 2^-18. If p is rounded to dtype for the tensor cores, each weight moves by at most half a unit of itself and so
    // the average by at most half a unit of the average of |v|, about 1; twice that is allowed.
    static constexpr double kScores = 8 * 0x1p-18;
    AttentionForward forward(Tensors& t) const {
        const double weights = dtype == DType::f32 ? 0 : ulp(dtype);
        AttentionForward a{};
        a.shape = shape();
        a.o = t.out({"o", rounded(dtype, 0, kScores + weights)}, B * a.shape.o_batch, dtype);
        a.lse = t.out({"lse", {0, kScores}}, B * H * Tq, DType::f32);
        const Qkv in = inputs(t);
        a.q = in.q, a.k = in.k, a.v = in.v;
        return a;
    }
    // The gradient of a tensor of that name. Rounded to dtype on their way into the tensor cores: p, where dv sums
    // p * d_o, and ds = p (dp - delta), where dq and dk sum scale * ds * k and q. Over a row p sums to 1; over a column
    // to about 1 + ln(T) at most at random inputs, below 8 for T up to 1096; over a group's heads to as many times
    // that. |dp - delta| is about sqrt(D), which scale undoes. Errors of single terms have random signs, so that their
    // sum stays below half a unit times that sum of p, times a typical 3 for the largest of many. If o is the device's
    // own, it moves delta, and so dq, by less. `sum`: dk and dv are fp32 and added to.
    Tolerance gradient_tolerance(const std::string& name, bool sum = false) const {
        const double column = std::max(8.0, 1 + std::log(double(std::min(Tq, Tk)))) * double(H) / double(K);
        const double rounding = dtype == DType::f32 ? 0 : 3 * ulp(dtype) / 2;
        return rounded(sum && name[0] != 'q' ? DType::f32 : dtype, 0,
                       0x1p-17 * column + rounding * (name == "q" ? 1 : column));
    }
    // After that forward pass
    AttentionBackward backward(Tensors& t, const AttentionForward& f) const {
        const Qkv grad = qkv([&](const std::string& name, int64_t n, uint64_t) -> char* {
            return t.out({("d" + name).c_str(), gradient_tolerance(name)}, n, dtype);
        });
        AttentionBackward a{};
        a.dq = grad.q, a.dk = grad.k, a.dv = grad.v;
        a.d_o = t.in(B * f.shape.o_batch, dtype, 4);
        a.q = f.q, a.k = f.k, a.v = f.v, a.o = f.o, a.lse = f.lse, a.shape = f.shape;
        a.workspace = t.scratch(attention_backward_workspace(f.shape));
        return a;
    }
    // Differences of up to 20 round by 2^-20 before the exponential; then a few roundings of values below 6.
    static constexpr Tolerance kMerged{0, 8 * 0x1p-20}, kMergedLse{0x1p-20, 8 * 0x1p-20};
    AttentionMerge merge(Tensors& t, const void* part_o, const float* part_lse) const {
        const int64_t batch = shape().o_batch;
        AttentionMerge a{};
        a.o = t.inout({"merged", kMerged}, B * batch, DType::f32, 5);
        a.lse = t.inout({"merged_lse", kMergedLse}, B * H * Tq, DType::f32, 6);
        a.part_o = part_o, a.part_lse = part_lse;
        a.B = B, a.T = Tq, a.H = H, a.D = D, a.o_batch = a.part_batch = batch, a.first = false, a.dtype = dtype;
        return a;
    }
};

struct GemmCase {
    int64_t M, N, K;
    bool trans_a = false, trans_b = false;
    float alpha = 1, beta = 0;
    DType dtype = DType::f32, c_dtype = DType::f32;
    int64_t gap = 0;                     // of every row stride beyond dense; what lies there stays as it is
    bool biased = false, apart = false;  // what is added is not in C

    int64_t lda() const { return (trans_a ? M : K) + gap; }
    int64_t ldb() const { return (trans_b ? K : N) + gap; }
    int64_t ldc() const { return N + gap; }

    // cuBLASLt may round the product before it adds 16 bits (seen on an H200), by half a unit of it. The product is
    // below 6 |alpha| sqrt(K), and within 6 |beta| of the result.
    Tolerance tolerance() const {
        const double product = std::abs(double(alpha)) * std::sqrt(double(K)), added = std::abs(double(beta));
        const double unit = c_dtype == DType::f32 || beta == 0 ? 0 : ulp(c_dtype);
        return rounded(c_dtype, added < product ? unit / 2 : 0,
                       product_sum_error(K) + 6 * std::min(product, added) * unit / 2);
    }
    Gemm args(Tensors& t) const {
        const Output c{"c", tolerance()};
        Gemm g{};
        // With beta 0 what C held must not matter, NaN included.
        g.c = beta == 0 ? t.out(c, M * ldc(), c_dtype) : t.inout(c, M * ldc(), c_dtype, 3);
        g.a = t.in((trans_a ? K : M) * lda(), dtype, 1);
        g.b = t.in((trans_b ? N : K) * ldb(), dtype, 2);
        g.M = M, g.N = N, g.K = K, g.trans_a = trans_a, g.trans_b = trans_b;
        g.alpha = alpha, g.beta = beta, g.dtype = dtype, g.c_dtype = c_dtype;
        if (gap > 0) g.lda = lda(), g.ldb = ldb(), g.ldc = ldc();
        if (biased) g.bias = t.in(N, c_dtype, 4);
        if (apart) g.add = t.in(M * ldc(), c_dtype, 5);
        return g;
    }
};

// Codes of numbers, of their transpose, or of both; compared as words
struct QuantiseCase {
    int64_t rows, columns;
    DType dtype;
    bool plain = true, transposed = false;

    static Placed bytes(Tensors& t, const char* name, int64_t n) { return t.out({name, kExact}, n / 4, DType::f32); }
    int64_t size() const { return rows * columns; }

    Quantise whole(Tensors& t, Fp8Scale* scale, Fp8 type, const char* name = "y") const {
        Quantise a{};
        if (plain) a.y = bytes(t, name, size());
        if (transposed) a.y_t = bytes(t, "y_t", size());
        a.scale = scale, a.x = t.in(size(), dtype, 1);
        a.rows = rows, a.columns = columns, a.type = type, a.dtype = dtype;
        return a;
    }
    QuantiseBlocks blocks(Tensors& t, Fp8Tiles tiles) const {
        QuantiseBlocks a{};
        if (plain) a.y = bytes(t, "blocks", size());
        if (plain) a.scales = t.out({"scales", kExact}, fp8_scales_of(tiles, rows, columns), DType::f32);
        if (transposed) a.y_t = bytes(t, "blocks_t", size());
        if (transposed) a.scales_t = t.out({"scales_t", kExact}, fp8_scales_of(tiles, columns, rows), DType::f32);
        a.x = t.in(size(), dtype, 1);
        a.rows = rows, a.columns = columns, a.tiles = tiles, a.dtype = dtype;
        return a;
    }
    QuantiseMx mx(Tensors& t) const {
        QuantiseMx a{};
        if (plain) a.y = bytes(t, "mx", size());
        if (plain) a.scales = bytes(t, "mx_scales", mx_scales_of(rows, columns));
        if (transposed) a.y_t = bytes(t, "mx_t", size());
        if (transposed) a.scales_t = bytes(t, "mx_scales_t", mx_scales_of(columns, rows));
        a.x = t.in(size(), dtype, 1);
        a.rows = rows, a.columns = columns, a.dtype = dtype;
        return a;
    }
};

}  // namespace rz::ops
