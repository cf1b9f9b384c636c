// The CPU ops that have no gradient, and what all of them promise: the same bits for any number of threads, messages
// that name the fix, and the golden values of rope scaling.

#include <omp.h>

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/global_norm.h"
#include "kernels/philox.h"
#include "test/checks.h"
#include "test/kernels/double_ops.h"

#define RZ_SIMD_WIDTH 16
#define RZ_INLINE inline __attribute__((always_inline))

namespace rz::test {
namespace {

namespace lanes {
#include "kernels/cpu/simd_vec.h"
}

class CpuOps : public SimdTest {};
INSTANTIATE_TEST_SUITE_P(Simd, CpuOps, testing::ValuesIn(simd_levels()), SimdTest::name);

// ---- the same bits for any number of threads ------------------------------------------------------------------------

// The results of `op` must not change with the number of OpenMP threads; there may be more of them than cores.
void expect_same_bits(const char* what, const std::function<void(CpuTensors&)>& op) {
    const auto bits = [&](int threads) {
        omp_set_num_threads(threads);
        CpuTensors t;
        op(t);
        return t.results();
    };
    const int before = omp_get_max_threads();
    const std::string one = bits(1);
    for (int threads : {2, 3, 7}) EXPECT_EQ(one, bits(threads)) << what << " on " << threads << " threads";
    omp_set_num_threads(before);
}

TEST_P(CpuOps, RmsnormBitsDoNotDependOnThreads) {
    const ops::NormCase c{517, 131, DType::bf16};
    expect_same_bits("rmsnorm_forward", [&](CpuTensors& t) { rmsnorm_forward_cpu(c.forward(t)); });
    expect_same_bits("rmsnorm_backward", [&](CpuTensors& t) { rmsnorm_backward_cpu(c.backward(t)); });
}

TEST_P(CpuOps, AttentionBitsDoNotDependOnThreads) {
    for (DType dtype : {DType::f32, DType::bf16}) {
        const ops::AttentionCase c{1, 260, 260, 4, 2, 32, dtype, /*packed=*/true};
        // Fewer heads than threads: both ways to share the work
        expect_same_bits("attention", [&](CpuTensors& t) {
            const AttentionForward f = c.forward(t);
            attention_forward_cpu(f);
            attention_backward_cpu(c.backward(t, f));
        });
    }
}

TEST_P(CpuOps, OtherBitsDoNotDependOnThreads) {
    ops::LogitsCase logits{67, 1003, {}, DType::bf16, 0.5f};
    for (int64_t n = 0; n < logits.N; ++n) logits.targets.push_back(int32_t(n * 31 % logits.V));
    expect_same_bits("cross_entropy", [&](CpuTensors& t) { cross_entropy_cpu(logits.loss(t, /*gradient=*/true)); });
    expect_same_bits("sum_squares", [&](CpuTensors& t) {
        const void* x = t.in(100000, DType::f32, 2);
        sum_squares_cpu(
            {.partial = t.out("partial", 2 * 49, DType::f32), .x = x, .n = 100000, .block = 2048, .dtype = DType::f32});
    });
    ops::EmbeddingCase rows{200, 300, 13, {}, DType::f32};
    for (int64_t n = 0; n < rows.N; ++n) rows.tokens.push_back(int32_t(n * n % 13));
    expect_same_bits("embedding_backward", [&](CpuTensors& t) { embedding_backward_cpu(rows.backward(t)); });
}

// ---- attention: what training and generation rely on ----------------------------------------------------------------

Tensor attend(const PackedAttention& s, const Doubles& qkv_values, DType dtype) {
    const Tensor qkv(qkv_values, dtype), o(s.B * s.Tq * s.H * s.D, dtype), lse(s.B * s.H * s.Tq, DType::f32);
    char* base = qkv.as<char>();
    attention_forward_cpu({o.data(), lse.as<float>(), base + s.query(0, 0, 0) * size_of(dtype),
                           base + s.key(0, 0, 0) * size_of(dtype), base + s.value(0, 0, 0) * size_of(dtype),
                           s.shape(dtype)});
    return Tensor(o.values(), dtype);
}

TEST_P(CpuOps, LaterTokensNeverChangeEarlierOutputs) {
    for (DType dtype : {DType::f32, DType::bf16}) {
        const PackedAttention s{1, 150, 150, 2, 1, 16};
        Doubles qkv = random_doubles(s.Tk * s.row(), 1);
        const std::string before = attend(s, qkv, dtype).bits();
        for (int64_t t = 131; t < s.Tk; ++t)
            for (int64_t i = 0; i < s.row(); ++i) qkv[size_t(t * s.row() + i)] = 1e4;
        const std::string after = attend(s, qkv, dtype).bits();
        const size_t same = size_t(s.out(0, 131, 0) * size_of(dtype));
        EXPECT_EQ(before.substr(0, same), after.substr(0, same));
        EXPECT_NE(before.substr(same), after.substr(same));
    }
}

TEST_P(CpuOps, CachedDecodingEqualsTheLastRows) {
    for (DType dtype : kTypes)
        for (int64_t Tq : {1, 3, 5, 119}) {
            const PackedAttention whole{2, 140, 140, 6, 2, 64}, tail{2, Tq, 140, 6, 2, 64};
            const Doubles qkv = Tensor(random_doubles(2 * 140 * whole.row(), 1), dtype).values();
            const auto& [want, scale] = tail.exact(qkv).o;
            const Doubles got = attend(tail, qkv, dtype).values();
            const double inner = (64 + 140 + 32) * 0x1p-24 + (dtype == DType::f32 ? 0 : 1.01 * rounding(dtype));
            expect_close("o", got, want, [&](size_t i) { return inner * scale[i] + rounding_at(dtype, want[i]); });
        }
}

// ---- rope -----------------------------------------------------------------------------------------------------------

TEST(Rope, ScaledFrequenciesAreLlamas) {
    const auto check = [](int64_t D, double factor, std::vector<std::pair<size_t, double>> golden, size_t unchanged,
                          size_t first_divided) {
        const auto plain = rope_inverse_frequencies(D, 5e5, {});
        const auto scaled = rope_inverse_frequencies(D, 5e5, {.factor = factor});
        ASSERT_EQ(scaled.size(), size_t(D / 2));
        for (auto [i, want] : golden) EXPECT_NEAR(scaled[i] / want, 1, 1e-9) << "D " << D << ", i " << i;
        for (size_t i = 0; i < scaled.size(); ++i) {
            if (i <= unchanged) {
                EXPECT_EQ(scaled[i], plain[i]);
            } else if (i >= first_divided) {
                EXPECT_NEAR(scaled[i] / (plain[i] / factor), 1, 1e-15);
            } else {
                EXPECT_LT(scaled[i], plain[i]);
                EXPECT_GT(scaled[i], plain[i] / factor);
            }
        }
    };
    check(64, 32, {{15, 1.290547928e-03}, {16, 4.295567966e-04}, {17, 9.708287803e-05}, {31, 9.418306725e-08}}, 14, 18);
    check(128, 32, {{29, 2.118406997e-03}, {30, 1.290547928e-03}, {31, 7.625412034e-04}, {63, 7.672314972e-08}}, 28,
          35);
    check(128, 8,
          {{29, 2.166570764e-03},
           {30, 1.371893568e-03},
           {31, 8.567514129e-04},
           {34, 1.785078128e-04},
           {63, 3.068925989e-07}},
          28, 35);
    EXPECT_NEAR(rope_inverse_frequencies(64, 5e5, {})[15] / 2.131119537e-03, 1, 1e-9);
}

TEST_P(CpuOps, RopeKeepsNormsAndComesBack) {
    for (DType dtype : kTypes) {
        const int64_t T = 300, D = 80, heads = 2;
        std::vector<float> cosine(size_t(T * D / 2)), sine(cosine.size());
        rope_tables(cosine.data(), sine.data(), T, D, 5e5, {.factor = 8});
        const Doubles before = Tensor(random_doubles(T * heads * D, 1), dtype).values();
        const Tensor x(before, dtype);
        Rope a{.x = x.data(),
               .cos_table = cosine.data(),
               .sin_table = sine.data(),
               .N = T,
               .T = T,
               .heads = heads,
               .D = D,
               .row_stride = heads * D,
               .dtype = dtype};
        rope_cpu(a);
        const Doubles rotated = x.values();
        a.inverse = true;
        rope_cpu(a);
        const Doubles back = x.values();
        double moved = 0;
        for (int64_t row = 0; row < T * heads; ++row)
            for (int64_t j = 0; j < D / 2; ++j) {
                const size_t i = size_t(row * D + j), k = i + size_t(D / 2);
                const double norm = std::hypot(before[i], before[k]);
                // One rotation: three roundings in fp32, tables rounded to fp32, one rounding to dtype, on both parts.
                const double tolerance = norm * (6 * 0x1p-24 + 1.5 * rounding(dtype)) + 0x1p-24;
                ASSERT_NEAR(std::hypot(rotated[i], rotated[k]), norm, tolerance);
                ASSERT_NEAR(back[i], before[i], 2 * tolerance);
                ASSERT_NEAR(back[k], before[k], 2 * tolerance);
                moved += std::abs(rotated[i] - before[i]);
            }
        EXPECT_GT(moved / double(T * heads * D / 2), 0.1);
    }
}

// ---- embedding ------------------------------------------------------------------------------------------------------

TEST(Embedding, PlanListsRowsByToken) {
    const std::vector<int32_t> tokens = {5, 2, 5, 0, 2, 5};
    std::vector<int32_t> rows(6, -1), starts(7, -1), ids(6, -1);
    ASSERT_EQ(embedding_plan(tokens.data(), 6, 6, rows.data(), starts.data(), ids.data()), 3);
    EXPECT_EQ(rows, (std::vector<int32_t>{3, 1, 4, 0, 2, 5}));
    EXPECT_EQ(starts, (std::vector<int32_t>{0, 1, 3, 6, -1, -1, -1}));
    EXPECT_EQ(ids, (std::vector<int32_t>{0, 2, 5, -1, -1, -1}));
    EXPECT_EQ(embedding_plan(tokens.data(), 0, 6, rows.data(), starts.data(), ids.data()), 0);
}

TEST(Embedding, PlanRefusesTokensOutsideTheVocabulary) {
    std::vector<int32_t> rows(2), starts(3), ids(2);
    for (int32_t bad : {6, -1}) {
        const std::vector<int32_t> tokens = {5, bad};
        EXPECT_TRUE(says(error_of([&] { embedding_plan(tokens.data(), 2, 6, rows.data(), starts.data(), ids.data()); }),
                         format("token %d at position 1", bad)));
    }
}

TEST(Embedding, ForwardCopiesRows) {
    const int64_t V = 5, C = 37;
    const std::vector<int32_t> tokens = {4, 0, 4, 2};
    for (DType dtype : kTypes) {
        const Tensor table = random_tensor(V * C, dtype, 1), x(4 * C, dtype);
        embedding_forward_cpu(
            {.x = x.data(), .table = table.data(), .tokens = tokens.data(), .N = 4, .C = C, .V = V, .dtype = dtype});
        const Doubles got = x.values(), want = table.values();
        for (int64_t i = 0; i < 4 * C; ++i) ASSERT_EQ(got[size_t(i)], want[size_t(tokens[size_t(i / C)] * C + i % C)]);
    }
}

// ---- loss, elementwise, random --------------------------------------------------------------------------------------

CrossEntropy loss_of(const Tensor& loss, const Tensor& logits, const std::vector<int32_t>& targets,
                     float grad_scale = 1, bool gradient = true) {
    return {.loss = loss.as<float>(),
            .logits = logits.data(),
            .targets = targets.data(),
            .N = loss.size(),
            .V = logits.size() / loss.size(),
            .grad_scale = grad_scale,
            .write_gradient = gradient,
            .dtype = logits.dtype()};
}

TEST_P(CpuOps, CrossEntropyWithoutGradientLeavesTheLogits) {
    const Tensor logits = random_tensor(2 * 50, DType::bf16, 1), loss(2, DType::f32);
    const std::string before = logits.bits();
    const std::vector<int32_t> targets = {3, 49};
    cross_entropy_cpu(loss_of(loss, logits, targets, 1, /*gradient=*/false));
    EXPECT_EQ(before, logits.bits());
    const Doubles want = cross_entropy(logits.values(), targets);
    expect_close("loss", loss.values(), want, [](size_t) { return 70 * 0x1p-24 * 5; });
}

TEST_P(CpuOps, CrossEntropyOfExtremeLogits) {
    Doubles x = {1e4, -1e4, 0, 0, 88, 89, 90, 3e38, -3e38, 0, 0, 0};
    const Tensor logits(x, DType::f32), loss(3, DType::f32);
    const std::vector<int32_t> targets = {0, 2, 3};
    x[7] = double(3e38f), x[8] = double(-3e38f);
    cross_entropy_cpu(loss_of(loss, logits, targets));
    const Doubles got = loss.values(), grad = logits.values();
    EXPECT_EQ(got[0], 0);
    EXPECT_GT(got[1], 1e38);
    for (double g : grad) EXPECT_TRUE(std::isfinite(g));
    EXPECT_EQ(grad[0], 0);
    EXPECT_EQ(grad[7], 1);
    EXPECT_EQ(grad[6], -1);
}

// A row's exponentials are kept for its gradient from where its maximum stands on; those of very long rows are not.
// Both give the same bits, and softmax(x) - 1 at the target.
TEST_P(CpuOps, CrossEntropyWhereverTheMaximumStands) {
    const int64_t N = 3, V = 3 * 1024 + 5, longer = (int64_t(1) << 18) + 7;
    const std::vector<int32_t> targets = {3071, 20, 1025};
    for (const DType dtype : {DType::f32, DType::bf16}) {
        Doubles x = random_tensor(N * V, dtype, 1).values();
        x[10] = x[size_t(V + 1500)] = x[size_t(2 * V + 3076)] = 9;
        const auto run = [&](int64_t columns) {
            Doubles rows(size_t(N * columns), -INFINITY);
            for (int64_t n = 0; n < N; ++n) std::copy_n(x.begin() + n * V, V, rows.begin() + n * columns);
            Tensor logits(rows, dtype), loss(N, DType::f32);
            cross_entropy_cpu(loss_of(loss, logits, targets, 0.5f));
            Doubles all = loss.values(), grad = logits.values();
            for (int64_t n = 0; n < N; ++n)
                all.insert(all.end(), grad.begin() + n * columns, grad.begin() + n * columns + V);
            return all;
        };
        const Doubles kept = run(V), again = run(longer), want = cross_entropy(x, targets);
        EXPECT_TRUE(kept == again) << name_of(dtype);
        for (int64_t i = 0; i < N * V; ++i) {
            const int64_t n = i / V, target = targets[size_t(n)];
            const double p = std::exp(x[size_t(i)] - x[size_t(n * V + target)] - want[size_t(n)]);
            const double exact = 0.5 * (p - (i % V == target ? 1 : 0)), got = kept[size_t(N + i)];
            ASSERT_NEAR(got, exact, double(V) * 0x1p-24 * p + 8 * 0x1p-24 + rounding_at(dtype, exact)) << i;
        }
    }
}

TEST(CrossEntropy, RefusesTargetsOutsideTheVocabulary) {
    const Tensor logits = random_tensor(20, DType::f32, 1), loss(2, DType::f32);
    for (int32_t bad : {10, -1}) {
        const std::vector<int32_t> targets = {0, bad};
        EXPECT_THROW(cross_entropy_cpu(loss_of(loss, logits, targets)), Error);
    }
}

TEST(SumF32, AddsToWhatIsThere) {
    const std::vector<float> x = {1e8f, 1, -1e8f, 0.5f};
    double out = 2;
    sum_f32_cpu({.out = &out, .x = x.data(), .n = 4});
    EXPECT_EQ(out, 3.5);
}

TEST_P(CpuOps, ElementwiseRoundsOnce) {
    const int64_t n = 9001;
    for (DType from : kTypes)
        for (DType to : kTypes) {
            const Tensor a = random_tensor(n, from, 1), b = random_tensor(n, to, 2),
                         rows = random_tensor(3 * (n + 5), from, 3);
            const Doubles av = a.values(), bv = b.values(), rv = rows.values();
            const Tensor converted(n, to), added(n, to), summed(n, to);
            cast_cpu({.out = converted.data(), .x = a.data(), .n = n, .out_dtype = to, .dtype = from});
            EXPECT_EQ(converted.bits(), Tensor(av, to).bits());
            reduce_add_cpu({.out = added.data(),
                            .a = a.data(),
                            .b = b.data(),
                            .n = n,
                            .scale = 0.5f,
                            .out_dtype = to,
                            .a_dtype = from,
                            .b_dtype = to});
            sum_rows_cpu({.out = summed.data(),
                          .x = rows.data(),
                          .rows = 3,
                          .n = n,
                          .stride = n + 5,
                          .scale = 0.25f,
                          .out_dtype = to,
                          .dtype = from});
            Doubles sum(static_cast<size_t>(n)), total(sum);
            for (size_t i = 0; i < size_t(n); ++i) {
                sum[i] = double((float(av[i]) + float(bv[i])) * 0.5f);
                const size_t stride = size_t(n + 5);
                total[i] = double((float(rv[i]) + float(rv[stride + i]) + float(rv[2 * stride + i])) * 0.25f);
            }
            EXPECT_EQ(added.bits(), Tensor(sum, to).bits());
            EXPECT_EQ(summed.bits(), Tensor(total, to).bits());
        }
}

TEST(DTypes, Bf16RoundsToNearestEven) {
    for (uint64_t i = 0; i < (uint64_t(1) << 32); i += 9973) {  // every exponent, both signs
        const float x = std::bit_cast<float>(uint32_t(i));
        const bf16 got(x);
        if (std::isnan(x)) {
            ASSERT_TRUE(std::isnan(float(got)));
            continue;
        }
        const uint32_t low = uint32_t(i) & 0xffff, high = uint32_t(i) >> 16;
        const uint32_t want = low > 0x8000 || (low == 0x8000 && (high & 1)) ? high + 1 : high;
        ASSERT_EQ(got.bits, want) << x;
    }
}

TEST(SimdVec, ExpIsWithinItsBound) {
    const auto exp1 = [](float x) { return lanes::exp(lanes::splat(x))[1]; };
    double worst = 0;
    for (int32_t i = -873000; i <= 883000; ++i) {
        const float x = float(i) * 1e-4f;
        worst = std::max(worst, std::abs(double(exp1(x)) / std::exp(double(x)) - 1));
    }
    EXPECT_LT(worst, 2e-7);
    EXPECT_EQ(exp1(0), 1);
    EXPECT_GT(exp1(-INFINITY), 0);
    EXPECT_LT(exp1(-INFINITY), 1.3e-38);
    EXPECT_GT(exp1(INFINITY), 2e38);
    EXPECT_TRUE(std::isnan(exp1(NAN)));
}

TEST(SimdVec, PartialVectorsTouchNothingElse) {
    for (int64_t n = 0; n <= 11; ++n) {
        std::vector<bf16> x(12), y(12, bf16(-1.0f));
        for (size_t i = 0; i < 12; ++i) x[i] = bf16(float(i + 1));
        lanes::Vec sum{};
        lanes::for_vectors(n, [&](int64_t i, auto some) RZ_LAMBDA {
            sum += lanes::load(x.data() + i, some);  // zeros beyond the end
            lanes::store(y.data() + i, lanes::load(x.data() + i, some) * 2.0f, some);
        });
        EXPECT_EQ(lanes::sum_of(sum), float(n * (n + 1) / 2));
        for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(float(y[size_t(i)]), i < n ? 2 * float(i + 1) : -1);
    }
}

TEST_P(CpuOps, RandomNormalsDoNotDependOnTheCut) {
    const int64_t n = 20011, first = 7;
    RandomNormal a{
        .x = nullptr, .n = n, .first = first, .seed = 42, .stream = 3, .mean = 0.5f, .std = 2, .dtype = DType::bf16};
    const Tensor whole(n, DType::bf16), whole32(n, DType::f32), cut(n, DType::bf16), cut32(n, DType::f32);
    a.x = whole.data(), a.x32 = whole32.as<float>();
    random_normal_cpu(a);
    int64_t begin = 0;
    for (int64_t end : {int64_t(1), int64_t(2), int64_t(6), int64_t(4099), n}) {
        a.x = cut.as<bf16>() + begin, a.x32 = cut32.as<float>() + begin;
        a.first = first + begin, a.n = end - begin;
        random_normal_cpu(a);
        begin = end;
    }
    EXPECT_EQ(whole.bits(), cut.bits());
    EXPECT_EQ(whole32.bits(), cut32.bits());
    EXPECT_EQ(whole.bits(), Tensor(whole32.values(), DType::bf16).bits());
    AtSimdLevel baseline(SimdLevel::baseline);
    const Tensor other(n, DType::f32);
    a.x = other.data(), a.x32 = nullptr, a.dtype = DType::f32, a.first = first, a.n = n;
    random_normal_cpu(a);
    EXPECT_EQ(other.bits(), whole32.bits());  // the same bits in every instruction set
}

TEST(Philox, AgreesWithThePublishedAnswers) {
    // From the reference implementation (Random123): counter and key all zero, and all ones.
    const PhiloxWords zero = philox4x32(0, 0, 0);
    EXPECT_EQ(zero.w[0], 0x6627e8d5u);
    EXPECT_EQ(zero.w[1], 0xe169c58du);
    EXPECT_EQ(zero.w[2], 0xbc57ac4cu);
    EXPECT_EQ(zero.w[3], 0x9b00dbd8u);
    const PhiloxWords ones = philox4x32(~0ull, ~0ull, ~0ull);
    EXPECT_EQ(ones.w[0], 0x408f276du);
    EXPECT_EQ(ones.w[1], 0x41c83b0eu);
    EXPECT_EQ(ones.w[2], 0xa20bc7c6u);
    EXPECT_EQ(ones.w[3], 0x6d5451fdu);
}

TEST(Philox, NormalsAreNormal) {
    const int64_t n = 1 << 20;
    const Tensor x(n, DType::f32);
    random_normal_cpu({.x = x.data(), .n = n, .seed = 1, .stream = 0, .std = 1, .dtype = DType::f32});
    Doubles z = x.values();
    double moments[5] = {};
    for (double v : z) {
        double power = 1;
        for (double& m : moments) m += power / double(n), power *= v;
    }
    // Standard errors of the first four moments: sqrt(1, 2, 15, 96) / sqrt(n); five of them.
    EXPECT_NEAR(moments[1], 0, 5 * 1.0 / 1024);
    EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2) / 1024);
    EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15) / 1024);
    EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96) / 1024);
    double neighbours = 0;
    for (size_t i = 0; i + 1 < z.size(); ++i) neighbours += z[i] * z[i + 1] / double(n);
    EXPECT_NEAR(neighbours, 0, 5.0 / 1024);
    std::sort(z.begin(), z.end());
    double distance = 0;  // Kolmogorov-Smirnov
    for (size_t i = 0; i < z.size(); ++i)
        distance = std::max(distance, std::abs(0.5 * std::erfc(-z[i] / std::sqrt(2)) - (double(i) + 0.5) / double(n)));
    EXPECT_LT(distance, 2.0 / 1024);
}

// The Box-Muller polynomials against the library in double.
TEST(Philox, PairFollowsBoxMuller) {
    for (uint64_t i = 0; i < (uint64_t(1) << 32); i += 104729) {
        const uint32_t radius_word = uint32_t(i), angle_word = uint32_t(i * 2654435761u);
        float z0, z1;
        normal_pair(radius_word, angle_word, z0, z1);
        const double u = (2 * double(radius_word >> 9) + 1) * 0x1p-24, radius = std::sqrt(-2 * std::log(u));
        const double angle =
            (double(angle_word >> 30) + double(angle_word << 2 >> 8) * 0x1p-24 - 0.5) * std::acos(-1) / 2;
        ASSERT_NEAR(z0, radius * std::cos(angle), 8 * 0x1p-24 * radius);
        ASSERT_NEAR(z1, radius * std::sin(angle), 8 * 0x1p-24 * radius);
    }
}

// ---- messages -------------------------------------------------------------------------------------------------------

void expect_message(const std::function<void()>& call, const std::string& part) {
    EXPECT_TRUE(says(error_of(call), part));
}

TEST(Messages, NameTheArgumentAndTheFix) {
    Stream stream(Device{}, "test");
    const Tensor x = random_tensor(64, DType::f32, 1), y(64, DType::f32);
    RmsnormForward norm{.y = y.data(),
                        .rstd = y.as<float>(),
                        .x = x.data(),
                        .w = x.data(),
                        .N = 1,
                        .C = 8,
                        .eps = 1e-5f,
                        .dtype = DType::f32};
    norm.x = x.as<char>() + 4;
    expect_message([&] { rmsnorm_forward(stream, norm); }, "rmsnorm_forward: x is at");
    norm.x = x.data(), norm.eps = 0;
    expect_message([&] { rmsnorm_forward(stream, norm); }, "eps is 0; it must be positive");
    norm.eps = 1, norm.residual = x.data();
    expect_message([&] { rmsnorm_forward(stream, norm); }, "sum (needed with residual) is a null pointer");

    AttentionForward attention{y.data(), y.as<float>(), x.data(),
                               x.data(), x.data(),      PackedAttention{1, 1, 1, 9, 2, 2}.shape(DType::f32)};
    expect_message([&] { attention_forward(stream, attention); }, "9 query heads over 2 key/value heads");
    attention.shape = PackedAttention{1, 1, 1, 1, 1, 7}.shape(DType::f32);
    expect_message([&] { attention_forward(stream, attention); }, "head dimension 7; it must be even");
    attention.shape = PackedAttention{1, 3, 2, 1, 1, 8}.shape(DType::f32);
    expect_message([&] { attention_forward(stream, attention); }, "3 queries but 2 keys");

    expect_message(
        [&] {
            rope(stream, {.x = y.data(),
                          .cos_table = y.as<float>(),
                          .sin_table = y.as<float>(),
                          .N = 1,
                          .T = 1,
                          .heads = 2,
                          .D = 8,
                          .row_stride = 8,
                          .dtype = DType::f32});
        },
        "row_stride 8 is less than heads x D = 2 x 8");
    expect_message([&] { rope_inverse_frequencies(8, -1, {}); }, "theta is -1");
    expect_message(
        [&] { sum_squares(stream, {.partial = nullptr, .x = x.data(), .n = 64, .block = 100, .dtype = DType::f32}); },
        "a positive multiple of 256");
    expect_message(
        [&] {
            sum_squares(stream,
                        {.partial = nullptr, .x = x.data(), .n = 64, .block = 256, .dtype = DType::f32, .at = 2});
        },
        "x at 2 of a block of 256");
    stream.synchronize();
}

TEST(Messages, ErrorsInsideTheWorkerReachTheCaller) {
    Stream stream(Device{}, "test");
    const Tensor logits = random_tensor(8, DType::f32, 1), loss(1, DType::f32);
    const std::vector<int32_t> targets = {8};
    cross_entropy(stream, loss_of(loss, logits, targets));
    expect_message([&] { stream.synchronize(); }, "target 8 of row 0 is outside the vocabulary of 8");
}

}  // namespace
}  // namespace rz::test
