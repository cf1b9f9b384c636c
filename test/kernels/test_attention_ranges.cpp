// Attention with key ranges on the CPU: chunks of queries, chunks of keys, documents packed into one row. Against a
// dense attention in double that writes out the T x T matrix and its mask, and against the whole call, to the bit.

#include <algorithm>

#include "kernels/attention/attention_largest.h"
#include "test/checks.h"
#include "test/kernels/attention_double.h"
#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

class AttentionRanges : public SimdTest {};
INSTANTIATE_TEST_SUITE_P(Simd, AttentionRanges, testing::ValuesIn(simd_levels()), SimdTest::name);

// Documents of these lengths, one after the other, in every batch row
std::vector<int32_t> starts(const std::vector<int64_t>& lengths, int64_t B) {
    std::vector<int32_t> row, all;
    for (const int64_t n : lengths) row.insert(row.end(), size_t(n), int32_t(row.size()));
    for (int64_t b = 0; b < B; ++b) all.insert(all.end(), row.begin(), row.end());
    return all;
}

// Dense q, k, v and d_o of whole sequences, and the results of attention over them
struct Sequences {
    int64_t B, T, H, K, D;
    std::vector<int32_t> first_key;  // (B, T), or none
    DType dtype = DType::f32;
    Tensor q{random_tensor(B * T * H * D, dtype, 1)}, k{random_tensor(B * T * K * D, dtype, 2)},
        v{random_tensor(B * T * K * D, dtype, 3)}, d_o{random_tensor(B * T * H * D, dtype, 4)};

    AttentionShape shape() const {
        AttentionShape s = ops::AttentionCase{B, T, T, H, K, D, dtype}.shape();
        if (!first_key.empty()) s.first_key = first_key.data(), s.first_key_batch = T;
        return s;
    }
    // Queries [q0, q0 + Tq) against keys [k0, k0 + Tk)
    AttentionShape part(int64_t q0, int64_t Tq, int64_t k0, int64_t Tk) const {
        AttentionShape s = shape();
        s.Tq = Tq, s.Tk = Tk, s.q_at = q0, s.k_at = k0;
        if (s.first_key) s.first_key += q0;
        return s;
    }
    char* at(const Tensor& x, int64_t t, int64_t heads) const {
        return x.as<char>() + t * heads * D * size_of(x.dtype());
    }
};

struct Outputs {
    Tensor o, lse, dq, dk, dv;
    using Fill = std::function<void(Outputs&)>;
    Outputs(const Sequences& s, DType kv, const Fill& fill = {})
        : o(s.B * s.T * s.H * s.D, s.dtype),
          lse(s.B * s.H * s.T, DType::f32),
          dq(s.B * s.T * s.H * s.D, s.dtype),
          dk(Doubles(size_t(s.B * s.T * s.K * s.D), 0), kv),
          dv(Doubles(size_t(s.B * s.T * s.K * s.D), 0), kv) {
        if (fill) fill(*this);
    }
};

void forward(const Sequences& s, const AttentionShape& part, int64_t q0, int64_t k0, Outputs& out, float* lse) {
    attention_forward_cpu({.o = s.at(out.o, q0, s.H),
                           .lse = lse,
                           .q = s.at(s.q, q0, s.H),
                           .k = s.at(s.k, k0, s.K),
                           .v = s.at(s.v, k0, s.K),
                           .shape = part});
}
void backward(const Sequences& s, const AttentionShape& part, int64_t q0, int64_t k0, Outputs& out, const float* lse,
              bool sum) {
    const Tensor workspace(attention_backward_workspace(part) / 4, DType::f32);
    attention_backward_cpu({.dq = s.at(out.dq, q0, s.H),
                            .dk = s.at(out.dk, k0, s.K),
                            .dv = s.at(out.dv, k0, s.K),
                            .d_o = s.at(s.d_o, q0, s.H),
                            .q = s.at(s.q, q0, s.H),
                            .k = s.at(s.k, k0, s.K),
                            .v = s.at(s.v, k0, s.K),
                            .o = s.at(out.o, q0, s.H),
                            .lse = lse,
                            .workspace = workspace.data(),
                            .shape = part,
                            .sum_dkv = sum});
}

Outputs whole(const Sequences& s) {
    return Outputs(s, s.dtype, [&](Outputs& out) {
        forward(s, s.shape(), 0, 0, out, out.lse.as<float>());
        backward(s, s.shape(), 0, 0, out, out.lse.as<float>(), false);
    });
}

// All chunks of queries in order, each against the keys up to its end: what the ranks of a zigzag together compute.
Outputs in_chunks(const Sequences& s, int64_t chunk) {
    return Outputs(s, DType::f32, [&](Outputs& out) {
        for (int64_t q0 = 0; q0 < s.T; q0 += chunk) {
            const int64_t n = std::min(chunk, s.T - q0);
            const AttentionShape part = s.part(q0, n, 0, q0 + n);
            const Tensor lse(s.B * s.H * n, DType::f32);
            forward(s, part, q0, 0, out, lse.as<float>());
            backward(s, part, q0, 0, out, lse.as<float>(), true);
            for (int64_t row = 0; row < s.B * s.H; ++row)
                std::copy_n(lse.as<float>() + row * n, n, out.lse.as<float>() + row * s.T + q0);
        }
    });
}

std::string bits_of(const Doubles& values, DType dtype) { return Tensor(values, dtype).bits(); }

// dk and dv of a key are one chain over the heads of its group and their queries; with one head, chunks in order make
// the same chain.
TEST_P(AttentionRanges, ChunksOfQueriesGiveTheBitsOfTheWholeCall) {
    for (DType dtype : kTypes)
        for (const int64_t chunk : {2, 38, 57, 100})
            for (const bool documents : {false, true}) {
                const auto first = documents ? starts({1, 60, 130, 37}, 1) : std::vector<int32_t>{};
                SCOPED_TRACE(format("chunks of %ld, %s", chunk, name_of(dtype)));
                const Sequences one_head{1, 228, 1, 1, 16, first, dtype}, group{1, 228, 3, 1, 16, first, dtype};
                for (const Sequences* s : {&one_head, &group}) {
                    const Outputs want = whole(*s), got = in_chunks(*s, chunk);
                    EXPECT_EQ(got.o.bits(), want.o.bits());
                    EXPECT_EQ(got.lse.bits(), want.lse.bits());
                    EXPECT_EQ(got.dq.bits(), want.dq.bits());
                    const bool pairs = dtype == DType::bf16 && chunk % 2;  // two queries to a word: 57 parts them
                    if (s == &one_head && !pairs) {
                        EXPECT_EQ(bits_of(got.dk.values(), dtype), want.dk.bits());
                        EXPECT_EQ(bits_of(got.dv.values(), dtype), want.dv.bits());
                    }
                }
            }
}

// Attention in double over whole sequences
attention_double::Result dense(const Sequences& s) {
    attention_double::Problem a{s.B, s.T, s.T, s.H, s.K, s.D, 1 / std::sqrt(double(s.D)), {}, {}, {}, {}, {}, {}};
    a.q = s.q.values(), a.k = s.k.values(), a.v = s.v.values(), a.d_o = s.d_o.values();
    a.first = [&](int64_t b, int64_t t) { return s.first_key.empty() ? 0 : s.first_key[size_t(b * s.T + t)]; };
    a.end = [](int64_t, int64_t t) { return t + 1; };
    return {a, attention_double::kMagnitudes};
}

void expect_dense(const Sequences& s, const Outputs& got, DType kv) {
    const attention_double::Result want = dense(s);
    // As test_gradients.cpp: a score sums D products, a result T terms; p, then dp - delta, then ds round to dtype.
    const double fp32 = (double(s.D) + double(s.T) + 32) * 0x1p-24;
    const double inner = fp32 + (s.dtype == DType::f32 ? 0 : 1.01 * rounding(s.dtype));
    const auto close = [&](const char* name, const Tensor& x, const attention_double::Bounded& y, double errors) {
        expect_close(name, x.values(), y.value,
                     [&](size_t i) { return errors * inner * y.bound[i] + rounding_at(x.dtype(), y.value[i]); });
    };
    expect_close("lse", got.lse.values(), want.lse, [&](size_t i) { return fp32 * (1 + std::abs(want.lse[i])); });
    close("o", got.o, want.o, 1);
    close("dq", got.dq, want.dq, 3);
    EXPECT_EQ(got.dk.dtype(), kv);
    close("dk", got.dk, want.dk, 3);
    close("dv", got.dv, want.dv, 3);
}

TEST_P(AttentionRanges, DocumentsAgreeWithDenseAttentionInDouble) {
    for (DType dtype : kTypes)
        for (const auto& lengths :
             std::vector<std::vector<int64_t>>{{1, 1, 248}, {97, 96, 57}, {112, 112, 26}, {13, 200, 1, 36}}) {
            const Sequences s{1, 250, 2, 1, 8, starts(lengths, 1), dtype};
            expect_dense(s, whole(s), dtype);
            expect_dense(s, in_chunks(s, 50), DType::f32);
        }
}

// A score is a sum of D products, rounded once more by the scale; of few queries after a cache too.
TEST_P(AttentionRanges, TheLargestLogitOfEachRowIsThatOfDenseAttention) {
    for (DType dtype : kTypes) {
        const Sequences s{2, 150, 4, 2, 16, starts({40, 70, 40}, 2), dtype}, plain{1, 80, 2, 2, 8, {}, dtype};
        for (const Sequences* one : {&s, &plain})
            for (const int64_t last : {one->T, int64_t(3)}) {
                if (last < one->T && one->B > 1) continue;
                const attention_double::Result want = dense(*one);
                const Outputs out(*one, dtype);
                const int64_t rows = one->B * one->H, q0 = one->T - last;
                const Tensor lse(rows * last, DType::f32), largest(rows * last, DType::f32);
                AttentionShape part = one->shape();
                part.Tq = last;
                attention_largest_cpu({.forward = {.o = one->at(out.o, q0, one->H),
                                                   .lse = lse.as<float>(),
                                                   .q = one->at(one->q, q0, one->H),
                                                   .k = one->k.data(),
                                                   .v = one->v.data(),
                                                   .shape = part},
                                       .largest = largest.as<float>()});
                Doubles expected;
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t t = q0; t < one->T; ++t) expected.push_back(want.largest[size_t(r * one->T + t)]);
                const double fp32 = (double(one->D) + 2) * 0x1p-24;
                expect_close("largest", largest.values(), expected,
                             [&](size_t i) { return 4 * fp32 * (1 + std::abs(expected[i])); });
            }
    }
}

TEST_P(AttentionRanges, BatchRowsHaveTheirOwnDocuments) {
    std::vector<int32_t> first = starts({70, 50}, 1);
    const std::vector<int32_t> second = starts({11, 108, 1}, 1);
    first.insert(first.end(), second.begin(), second.end());
    const Sequences s{2, 120, 2, 1, 8, first, DType::f32};
    expect_dense(s, whole(s), DType::f32);
}

TEST_P(AttentionRanges, OneDocumentGivesTheBitsOfNoMask) {
    for (DType dtype : kTypes) {
        const Sequences plain{1, 210, 4, 2, 32, {}, dtype}, one{1, 210, 4, 2, 32, starts({210}, 1), dtype};
        const Outputs want = whole(plain), got = whole(one);
        EXPECT_EQ(got.o.bits() + got.lse.bits() + got.dq.bits() + got.dk.bits() + got.dv.bits(),
                  want.o.bits() + want.lse.bits() + want.dq.bits() + want.dk.bits() + want.dv.bits());
    }
}

TEST_P(AttentionRanges, ADocumentDoesNotChangeTheBitsOfAnother) {
    for (DType dtype : kTypes) {
        const int64_t middle = 101;
        const Sequences s{1, 230, 2, 1, 16, starts({middle, 230 - middle}, 1), dtype};
        Sequences other{1, 230, 2, 1, 16, s.first_key, dtype};
        for (const Tensor* x : {&other.q, &other.k, &other.v, &other.d_o}) {
            const int64_t heads = x == &other.k || x == &other.v ? s.K : s.H;
            memset(x->data(), 0x40, size_t(middle * heads * s.D * size_of(dtype)));  // 2 or 3 everywhere
        }
        const Outputs a = whole(s), b = whole(other);
        const auto tail = [&](const Tensor& x, int64_t heads) {
            return x.bits().substr(size_t(middle * heads * s.D * size_of(dtype)));
        };
        EXPECT_NE(a.o.bits(), b.o.bits());
        EXPECT_EQ(tail(a.o, s.H), tail(b.o, s.H));
        EXPECT_EQ(tail(a.dq, s.H), tail(b.dq, s.H));
        EXPECT_EQ(tail(a.dk, s.K), tail(b.dk, s.K));
        EXPECT_EQ(tail(a.dv, s.K), tail(b.dv, s.K));
    }
}

// A ring: each chunk of queries meets one chunk of keys at a time. Outputs are merged by their log-sum-exp; gradients
// of each call come from the whole softmax, and add up. A document may begin after all of a call's keys.
TEST_P(AttentionRanges, ChunksOfKeysAddUp) {
    for (const bool documents : {false, true}) {
        const int64_t T = 120, chunk = 30;
        const Sequences s{2, T, 2, 1, 8, documents ? starts({45, 50, 25}, 2) : std::vector<int32_t>{}, DType::f32};
        const attention_double::Result want = dense(s);
        Outputs out(s, DType::f32);
        int64_t blind = 0;
        Doubles sum_dq(want.dq.value.size(), 0);
        for (int64_t q0 = 0; q0 < T; q0 += chunk) {
            Doubles o(want.o.value.size(), 0), weight(want.lse.size(), 0);
            Tensor lse(s.B * s.H * chunk, DType::f32);
            for (int64_t k0 = 0; k0 <= q0; k0 += chunk) {
                forward(s, s.part(q0, chunk, k0, chunk), q0, k0, out, lse.as<float>());
                const Doubles part = out.o.values();
                for (int64_t b = 0; b < s.B; ++b)
                    for (int64_t h = 0; h < s.H; ++h)
                        for (int64_t t = q0; t < q0 + chunk; ++t) {
                            const size_t row = size_t((b * s.H + h) * T + t),
                                         at = size_t(((b * T + t) * s.H + h) * s.D);
                            const double l = double(lse.as<float>()[(b * s.H + h) * chunk + t - q0]);
                            blind += std::isinf(l);
                            const double w = std::exp(l - want.lse[row]);
                            weight[row] += w;
                            for (size_t d = 0; d < size_t(s.D); ++d) o[at + d] += w * part[at + d];
                        }
            }
            std::vector<float> merged;  // as the backward pass reads it: (B, H, chunk)
            for (int64_t i = 0; i < s.B * s.H; ++i)
                for (int64_t t = q0; t < q0 + chunk; ++t) {
                    EXPECT_NEAR(weight[size_t(i * T + t)], 1, 1e-5);
                    merged.push_back(float(want.lse[size_t(i * T + t)]));
                }
            for (int64_t b = 0; b < s.B; ++b)
                for (int64_t t = q0; t < q0 + chunk; ++t)
                    for (int64_t i = 0; i < s.H * s.D; ++i) {
                        const size_t at = size_t((b * T + t) * s.H * s.D + i);
                        EXPECT_NEAR(o[at], want.o.value[at], 1e-5 * (want.o.bound[at] + 1));
                        out.o.as<float>()[at] = float(want.o.value[at]);
                    }
            for (int64_t k0 = 0; k0 <= q0; k0 += chunk) {
                backward(s, s.part(q0, chunk, k0, chunk), q0, k0, out, merged.data(), true);
                const Doubles dq = out.dq.values();
                for (int64_t b = 0; b < s.B; ++b)
                    for (int64_t i = q0 * s.H * s.D; i < (q0 + chunk) * s.H * s.D; ++i)
                        sum_dq[size_t(b * T * s.H * s.D + i)] += dq[size_t(b * T * s.H * s.D + i)];
            }
        }
        EXPECT_EQ(blind > 0, documents);
        const auto close = [&](const char* name, const Doubles& got, const attention_double::Bounded& x) {
            expect_close(name, got, x.value, [&](size_t i) { return 1e-5 * (x.bound[i] + 1); });
        };
        close("dq", sum_dq, want.dq);
        close("dk", out.dk.values(), want.dk);
        close("dv", out.dv.values(), want.dv);
    }
}

// Keys and values that no query of the call sees are not read, in whole blocks: they may be anything.
TEST_P(AttentionRanges, BlocksBeforeTheDocumentAreNotRead) {
    for (DType dtype : kTypes) {
        Sequences s{1, 700, 2, 1, 16, starts({500, 200}, 1), dtype};
        Outputs want = whole(s);
        memset(s.k.data(), 0xff, size_t(384 * s.K * s.D * size_of(dtype)));  // NaN
        memset(s.v.data(), 0xff, size_t(384 * s.K * s.D * size_of(dtype)));
        Outputs got(s, dtype);
        const Tensor lse(s.H * 200, DType::f32);
        forward(s, s.part(500, 200, 0, 700), 500, 0, got, lse.as<float>());
        backward(s, s.part(500, 200, 0, 700), 500, 0, got, lse.as<float>(), false);
        const size_t from = size_t(500 * s.H * s.D * size_of(dtype));
        EXPECT_EQ(got.o.bits().substr(from), want.o.bits().substr(from));
        EXPECT_EQ(got.dq.bits().substr(from), want.dq.bits().substr(from));
    }
}

TEST(AttentionRangesRefusals, QueriesBeforeTheKeys) {
    Stream stream(Device{}, "test");
    Sequences s{1, 8, 1, 1, 4, {}, DType::f32};
    Outputs out(s, DType::f32);
    AttentionForward a{.o = out.o.data(),
                       .lse = out.lse.as<float>(),
                       .q = s.q.data(),
                       .k = s.k.data(),
                       .v = s.v.data(),
                       .shape = s.part(2, 4, 3, 4)};
    EXPECT_TRUE(says(error_of([&] { attention_forward(stream, a); }), "no query may come before the keys"));
}

}  // namespace
}  // namespace rz::test
