// GEMM against sums in double: every combination of transposes, beta and types, through oneDNN and through our own
// loops.

#include <omp.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>

#include "test/checks.h"
#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

using Product = ops::GemmCase;

std::string text(const Product& p) {
    return format("M=%ld N=%ld K=%ld trans %d %d alpha %g beta %g %s -> %s padding %ld bias %d apart %d", p.M, p.N, p.K,
                  p.trans_a, p.trans_b, double(p.alpha), double(p.beta), name_of(p.dtype), name_of(p.c_dtype), p.gap,
                  p.biased, p.apart);
}

void expect_product(const Product& p, void (*run)(const Gemm&)) {
    SCOPED_TRACE(text(p));
    CpuTensors t;
    const Gemm g = p.args(t);
    const int64_t lda = p.lda(), ldb = p.ldb(), ldc = p.ldc(), size = p.M * ldc;
    const Doubles av = values_of(g.a, (p.trans_a ? p.K : p.M) * lda, p.dtype),
                  bv = values_of(g.b, (p.trans_b ? p.N : p.K) * ldb, p.dtype), before = values_of(g.c, size, p.c_dtype),
                  biases = p.biased ? values_of(g.bias, p.N, p.c_dtype) : Doubles{},
                  added = p.apart ? values_of(g.add, size, p.c_dtype) : Doubles{};
    run(g);
    if (p.apart) {
        EXPECT_EQ(values_of(g.add, size, p.c_dtype), added);
    }
    const Doubles got = values_of(g.c, size, p.c_dtype);
    for (int64_t m = 0; m < p.M; ++m)
        for (int64_t n = 0; n < ldc; ++n) {
            const size_t i = size_t(m * ldc + n);
            if (n >= p.N) {  // between the rows
                ASSERT_TRUE(got[i] == before[i] || (std::isnan(got[i]) && std::isnan(before[i]))) << m << ", " << n;
                continue;
            }
            double sum = 0, terms = 0;
            for (int64_t k = 0; k < p.K; ++k) {
                const double x = av[size_t(p.trans_a ? k * lda + m : m * lda + k)] *
                                 bv[size_t(p.trans_b ? n * ldb + k : k * ldb + n)];
                sum += x, terms += std::abs(x);
            }
            const double old = p.biased      ? biases[size_t(n)]
                               : p.beta == 0 ? 0
                                             : double(p.beta) * (p.apart ? added : before)[i];
            const double want = double(p.alpha) * sum + old;
            // K products summed in fp32 in any order, then alpha, beta and the rounding to C. Where C is 16 bits wide,
            // a library may round the product before it adds beta C.
            const double stored = rounding_at(p.c_dtype, want) + (p.beta == 0 ? 0 : rounding_at(p.c_dtype, want - old));
            const double tolerance =
                (double(p.K) + 4) * 0x1p-24 * (std::abs(double(p.alpha)) * terms + std::abs(old)) + stored;
            ASSERT_LE(std::abs(got[i] - want), tolerance) << m << ", " << n << ": got " << got[i] << ", want " << want;
        }
}

class GemmTest : public testing::TestWithParam<std::tuple<bool, bool, float>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, GemmTest,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Values(0.0f, 1.0f, 0.5f)));

void every_type(Product p, void (*run)(const Gemm&)) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
        for (DType c_dtype : {DType::f32, dtype}) {
            p.dtype = dtype, p.c_dtype = c_dtype;
            expect_product(p, run);
            if (p.alpha == 1 && p.beta == 0) {
                Product biased = p;
                biased.biased = true;
                expect_product(biased, run);
            }
            if (p.beta != 0) {
                Product apart = p;
                apart.apart = true;
                expect_product(apart, run);
            }
            if (dtype == DType::f32) break;
        }
}

constexpr int64_t kShapes[][3] = {{1, 1, 1}, {3, 5, 7}, {1, 65, 33}, {33, 1, 64}, {64, 48, 1}, {37, 130, 65}};

TEST_P(GemmTest, LibraryMatchesDouble) {
    const auto [trans_a, trans_b, beta] = GetParam();
    for (auto [M, N, K] : kShapes)
        for (int64_t padding : {0, 3}) every_type({M, N, K, trans_a, trans_b, 1, beta, {}, {}, padding}, gemm_cpu);
    every_type({20, 30, 40, trans_a, trans_b, -0.75f, beta, {}, {}, 0}, gemm_cpu);
}

TEST_P(GemmTest, OwnLoopsMatchDouble) {
    const auto [trans_a, trans_b, beta] = GetParam();
    for (SimdLevel level : simd_levels()) {
        const AtSimdLevel at(level);
        SCOPED_TRACE(name_of(level));
        for (auto [M, N, K] : kShapes)
            for (int64_t padding : {0, 3})
                every_type({M, N, K, trans_a, trans_b, 1, beta, {}, {}, padding}, gemm_reference);
        // More than one tile in every direction
        expect_product({175, 270, 260, trans_a, trans_b, -0.75f, beta, DType::f32, DType::f32, 0}, gemm_reference);
        expect_product({175, 270, 260, trans_a, trans_b, 1, beta, DType::bf16, DType::bf16, 0}, gemm_reference);
    }
}

Gemm dense(const Tensor& c, const Tensor& a, const Tensor& b, int64_t M, int64_t N, int64_t K, bool trans_b = false) {
    Gemm g{};
    g.c = c.data(), g.a = a.data(), g.b = b.data();
    g.M = M, g.N = N, g.K = K, g.trans_b = trans_b, g.dtype = a.dtype(), g.c_dtype = c.dtype();
    return g;
}

// The bits of an element must depend on its row of A and column of B alone.
TEST(Gemm, OwnLoopsGiveTheSameBitsForAnyRowsAndThreads) {
    const int64_t M = 400, N = 300, K = 513;
    for (SimdLevel level : simd_levels()) {
        const AtSimdLevel at(level);
        const Tensor a = random_tensor(M * K, DType::f32, 1), b = random_tensor(N * K, DType::f32, 2);
        const Tensor whole(M * N, DType::f32), parts(M * N, DType::f32);
        Gemm g = dense(whole, a, b, M, N, K, /*trans_b=*/true);
        gemm_reference(g);
        const int before = omp_get_max_threads();
        omp_set_num_threads(3);
        for (int64_t m = 0, rows = 1; m < M; m += rows, rows = std::min(M - m, 2 * rows + 1)) {
            g.M = rows, g.a = a.as<float>() + m * K, g.c = parts.as<float>() + m * N;
            gemm_reference(g);
        }
        omp_set_num_threads(before);
        EXPECT_EQ(whole.bits(), parts.bits()) << name_of(level);
    }
}

TEST(Gemm, SameCallSameBits) {
    const Tensor a = random_tensor(128 * 512, DType::bf16, 1), b = random_tensor(256 * 512, DType::bf16, 2);
    const auto run = [&] {
        const Tensor c(128 * 256, DType::f32);
        gemm_cpu(dense(c, a, b, 128, 256, 512, /*trans_b=*/true));
        return c.bits();
    };
    const std::string first = run();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(first, run());
}

TEST(Gemm, EmptyProductsWriteZeroOrNothing) {
    const Tensor a(16, DType::f32), c(Doubles(16, 3.0), DType::f32);
    Gemm g = dense(c, a, a, 4, 4, 0);
    g.beta = 0.5f;
    gemm_cpu(g);  // K = 0: C = beta C
    EXPECT_EQ(c.values(), Doubles(16, 1.5));
    g.M = 0, g.K = 4;
    gemm_cpu(g);
    EXPECT_EQ(c.values(), Doubles(16, 1.5));
}

TEST(Gemm, RefusesStridesThatAreTooShort) {
    Stream stream(Device{}, "test");
    const Tensor x(64, DType::f32);
    Gemm g = dense(x, x, x, 4, 4, 8);
    g.lda = 7;
    EXPECT_TRUE(says(error_of([&] { gemm(stream, g); }), "lda is 7 but a row holds 8"));
}

TEST(Gemm, NamesItsLibrary) { EXPECT_NE(std::string(gemm_library(DeviceKind::cpu)), ""); }

// A crash inside oneDNN that is a failed allocation has words (test_faults.py, libraries_fail); no other has.
TEST(GemmCrash, ABadPointerOrASignalIsStillACrash) {
    if (!gemm_cpu_uses_library()) GTEST_SKIP() << "without oneDNN";
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // OpenMP's threads do not live on in a forked process
    const auto product = [](const void* a) {
        const rlimit none{};
        setrlimit(RLIMIT_CORE, &none);
        const Tensor b(16 * 16, DType::f32), c(16 * 16, DType::f32);
        Gemm g = dense(c, b, b, 16, 16, 16);
        if (a) g.a = a;
        gemm_cpu(g);
    };
    EXPECT_EXIT(product(reinterpret_cast<const void*>(uintptr_t(1) << 40)), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT((product(nullptr), raise(SIGSEGV), std::_Exit(0)), testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace rz::test
