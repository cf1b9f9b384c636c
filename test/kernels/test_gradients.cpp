// Every op's backward pass against central differences of its formula in double (test/kernels/double_ops.h), at ragged
// shapes, in every instruction set of this CPU. Inputs are rounded first, so both sides start from the same numbers.
// Tolerances count roundings: of the fp32 arithmetic (2^-24 each, times the terms of a sum) and of the stored result.

#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

class Gradients : public SimdTest {};
INSTANTIATE_TEST_SUITE_P(Simd, Gradients, testing::ValuesIn(simd_levels()), SimdTest::name);

// |error| <= roundings * 2^-24 * scale + one rounding of the result to dtype (and of what was there before, for +=)
std::function<double(size_t)> tolerance(double roundings, double scale, DType stored, const Doubles& result) {
    return [=](size_t i) { return roundings * 0x1p-24 * scale + rounding_at(stored, result[i]); };
}

void rmsnorm_case(int64_t N, int64_t C, DType dtype, DType grad_dtype, bool with_residual) {
    SCOPED_TRACE(format("N=%ld C=%ld %s, dw %s", N, C, name_of(dtype), name_of(grad_dtype)));
    const double eps = 1e-5;
    CpuTensors t;
    RmsnormForward f = ops::NormCase{N, C, dtype}.forward(t);
    RmsnormBackward g = ops::NormCase{N, C, dtype, grad_dtype, with_residual}.backward(t);
    f.x = g.x, f.w = g.w, g.rstd = f.rstd;
    const Doubles dw_before = values_of(g.dw, C, grad_dtype);
    rmsnorm_forward_cpu(f);
    rmsnorm_backward_cpu(g);

    const auto values = [&](const void* x) { return values_of(x, N * C, dtype); };
    const Doubles xs = values(f.x), ws = values_of(f.w, C, dtype), dys = values(g.dy), dxs = values(g.dx),
                  dws = values_of(g.dw, C, grad_dtype);
    const Doubles dresidual = with_residual ? values(g.dresidual) : Doubles{};
    const Doubles want_y = rmsnorm(xs, ws, double(float(eps)));
    // A row's mean of squares has C + 2 roundings, half of which reach rstd; then two products.
    expect_close("y", values(f.y), want_y, [&](size_t i) {
        return (double(C) / 2 + 4) * 0x1p-24 * std::abs(want_y[i]) + rounding_at(dtype, want_y[i]);
    });
    double term = 0;  // the largest of the terms that dx adds up
    const double rstd_max = largest(values_of(f.rstd, N, DType::f32));
    for (double v : dys) term = std::max(term, std::abs(v));
    term *= largest(ws) * rstd_max * (1 + largest(xs) * rstd_max);
    expect_gradient(
        "dx", dxs, xs,
        [&](const Doubles& at) { return dot(rmsnorm(at, ws, eps), dys) + (with_residual ? dot(at, dresidual) : 0); },
        tolerance(double(C) + 8, term + (with_residual ? 5 : 0), dtype, dxs));
    const double dw_scale = largest(dys) * largest(xs) * rstd_max * double(N) + 5;
    expect_gradient(
        "dw", dws, ws, [&](const Doubles& at) { return dot(rmsnorm(xs, at, eps), dys) + dot(at, dw_before); },
        tolerance(double(N) + 8, dw_scale, grad_dtype, dws));
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
        CpuTensors t;
        const RmsnormForward f = ops::NormCase{N, C, dtype, DType::f32, /*residual=*/true}.forward(t);
        rmsnorm_forward_cpu(f);
        const auto values = [&](const void* x) { return values_of(x, N * C, dtype); };
        const Doubles xs = values(f.x), rs = values(f.residual);
        Doubles exact(xs.size());
        for (size_t i = 0; i < xs.size(); ++i) exact[i] = xs[i] + rs[i];
        // One rounding (fp32: float addition rounds as double to float)
        EXPECT_EQ(bits_of(f.sum, N * C, dtype), Tensor(exact, dtype).bits());
        const Doubles want = rmsnorm(values(f.sum), values_of(f.w, C, dtype), double(1e-5f));
        expect_close("y", values(f.y), want, [&](size_t i) {
            return (double(C) / 2 + 4) * 0x1p-24 * std::abs(want[i]) + rounding_at(dtype, want[i]);
        });
    }
}

TEST_P(Gradients, SwiglusAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (auto [N, F] : {std::pair<int64_t, int64_t>{1, 1}, {3, 33}, {29, 344}}) {
            SCOPED_TRACE(format("N=%ld F=%ld %s", N, F, name_of(dtype)));
            CpuTensors t;
            const ops::SwigluCase c{N, F, dtype, 3};
            const SwigluForward f = c.forward(t);
            SwigluBackward g = c.backward(t);
            g.gate_up = f.gate_up;
            swiglu_forward_cpu(f);
            swiglu_backward_cpu(g);
            EXPECT_EQ(bits_of(f.h, N * F, dtype), bits_of(g.h, N * F, dtype));
            const Doubles x = values_of(f.gate_up, N * 2 * F, dtype), dh = values_of(g.dh, N * F, dtype),
                          d = values_of(g.dgate_up, N * 2 * F, dtype), want = swiglu(x, F);
            // exp errs by 4 units, then five operations; the sigmoid's derivative adds terms of at most 1 + |g|.
            expect_close("h", values_of(f.h, N * F, dtype), want,
                         [&](size_t i) { return 10 * 0x1p-24 * std::abs(want[i]) + rounding_at(dtype, want[i]); });
            const double scale = largest(dh) * largest(x) * 2;
            expect_gradient(
                "dgate_up", d, x, [&](const Doubles& at) { return dot(swiglu(at, F), dh); },
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
            SCOPED_TRACE(format("N=%ld C=%ld %s", N, C, name_of(dtype)));
            CpuTensors t;
            const ops::BiasCase c{N, C, dtype};
            const AddBias f = c.add(t);
            const BiasBackward g = c.backward(t);
            Doubles want = values_of(f.x, N * C, dtype), sums = values_of(g.dbias, C, DType::f32);
            const Doubles bias = values_of(f.bias, C, dtype), dy = values_of(g.dy, N * C, dtype);
            for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % size_t(C)], sums[i % size_t(C)] += dy[i];
            add_bias_cpu(f);
            bias_backward_cpu(g);
            expect_close("y", values_of(f.x, N * C, dtype), want, tolerance(1, 10, dtype, want));
            expect_close("dbias", values_of(g.dbias, C, DType::f32), sums,
                         tolerance(double(N) + 1, largest(dy) * double(N) + 5, DType::f32, sums));
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
                SCOPED_TRACE(format("D=%ld %s, %s%s", D, name_of(dtype), rotates ? "rotated" : "not rotated",
                                    together ? ", all heads together" : ""));
                NormsOfHeads o{.D = D, .rotates = rotates, .together = together};
                rope_tables(o.cosine.data(), o.sine.data(), 40, D, 10000, {});
                CpuTensors t;
                ops::QkNormCase c{o.N, o.T, o.heads, o.kv_heads, D, o.stride - o.all, dtype, DType::f32, rotates};
                c.ranks = together, c.first_position = 5;
                QkNormForward f = c.forward(t);
                QkNormBackward g = c.backward(t);
                const int64_t all = o.N * o.stride, gains = o.gains() * D;
                // Both norms' gains, one after the other
                const Tensor w = random_tensor(gains, dtype, 2), squares(2 * o.N, DType::f32),
                             dots(2 * o.N, DType::f32);
                f.norm.wq = w.data(), f.norm.wk = w.as<char>() + (together ? o.heads : 1) * D * size_of(dtype);
                const Doubles xs = values_of(f.x, all, dtype), ws = w.values(), dys = values_of(g.dx, all, dtype),
                              dw_before = values_of(g.dw, gains, DType::f32);
                if (together) {
                    QkNorm unknown = f.norm;
                    unknown.squares = nullptr;
                    qk_sums_cpu({.sums = squares.as<float>(), .x = f.x, .norm = unknown});
                    f.norm.squares = squares.as<float>();
                }
                qk_norm_forward_cpu(f);
                g.norm = f.norm, g.kept = f.kept, g.dots = together ? dots.as<float>() : nullptr;
                if (together) qk_sums_cpu({.sums = dots.as<float>(), .x = f.kept, .dy = g.dx, .norm = f.norm});
                qk_norm_backward_cpu(g);

                const Doubles want = o.forward(xs, ws), dxs = values_of(g.dx, all, dtype),
                              dws = values_of(g.dw, gains, DType::f32);
                const double terms = double(o.with(0).second * D), rows = double(o.N * o.heads);
                expect_close("y", values_of(f.x, all, dtype), want,
                             tolerance(terms / 2 + 8, 2 * largest(want), dtype, want));
                const double rstd = o.largest_rstd(xs), most = largest(dys);
                expect_gradient(
                    "dx", dxs, xs, [&](const Doubles& at) { return dot(o.forward(at, ws), dys); },
                    tolerance(terms + 12, 2 * most * largest(ws) * rstd * (1 + largest(xs) * rstd), dtype, dxs));
                expect_gradient(
                    "dw", dws, ws, [&](const Doubles& at) { return dot(o.forward(xs, at), dys) + dot(at, dw_before); },
                    tolerance(rows + 12, 2 * most * largest(xs) * rstd * rows + 5, DType::f32, dws));
            }
}

TEST_P(Gradients, RopesAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (int64_t D : {2, 6, 64, 80}) {
            SCOPED_TRACE(format("D=%ld %s", D, name_of(dtype)));
            const int64_t T = 7, N = 2 * T, heads = 3, stride = 4 * D + 2, positions = 40;
            std::vector<float> cosine(size_t(positions * D / 2)), sine(cosine.size());
            rope_tables(cosine.data(), sine.data(), positions, D, 10000, {});
            CpuTensors t;
            const ops::RopeCase c{N, T, heads, D, stride - heads * D, dtype, /*first_position=*/5};
            const Rope a = c.args(t);
            const Doubles before = values_of(a.x, N * stride, dtype);
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
            rope_cpu(a);
            const Doubles want = rotate(before);
            const auto bound = [&](const Doubles& result) { return tolerance(3, 2 * largest(before), dtype, result); };
            expect_close("y", values_of(a.x, N * stride, dtype), want, bound(want));
            // The backward pass is the same op with `inverse`, on the gradient.
            const Tensor dy = random_tensor(N * stride, dtype, 2);
            const Tensor dx(dy.values(), dtype);
            Rope back = c.args(t, /*inverse=*/true);
            back.x = dx.data();
            rope_cpu(back);
            expect_gradient(
                "dx", dx.values(), before, [&](const Doubles& at) { return dot(rotate(at), dy.values()); },
                bound(dx.values()));
        }
}

TEST_P(Gradients, CrossEntropysAreCentralDifferences) {
    for (DType dtype : kTypes)
        for (auto [N, V] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {4, 1031}, {2, 3003}}) {
            SCOPED_TRACE(format("N=%ld V=%ld %s", N, V, name_of(dtype)));
            const float scale = 0.37f;
            ops::LogitsCase c{N, V, {}, dtype, scale};
            for (int64_t n = 0; n < N; ++n)
                c.targets.push_back(n == 2 ? kIgnoreTarget : int32_t((n * 7919 + V - 1) % V));
            CpuTensors t;
            const CrossEntropy a = c.loss(t, /*gradient=*/true);
            const Doubles x = values_of(a.logits, N * V, dtype), want = cross_entropy(x, c.targets);
            cross_entropy_cpu(a);
            const Doubles grad = values_of(a.logits, N * V, dtype), loss = values_of(a.loss, N, DType::f32);
            // Exponentials err by 4 units each and are summed: V additions at worst; so does the logarithm's argument.
            expect_close("loss", loss, want, [&](size_t) { return (double(V) + 16) * 0x1p-24 * 20; });
            if (N > 2) {
                EXPECT_EQ(loss[2], 0);
                for (int64_t v = 0; v < V; ++v) ASSERT_EQ(grad[size_t(2 * V + v)], 0);
            }
            expect_gradient(
                "dlogits", grad, x,
                [&](const Doubles& at) {
                    double sum = 0;
                    for (double l : cross_entropy(at, c.targets)) sum += l * double(scale);
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
            CpuTensors t;
            const EmbeddingBackward a = ops::EmbeddingCase{N, C, V, tokens, dtype, grad_dtype}.backward(t);
            const Doubles d = values_of(a.dx, N * C, dtype), before = values_of(a.dtable, V * C, grad_dtype);
            embedding_backward_cpu(a);
            const Doubles got = values_of(a.dtable, V * C, grad_dtype);
            expect_gradient(
                "dtable", got, random_doubles(V * C, 3),
                [&](const Doubles& table) {
                    double sum = dot(table, before);
                    for (int64_t i = 0; i < N * C; ++i)
                        sum += table[size_t(tokens[size_t(i / C)] * C + i % C)] * d[size_t(i)];
                    return sum;
                },
                tolerance(double(N), 4 * double(N), grad_dtype, got));
        }
}

void attention_case(const PackedAttention& s, DType dtype) {
    SCOPED_TRACE(format("B=%ld T=%ld H=%ld K=%ld D=%ld %s", s.B, s.Tq, s.H, s.K, s.D, name_of(dtype)));
    CpuTensors t;
    const ops::AttentionCase c{s.B, s.Tq, s.Tk, s.H, s.K, s.D, dtype, /*packed=*/true};
    const AttentionForward f = c.forward(t);
    const AttentionBackward g = c.backward(t, f);
    attention_forward_cpu(f);
    attention_backward_cpu(g);

    const int64_t all = s.B * s.Tk * s.row(), dense = s.B * s.Tq * s.H * s.D;
    const Doubles x = values_of(f.q, all, dtype), dos = values_of(g.d_o, dense, dtype),
                  got = values_of(g.dq, all, dtype);
    const attention_double::Result exact = s.exact(x, dos);
    const Doubles &want = exact.o.value, &want_lse = exact.lse;
    // fp32: a score sums D products, an output T terms, and the exponential errs by 4 units.
    const double fp32 = (double(s.D) + double(s.Tk) + 32) * 0x1p-24;
    // 16-bit: probabilities and dS may be rounded to dtype before their products, and so is o before delta.
    const double inner = fp32 + (dtype == DType::f32 ? 0 : 1.01 * rounding(dtype));
    const Doubles &o_scale = exact.o.bound, d_scale = s.backward_scale(exact);
    expect_close("lse", values_of(f.lse, s.B * s.H * s.Tq, DType::f32), want_lse,
                 [&](size_t i) { return fp32 * (1 + std::abs(want_lse[i])); });
    expect_close("o", values_of(f.o, dense, dtype), want,
                 [&](size_t i) { return inner * o_scale[i] + rounding_at(dtype, want[i]); });
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
