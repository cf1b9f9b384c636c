// Every op's backward pass against central differences of its formula in double (test/kernels/double_ops.h), at ragged
// shapes, in every instruction set of this CPU. Inputs are rounded first, so both sides start from the same numbers.
// Tolerances count roundings: of the fp32 arithmetic (2^-24 each, times the terms of a sum) and of the stored result.

#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/qk_norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

class Gradients : public testing::TestWithParam<SimdLevel> {
    AtSimdLevel level_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Simd, Gradients, testing::ValuesIn(simd_levels()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// |error| <= roundings * 2^-24 * scale + one rounding of the result to dtype (and of what was there before, for +=)
std::function<double(size_t)> tolerance(double roundings, double scale, DType stored, const Doubles& result) {
    return [=](size_t i) { return roundings * 0x1p-24 * scale + rounding_at(stored, result[i]); };
}

void rmsnorm_case(int64_t N, int64_t C, DType dtype, DType grad_dtype, bool with_residual) {
    SCOPED_TRACE(format("N=%ld C=%ld %s, dw %s", long(N), long(C), name_of(dtype), name_of(grad_dtype)));
    const double eps = 1e-5;
    const Tensor x = random_tensor(N * C, dtype, 1, 2), w = random_tensor(C, dtype, 2),
                 dy = random_tensor(N * C, dtype, 3);
    const Tensor dresidual = random_tensor(N * C, dtype, 4), dw_before = random_tensor(C, grad_dtype, 5);
    const Tensor y(N * C, dtype), rstd(N, DType::f32), dx(N * C, dtype), dw(dw_before.values(), grad_dtype);
    const Tensor scratch(rmsnorm_backward_scratch(C), DType::f32);
    rmsnorm_forward_cpu({.y = y.data(),
                         .rstd = rstd.as<float>(),
                         .x = x.data(),
                         .w = w.data(),
                         .N = N,
                         .C = C,
                         .eps = float(eps),
                         .dtype = dtype});
    rmsnorm_backward_cpu({.dx = dx.data(),
                          .dw = dw.data(),
                          .dy = dy.data(),
                          .x = x.data(),
                          .w = w.data(),
                          .rstd = rstd.as<float>(),
                          .dresidual = with_residual ? dresidual.data() : nullptr,
                          .scratch = scratch.as<float>(),
                          .N = N,
                          .C = C,
                          .dtype = dtype,
                          .grad_dtype = grad_dtype});

    const Doubles xs = x.values(), ws = w.values(), dys = dy.values(), dxs = dx.values();
    const Doubles want_y = rmsnorm(xs, ws, double(float(eps)));
    // A row's mean of squares has C + 2 roundings, half of which reach rstd; then two products.
    expect_close("y", y.values(), want_y, [&](size_t i) {
        return (double(C) / 2 + 4) * 0x1p-24 * std::abs(want_y[i]) + rounding_at(dtype, want_y[i]);
    });
    double term = 0;  // the largest of the terms that dx adds up
    const double rstd_max = largest(rstd.values());
    for (double v : dys) term = std::max(term, std::abs(v));
    term *= largest(ws) * rstd_max * (1 + largest(xs) * rstd_max);
    expect_gradient(
        "dx", dxs, xs,
        [&](const Doubles& at) {
            return dot(rmsnorm(at, ws, eps), dys) + (with_residual ? dot(at, dresidual.values()) : 0);
        },
        tolerance(double(C) + 8, term + (with_residual ? 5 : 0), dtype, dxs));
    const double dw_scale = largest(dys) * largest(xs) * rstd_max * double(N) + 5;
    expect_gradient(
        "dw", dw.values(), ws,
        [&](const Doubles& at) { return dot(rmsnorm(xs, at, eps), dys) + dot(at, dw_before.values()); },
        tolerance(double(N) + 8, dw_scale, grad_dtype, dw.values()));
}

TEST_P(Gradients, RmsnormsAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (bool residual : {false, true}) {
            rmsnorm_case(1, 1, dtype, dtype, residual);
            rmsnorm_case(1, 80, dtype, DType::f32, residual);
            rmsnorm_case(7, 37, dtype, dtype, residual);
            rmsnorm_case(300, 65, dtype, DType::f32, residual);
        }
}

// With a residual the forward pass stores the rounded sum and normalises that.
TEST_P(Gradients, RmsnormsWithResidualAreCentralDifferences) {
    for (DType dtype : kTypes) {
        const int64_t N = 5, C = 67;
        const Tensor x = random_tensor(N * C, dtype, 1), residual = random_tensor(N * C, dtype, 2);
        const Tensor w = random_tensor(C, dtype, 3), y(N * C, dtype), rstd(N, DType::f32), sum(N * C, dtype);
        rmsnorm_forward_cpu({.y = y.data(),
                             .rstd = rstd.as<float>(),
                             .sum = sum.data(),
                             .x = x.data(),
                             .residual = residual.data(),
                             .w = w.data(),
                             .N = N,
                             .C = C,
                             .eps = 1e-5f,
                             .dtype = dtype});
        const Doubles xs = x.values(), rs = residual.values();
        Doubles exact(xs.size());
        for (size_t i = 0; i < xs.size(); ++i) exact[i] = xs[i] + rs[i];
        EXPECT_EQ(sum.bits(),
                  Tensor(exact, dtype).bits());  // one rounding (fp32: float addition rounds as double to float)
        const Doubles want = rmsnorm(sum.values(), w.values(), double(1e-5f));
        expect_close("y", y.values(), want, [&](size_t i) {
            return (double(C) / 2 + 4) * 0x1p-24 * std::abs(want[i]) + rounding_at(dtype, want[i]);
        });
    }
}

TEST_P(Gradients, SwiglusAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (auto [N, F] : {std::pair<int64_t, int64_t>{1, 1}, {3, 33}, {29, 344}}) {
            SCOPED_TRACE(format("N=%ld F=%ld %s", long(N), long(F), name_of(dtype)));
            const Tensor gate_up = random_tensor(N * 2 * F, dtype, 1, 3), dh = random_tensor(N * F, dtype, 2);
            const Tensor h(N * F, dtype), again(N * F, dtype), dgate_up(N * 2 * F, dtype);
            swiglu_forward_cpu({.h = h.data(), .gate_up = gate_up.data(), .N = N, .F = F, .dtype = dtype});
            swiglu_backward_cpu({.dgate_up = dgate_up.data(),
                                 .dh = dh.data(),
                                 .gate_up = gate_up.data(),
                                 .h = again.data(),
                                 .N = N,
                                 .F = F,
                                 .dtype = dtype});
            EXPECT_EQ(h.bits(), again.bits());
            const Doubles x = gate_up.values(), d = dgate_up.values(), want = swiglu(x, F);
            // exp errs by 4 units, then five operations; the sigmoid's derivative adds terms of at most 1 + |g|.
            expect_close("h", h.values(), want,
                         [&](size_t i) { return 10 * 0x1p-24 * std::abs(want[i]) + rounding_at(dtype, want[i]); });
            const double scale = largest(dh.values()) * largest(x) * 2;
            expect_gradient(
                "dgate_up", d, x, [&](const Doubles& at) { return dot(swiglu(at, F), dh.values()); },
                tolerance(16, scale, dtype, d));
        }
}

TEST_P(Gradients, SwigluSaturatesWithoutNaN) {
    const Doubles gates = {-1000, -100, -88, -30, 0, 30, 88, 100, 1000};
    Doubles gate_up = gates;
    gate_up.resize(2 * gates.size(), 2.0);
    const Tensor x(gate_up, DType::f32), h(int64_t(gates.size()), DType::f32);
    swiglu_forward_cpu({.h = h.data(), .gate_up = x.data(), .N = 1, .F = int64_t(gates.size()), .dtype = DType::f32});
    const Doubles want = swiglu(gate_up, int64_t(gates.size()));
    expect_close("h", h.values(), want,
                 [&](size_t i) { return 1e-6 * std::abs(want[i]) + 1e-35; });  // exp stops at e^88.3
}

TEST_P(Gradients, BiasesAreSumsOverRows) {
    for (DType dtype : kTypes)
        for (const auto& [N, C] : {std::pair<int64_t, int64_t>{1, 1}, {7, 37}, {150, 24}}) {
            SCOPED_TRACE(format("N=%ld C=%ld %s", long(N), long(C), name_of(dtype)));
            const Tensor x = random_tensor(N * C, dtype, 1), bias = random_tensor(C, dtype, 2),
                         dy = random_tensor(N * C, dtype, 3), before = random_tensor(C, DType::f32, 4);
            const Tensor y(x.values(), dtype), dbias(before.values(), DType::f32),
                scratch(bias_backward_scratch(C), DType::f32);
            add_bias_cpu({.x = y.data(), .bias = bias.data(), .N = N, .C = C, .dtype = dtype});
            bias_backward_cpu({.dbias = dbias.data(),
                               .dy = dy.data(),
                               .scratch = scratch.as<float>(),
                               .N = N,
                               .C = C,
                               .dtype = dtype,
                               .grad_dtype = DType::f32});
            Doubles want = x.values(), sums = before.values();
            const Doubles b = bias.values(), g = dy.values();
            for (size_t i = 0; i < want.size(); ++i) want[i] += b[i % size_t(C)], sums[i % size_t(C)] += g[i];
            expect_close("y", y.values(), want, tolerance(1, 10, dtype, want));
            expect_close("dbias", dbias.values(), sums,
                         tolerance(double(N) + 1, largest(g) * double(N) + 5, DType::f32, sums));
        }
}

// RMSNorm of each head, or of all of q's together and of all of k's, and RoPE, in double
struct NormsOfHeads {
    int64_t D;
    bool rotates, together;
    int64_t T = 2, N = 2 * T, heads = 3, kv_heads = 2, all = (heads + kv_heads) * D, stride = all + 2;
    double eps = 1e-5;
    std::vector<float> cosine = std::vector<float>(size_t(20 * D)), sine = cosine;  // of 40 positions; the first is 5

    int64_t gains() const { return together ? heads + kv_heads : 2; }
    // The heads that head h is normalised with: the first, and how many
    std::pair<int64_t, int64_t> with(int64_t h) const {
        if (!together) return {h, 1};
        return h < heads ? std::pair(int64_t(0), heads) : std::pair(heads, kv_heads);
    }
    Doubles forward(const Doubles& x, const Doubles& ws) const {
        Doubles y = x;
        for (int64_t n = 0; n < N; ++n)
            for (int64_t h = 0; h < heads + kv_heads; ++h) {
                const auto [first, count] = with(h);
                const auto row = x.begin() + long(n * stride + first * D);
                const auto gain = ws.begin() + long((together ? first : h < heads ? 0 : 1) * D);
                const Doubles normed = rmsnorm({row, row + count * D}, {gain, gain + count * D}, double(float(eps)));
                const size_t at = size_t(n * stride + h * D);
                const double* z = normed.data() + (h - first) * D;
                for (size_t j = 0, half = size_t(D / 2); j < half; ++j) {
                    const size_t angle = size_t(5 + n % T) * half + j;
                    const double c = rotates ? double(cosine[angle]) : 1, s = rotates ? double(sine[angle]) : 0;
                    y[at + j] = z[j] * c - z[half + j] * s;
                    y[at + half + j] = z[half + j] * c + z[j] * s;
                }
            }
        return y;
    }
    double largest_rstd(const Doubles& x) const {
        double largest = 0;
        for (int64_t n = 0; n < N; ++n)
            for (int64_t h = 0; h < heads + kv_heads; ++h) {
                const auto [first, count] = with(h);
                double squares = 0;
                for (int64_t j = first * D; j < (first + count) * D; ++j)
                    squares += std::pow(x[size_t(n * stride + j)], 2);
                largest = std::max(largest, 1 / std::sqrt(squares / double(count * D) + eps));
            }
        return largest;
    }
};

TEST_P(Gradients, NormsOfHeadsAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (int64_t D : {2, 6, 64, 80})
            for (const auto& [rotates, together] : {std::pair(true, false), {false, false}, {true, true}}) {
                SCOPED_TRACE(format("D=%ld %s, %s%s", long(D), name_of(dtype), rotates ? "rotated" : "not rotated",
                                    together ? ", all heads together" : ""));
                NormsOfHeads o{.D = D, .rotates = rotates, .together = together};
                rope_tables(o.cosine.data(), o.sine.data(), 40, D, 10000, {});
                const Tensor w = random_tensor(o.gains() * D, dtype, 2);
                const Tensor before = random_tensor(o.N * o.stride, dtype, 1, 2);
                const Tensor y(before.values(), dtype), kept(o.N * o.all, dtype), squares(2 * o.N, DType::f32),
                    dots(2 * o.N, DType::f32);
                QkNorm norm{.N = o.N,
                            .T = o.T,
                            .heads = o.heads,
                            .kv_heads = o.kv_heads,
                            .D = D,
                            .row_stride = o.stride,
                            .wq = w.data(),
                            .wk = static_cast<const char*>(static_cast<const void*>(w.data())) +
                                  (together ? o.heads : 1) * D * size_of(dtype),
                            .cos_table = rotates ? o.cosine.data() : nullptr,
                            .sin_table = rotates ? o.sine.data() : nullptr,
                            .first_position = 5,
                            .eps = float(o.eps),
                            .dtype = dtype};
                if (together) {
                    qk_sums_cpu({.sums = squares.as<float>(), .x = y.data(), .norm = norm});
                    norm.squares = squares.as<float>();
                }
                qk_norm_forward_cpu({.x = y.data(), .kept = kept.data(), .norm = norm});
                const Doubles xs = before.values(), ws = w.values(), want = o.forward(xs, ws);
                const double terms = double(o.with(0).second * D), rows = double(o.N * o.heads);
                expect_close("y", y.values(), want, tolerance(terms / 2 + 8, 2 * largest(want), dtype, want));

                const Tensor dy = random_tensor(o.N * o.stride, dtype, 3), dx(dy.values(), dtype),
                             dw_before = random_tensor(o.gains() * D, DType::f32, 4),
                             dw(dw_before.values(), DType::f32),
                             scratch(qk_norm_backward_scratch(D, o.gains()), DType::f32);
                if (together) qk_sums_cpu({.sums = dots.as<float>(), .x = kept.data(), .dy = dx.data(), .norm = norm});
                qk_norm_backward_cpu({.dx = dx.data(),
                                      .kept = kept.data(),
                                      .dw = dw.data(),
                                      .scratch = scratch.as<float>(),
                                      .grad_dtype = DType::f32,
                                      .norm = norm,
                                      .dots = together ? dots.as<float>() : nullptr});
                const double rstd = o.largest_rstd(xs), most = largest(dy.values());
                expect_gradient(
                    "dx", dx.values(), xs, [&](const Doubles& at) { return dot(o.forward(at, ws), dy.values()); },
                    tolerance(terms + 12, 2 * most * largest(ws) * rstd * (1 + largest(xs) * rstd), dtype,
                              dx.values()));
                expect_gradient(
                    "dw", dw.values(), ws,
                    [&](const Doubles& at) {
                        return dot(o.forward(xs, at), dy.values()) + dot(at, dw_before.values());
                    },
                    tolerance(rows + 12, 2 * most * largest(xs) * rstd * rows + 5, DType::f32, dw.values()));
            }
}

TEST_P(Gradients, RopesAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (int64_t D : {2, 6, 64, 80}) {
            SCOPED_TRACE(format("D=%ld %s", long(D), name_of(dtype)));
            const int64_t T = 7, N = 2 * T, heads = 3, stride = 4 * D + 2, positions = 40;
            std::vector<float> cosine(size_t(positions * D / 2)), sine(cosine.size());
            rope_tables(cosine.data(), sine.data(), positions, D, 10000, {});
            const Doubles before = Tensor(random_doubles(N * stride, 1), dtype).values();
            const auto rotate = [&](const Doubles& at) {
                Doubles y = at;
                for (int64_t n = 0; n < N; ++n)
                    for (int64_t h = 0; h < heads; ++h)
                        for (int64_t j = 0; j < D / 2; ++j) {
                            const size_t i = size_t(n * stride + h * D + j), k = i + size_t(D / 2);
                            const size_t angle = size_t((5 + n % T) * (D / 2) + j);
                            y[i] = at[i] * double(cosine[angle]) - at[k] * double(sine[angle]);
                            y[k] = at[k] * double(cosine[angle]) + at[i] * double(sine[angle]);
                        }
                return y;
            };
            Rope a{.x = nullptr,
                   .cos_table = cosine.data(),
                   .sin_table = sine.data(),
                   .N = N,
                   .T = T,
                   .first_position = 5,
                   .heads = heads,
                   .D = D,
                   .row_stride = stride,
                   .dtype = dtype};
            const Tensor y(before, dtype);
            a.x = y.data();
            rope_cpu(a);
            const Doubles want = rotate(before);
            const auto bound = [&](const Doubles& result) { return tolerance(3, 2 * largest(before), dtype, result); };
            expect_close("y", y.values(), want, bound(want));
            // The backward pass is the same op with `inverse`, on the gradient.
            const Tensor dy = random_tensor(N * stride, dtype, 2);
            const Tensor dx(dy.values(), dtype);
            a.x = dx.data();
            a.inverse = true;
            rope_cpu(a);
            expect_gradient(
                "dx", dx.values(), before, [&](const Doubles& at) { return dot(rotate(at), dy.values()); },
                bound(dx.values()));
        }
}

TEST_P(Gradients, CrossEntropysAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (auto [N, V] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {4, 1031}, {2, 3003}}) {
            SCOPED_TRACE(format("N=%ld V=%ld %s", long(N), long(V), name_of(dtype)));
            const Tensor logits = random_tensor(N * V, dtype, 1, 3);
            const Doubles x = logits.values();
            std::vector<int32_t> targets;
            for (int64_t n = 0; n < N; ++n) targets.push_back(n == 2 ? kIgnoreTarget : int32_t((n * 7919 + V - 1) % V));
            const Tensor loss(N, DType::f32);
            const float scale = 0.37f;
            cross_entropy_cpu({.loss = loss.as<float>(),
                               .logits = logits.data(),
                               .targets = targets.data(),
                               .N = N,
                               .V = V,
                               .grad_scale = scale,
                               .write_gradient = true,
                               .dtype = dtype});
            const Doubles want = cross_entropy(x, targets), grad = logits.values();
            // Exponentials err by 4 units each and are summed: V additions at worst; so does the logarithm's argument.
            expect_close("loss", loss.values(), want, [&](size_t) { return (double(V) + 16) * 0x1p-24 * 20; });
            if (N > 2) {
                EXPECT_EQ(loss.values()[2], 0);
                for (int64_t v = 0; v < V; ++v) ASSERT_EQ(grad[size_t(2 * V + v)], 0);
            }
            expect_gradient(
                "dlogits", grad, x,
                [&](const Doubles& at) {
                    double sum = 0;
                    for (double l : cross_entropy(at, targets)) sum += l * double(scale);
                    return sum;
                },
                [&](size_t i) {
                    return (double(V) + 16) * 0x1p-24 * std::abs(grad[i]) + 8 * 0x1p-24 + rounding_at(dtype, grad[i]);
                });
        }
}

TEST_P(Gradients, EmbeddingsAreSumsOverTheTokensRows) {
    for (DType dtype : kTypes)
        for (DType grad_dtype : {DType::f32, dtype}) {
            const int64_t N = 50, C = 261, V = 11;
            std::vector<int32_t> tokens;
            for (int64_t n = 0; n < N; ++n) tokens.push_back(int32_t(n * n % 7));  // some often, some never
            std::vector<int32_t> rows(tokens.size()), starts(tokens.size() + 1), ids(tokens.size());
            const int64_t distinct = embedding_plan(tokens.data(), N, V, rows.data(), starts.data(), ids.data());
            const Tensor dx = random_tensor(N * C, dtype, 1), before = random_tensor(V * C, grad_dtype, 2);
            const Tensor dtable(before.values(), grad_dtype);
            embedding_backward_cpu({.dtable = dtable.data(),
                                    .dx = dx.data(),
                                    .rows = rows.data(),
                                    .starts = starts.data(),
                                    .ids = ids.data(),
                                    .distinct = distinct,
                                    .N = N,
                                    .C = C,
                                    .V = V,
                                    .dtype = dtype,
                                    .grad_dtype = grad_dtype});
            const Doubles d = dx.values(), got = dtable.values();
            expect_gradient(
                "dtable", got, random_doubles(V * C, 3),
                [&](const Doubles& table) {
                    double sum = dot(table, before.values());
                    for (int64_t i = 0; i < N * C; ++i)
                        sum += table[size_t(tokens[size_t(i / C)] * C + i % C)] * d[size_t(i)];
                    return sum;
                },
                tolerance(double(N), 4 * double(N), grad_dtype, got));
        }
}

void attention_case(const PackedAttention& s, DType dtype) {
    SCOPED_TRACE(format("B=%ld T=%ld H=%ld K=%ld D=%ld %s", long(s.B), long(s.Tq), long(s.H), long(s.K), long(s.D),
                        name_of(dtype)));
    const AttentionShape shape = s.shape(dtype);
    const Tensor qkv = random_tensor(s.B * s.Tk * s.row(), dtype, 1),
                 d_o = random_tensor(s.B * s.Tq * s.H * s.D, dtype, 2);
    const Tensor o(d_o.size(), dtype), dqkv(qkv.size(), dtype), lse(s.B * s.H * s.Tq, DType::f32);
    const Tensor workspace(attention_backward_workspace(shape) / 4, DType::f32);
    const auto part = [&](const Tensor& t, int64_t heads) {
        return static_cast<void*>(t.as<char>() + heads * s.D * size_of(dtype));
    };
    attention_forward_cpu({o.data(), lse.as<float>(), part(qkv, 0), part(qkv, s.H), part(qkv, s.H + s.K), shape});
    attention_backward_cpu({part(dqkv, 0), part(dqkv, s.H), part(dqkv, s.H + s.K), d_o.data(), part(qkv, 0),
                            part(qkv, s.H), part(qkv, s.H + s.K), o.data(), lse.as<float>(), workspace.data(), shape});

    const Doubles x = qkv.values(), dos = d_o.values(), got = dqkv.values();
    Doubles want_lse;
    const Doubles want = s.forward(x, &want_lse);
    // fp32: a score sums D products, an output T terms, and the exponential errs by 4 units.
    const double fp32 = (double(s.D) + double(s.Tk) + 32) * 0x1p-24;
    // 16-bit: probabilities and dS may be rounded to dtype before their products, and so is o before delta.
    const double inner = fp32 + (dtype == DType::f32 ? 0 : 1.01 * rounding(dtype));
    const Doubles o_scale = s.forward_scale(x), d_scale = s.backward_scale(x, dos, want);
    expect_close("lse", lse.values(), want_lse, [&](size_t i) { return fp32 * (1 + std::abs(want_lse[i])); });
    expect_close("o", o.values(), want, [&](size_t i) { return inner * o_scale[i] + rounding_at(dtype, want[i]); });
    // dS is one product of p (1 inner error), dp - delta (the second), rounded again (the third).
    expect_gradient(
        "dqkv", got, x, [&](const Doubles& at) { return dot(s.forward(at), dos); },
        [&](size_t i) { return 3 * inner * d_scale[i] + rounding_at(dtype, got[i]); },
        s.B * s.Tk * s.Tk * s.H * s.D > 100000 ? 6 : 60);
}

TEST_P(Gradients, AttentionsAreCentralDifferences) {
    for (DType dtype : kTypes) {
        attention_case({1, 1, 1, 1, 1, 64}, dtype);
        attention_case({2, 7, 7, 4, 2, 6}, dtype);
        attention_case({1, 7, 7, 9, 3, 64}, dtype);
        attention_case({1, 129, 129, 3, 1, 80}, dtype);
        attention_case({1, 129, 129, 15, 5, 64}, dtype);
        attention_case({1, 9, 9, 2, 2, 256}, dtype);
        attention_case({1, 250, 250, 1, 1, 2}, dtype);
    }
}

}  // namespace
}  // namespace rz::test
