// Newton-Schulz's iteration against its polynomial on singular values, in double.
#include "kernels/gemm/newton_schulz.h"
#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

// (n, k): k orthonormal columns, from Gram and Schmidt applied twice to random ones.
Doubles orthonormal(int64_t n, int64_t k, std::mt19937& rng) {
    std::normal_distribution<double> normal;
    Doubles q(size_t(n * k));
    const auto at = [&](int64_t i, int64_t j) -> double& { return q[size_t(i * k + j)]; };
    for (int64_t j = 0; j < k; ++j) {
        for (int64_t i = 0; i < n; ++i) at(i, j) = normal(rng);
        for (int twice = 0; twice < 2; ++twice)
            for (int64_t p = 0; p < j; ++p) {
                double dot = 0;
                for (int64_t i = 0; i < n; ++i) dot += at(i, j) * at(i, p);
                for (int64_t i = 0; i < n; ++i) at(i, j) -= dot * at(i, p);
            }
        double square = 0;
        for (int64_t i = 0; i < n; ++i) square += at(i, j) * at(i, j);
        for (int64_t i = 0; i < n; ++i) at(i, j) /= std::sqrt(square);
    }
    return q;
}

double polynomial(const std::vector<Quintic>& steps, double x) {
    for (const Quintic& q : steps) x = double(q.a) * x + double(q.b) * x * x * x + double(q.c) * std::pow(x, 5);
    return x;
}

// sum of the columns' outer products, each times s
Doubles compose(const Doubles& u, const Doubles& s, const Doubles& v, int64_t rows, int64_t cols) {
    const int64_t k = int64_t(s.size());
    Doubles x(size_t(rows * cols), 0);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
            for (int64_t r = 0; r < k; ++r)
                x[size_t(i * cols + j)] += u[size_t(i * k + r)] * s[size_t(r)] * v[size_t(j * k + r)];
    return x;
}

// The largest error of a singular value, to first order: of u^T X v, with the singular vectors of the input.
double error_of(int64_t rows, int64_t cols, DType dtype, const std::vector<Quintic>& steps, float margin) {
    std::mt19937 rng(uint32_t(rows * 1000 + cols));
    const int64_t k = std::min(rows, cols);
    const Doubles u = orthonormal(rows, k, rng), v = orthonormal(cols, k, rng);
    Doubles s(static_cast<size_t>(k));
    double square = 0;
    for (int64_t r = 0; r < k; ++r)
        s[size_t(r)] = 7 * std::pow(2e-3, double(r) / double(k)), square += s[size_t(r)] * s[size_t(r)];
    const Doubles input = compose(u, s, v, rows, cols);
    for (double& x : s) x = polynomial(steps, x / (std::sqrt(square) * double(margin)));
    const Doubles want = compose(u, s, v, rows, cols);

    Stream stream({DeviceKind::cpu, 0}, "compute");
    const Tensor x(input, dtype), work(newton_schulz_bytes(rows, cols, dtype) / 4, DType::f32);
    newton_schulz(stream, {.x = x.data(),
                           .rows = rows,
                           .cols = cols,
                           .dtype = dtype,
                           .steps = steps,
                           .margin = margin,
                           .work = work.data()});
    stream.synchronize();
    double largest = 0, square_of_all = 0;
    const Doubles got = x.values();
    for (int64_t r = 0; r < k; ++r) {
        double value = 0;
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < cols; ++j)
                value += u[size_t(i * k + r)] * got[size_t(i * cols + j)] * v[size_t(j * k + r)];
        largest = std::max(largest, std::abs(value - s[size_t(r)]));
    }
    for (size_t i = 0; i < got.size(); ++i) square_of_all += std::pow(got[i] - want[i], 2);
    EXPECT_LT(std::sqrt(square_of_all), (dtype == DType::f32 ? 4e-6 : 0.15) * std::sqrt(double(k)));
    return largest;
}

TEST(NewtonSchulz, SingularValuesAreThoseOfThePolynomial) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{32, 32},
                                     {16, 80},
                                     {80, 16},
                                     {33, 47},
                                     {1, 40},
                                     {40, 1},
                                     {64, 96},
                                     {100, 120},
                                     {120, 67}}) {
        EXPECT_LT(error_of(rows, cols, DType::f32, jordan_steps(5), 1), 1e-5) << rows << " x " << cols;
        EXPECT_LT(error_of(rows, cols, DType::f32, polar_express_steps(5), kPolarExpressMargin), 1e-5)
            << rows << " x " << cols;
    }
}

// Each of three products of a step rounds once, by 2^-9 of values of at most 1.2; slopes carry errors on.
TEST(NewtonSchulz, Bf16IsNear) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{32, 32}, {16, 80}, {80, 16}})
        EXPECT_LT(error_of(rows, cols, DType::bf16, jordan_steps(5), 1), 0.15) << rows << " x " << cols;
}

// In exact arithmetic the polynomial makes 0.6798248 of 0.0015, the least, and at most 1.2023687, of 0.0041114: the
// lower end of "ends in [0.68, 1.21]" is rounded.
TEST(NewtonSchulz, EndsNearOne) {
    for (double x = 0.0015; x <= 1; x *= 1.001) {
        EXPECT_GT(polynomial(jordan_steps(5), x), 0.6798) << x;
        EXPECT_LT(polynomial(jordan_steps(5), x), 1.21) << x;
    }
    // Polar Express: closer with every step (Amsel et al. 2025, figure 1)
    for (double x = 0.001 / double(kPolarExpressMargin); x <= 1 / double(kPolarExpressMargin); x *= 1.001) {
        EXPECT_NEAR(polynomial(polar_express_steps(5), x), 1, 0.17) << x;
        EXPECT_NEAR(polynomial(polar_express_steps(8), x), 1, 1e-5) << x;
    }
}

// X X^T, X^T X, and 2 S + 3 S S of the first: to the bit, near the whole product in double, whatever the halves of C
// held before. Of k products and sums each rounds once.
TEST(NewtonSchulz, SymmetricProductsAreSymmetric) {
    const Device cpu;
    Stream stream(cpu, "compute");
    std::mt19937 rng(1);
    for (const int64_t n : {1, 64, 65, 130, 300}) {
        EXPECT_EQ(symmetric_flops(cpu, n, 1) < double(2 * n * n), n > 64) << n;
        const int64_t k = 37;
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<size_t>(n * k)), s(static_cast<size_t>(n * n), NAN), tall = s, p;
        for (float& v : x) v = normal(rng);
        const auto product = [&](std::vector<float>& c, const std::vector<float>& a, int64_t K, bool trans_a,
                                 bool trans_b, float alpha, float beta) {
            const std::vector<float> before = c;
            gemm_symmetric(stream, {.c = c.data(),
                                    .a = a.data(),
                                    .b = a.data(),
                                    .M = n,
                                    .N = n,
                                    .K = K,
                                    .trans_a = trans_a,
                                    .trans_b = trans_b,
                                    .alpha = alpha,
                                    .beta = beta,
                                    .dtype = DType::f32,
                                    .c_dtype = DType::f32});
            stream.synchronize();
            for (int64_t i = 0; i < n; ++i)
                for (int64_t j = 0; j < n; ++j) {
                    const auto at = [&](int64_t r, int64_t c_, int64_t rows, int64_t cols, bool trans) {
                        return double(a[size_t(trans ? c_ * rows + r : r * cols + c_)]);
                    };
                    double want = beta == 0 ? 0 : double(beta * before[size_t(i * n + j)]), of = std::abs(want);
                    for (int64_t q = 0; q < K; ++q) {
                        const double v = double(alpha) * at(i, q, n, K, trans_a) * at(q, j, K, n, trans_b);
                        want += v, of += std::abs(v);
                    }
                    ASSERT_NEAR(double(c[size_t(i * n + j)]), want, double(K + 2) * 0x1p-24 * of) << n << i << j;
                    if (n > 64) {
                        ASSERT_EQ(c[size_t(i * n + j)], c[size_t(j * n + i)]) << n << i << j;
                    }
                }
        };
        product(s, x, k, false, true, 1, 0);
        product(tall, x, k, true, false, 1, 0);
        p = s;
        product(p, s, n, false, false, 3, 2);
    }
}

TEST(NewtonSchulz, ZeroStaysZero) {
    Stream stream({DeviceKind::cpu, 0}, "compute");
    std::vector<float> x(12 * 20, 0);
    const Tensor work(newton_schulz_bytes(12, 20, DType::f32) / 4, DType::f32);
    newton_schulz(
        stream,
        {.x = x.data(), .rows = 12, .cols = 20, .dtype = DType::f32, .steps = jordan_steps(5), .work = work.data()});
    stream.synchronize();
    for (const float v : x) EXPECT_EQ(v, 0);
}

}  // namespace
}  // namespace rz::test
