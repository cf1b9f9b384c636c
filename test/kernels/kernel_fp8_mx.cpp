// MXFP8: quantisation to the bit (kernels/fp8/quantise_tiles.cu), products against the CPU op. Scales and their
// order: test_fp8.cpp.
#include <cmath>

#include "kernels/fp8/fp8_mx_gemm.h"
#include "kernels/fp8/quantise_mx.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Matrix {
    int64_t rows, columns;
    DType dtype;
};

// Rows of very different magnitude, a tile of zeros, a NaN, infinities, and numbers around a power of two of 448,
// where the scale turns.
Data numbers(const Matrix& m) {
    Data x = normal(m.rows * m.columns, m.dtype, 9);
    for (int64_t i = 0; i < m.rows * m.columns; ++i)
        x.set(i, float(x.at(i)) * std::ldexp(1.0f, int(i / m.columns % 7) * 3));
    for (int64_t k = 0; k < kMxTile; ++k) x.set(k, 0);
    x.set(m.columns + 3, 448 * 1024), x.set(m.columns + 40, 450 * 1024), x.set(m.columns + 70, 447 * 1024);
    x.set(2 * m.columns + 1, NAN), x.set(2 * m.columns + 33, INFINITY), x.set(2 * m.columns + 65, -INFINITY);
    return x;
}

uint8_t* bytes(KernelRun& run, const char* name, int64_t n) {
    return reinterpret_cast<uint8_t*>(run.output<float>(name, n / 4, DType::f32));
}

Op quantisation(const Matrix& m, const Data& x, int outputs) {
    return [=](KernelRun& run) {
        QuantiseMx a;
        a.x = run.input(x), a.rows = m.rows, a.columns = m.columns, a.dtype = m.dtype;
        if (outputs & 1) {
            a.y = bytes(run, "y", m.rows * m.columns);
            a.scales = bytes(run, "scales", mx_scales_of(m.rows, m.columns));
        }
        if (outputs & 2) {
            a.y_t = bytes(run, "y_t", m.rows * m.columns);
            a.scales_t = bytes(run, "scales_t", mx_scales_of(m.columns, m.rows));
        }
        quantise_mx(run.stream(), a);
    };
}

class QuantiseMxTest : public testing::TestWithParam<Matrix> {};

TEST_P(QuantiseMxTest, CodesAndScalesAreExact) {
    const Matrix m = GetParam();
    const Data x = numbers(m);
    for (const int outputs : {1, 2, 3}) {
        const Op op = quantisation(m, x, outputs);
        const auto want = run_on(Device{DeviceKind::cpu, 0}, op);
        if (cuda_device_count() == 0) continue;
        const auto got = run_on(Device{DeviceKind::cuda, 0}, op);
        for (const auto& [name, result] : want) EXPECT_TRUE(got.at(name).bytes == result.bytes) << name;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantiseMxTest,
                         testing::Values(Matrix{128, 128, DType::bf16}, Matrix{256, 640, DType::bf16},
                                         Matrix{128, 384, DType::f32}, Matrix{128, 256, DType::f16}));

// Codes whose tiles lie along rows, moved, are not codes whose tiles lie along columns.
TEST(QuantiseMx, TransposedCodesAreMadeFromTheNumbers) {
    const Matrix m{128, 256, DType::bf16};
    Data x = numbers(m);
    for (int64_t k = 0; k < m.columns; ++k) x.set(2 * m.columns + k, 1);  // no NaN here
    const auto got = run_on(Device{DeviceKind::cpu, 0}, quantisation(m, x, 3));
    for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = 0; c < m.columns; ++c) {
            const uint8_t y_t = got.at("y_t").bytes[size_t(c * m.rows + r)];
            const double want = x.at(r * m.columns + c);
            const double scale = from_e8m0(got.at("scales_t").bytes[size_t(mx_scale_at(m.rows, c, r / 32))]);
            ASSERT_NEAR(double(kE4m3Values[y_t]) * scale, want, std::max(std::abs(want) / 16, scale * 0x1p-10));
        }
}

struct Case {
    int64_t M, N, K;
    float beta;
    DType c_dtype;
};

class Fp8MxGemmTest : public testing::TestWithParam<Case> {};

// Sums of K products below 4, each times two scales up to 4, in another order; then one rounding to C.
TEST_P(Fp8MxGemmTest, MatchesCpu) {
    if (compute_capability() < 100) GTEST_SKIP() << "no CUDA device with mx products (10.0)";
    const Case c = GetParam();
    std::mt19937 random(3);
    const auto random_codes = [&](int64_t n) {
        std::vector<uint8_t> all;
        while (int64_t(all.size()) < n)
            if (const uint8_t code = uint8_t(random()); std::abs(kE4m3Values[code]) <= 2) all.push_back(code);
        return all;
    };
    const auto random_scales = [&](int64_t n) {
        std::vector<uint8_t> all;
        for (int64_t i = 0; i < n; ++i) all.push_back(uint8_t(125 + random() % 5));
        return all;
    };
    const auto a = random_codes(c.M * c.K), b = random_codes(c.N * c.K);
    const auto a_scales = random_scales(mx_scales_of(c.M, c.K)), b_scales = random_scales(mx_scales_of(c.N, c.K));
    const auto op = [&](KernelRun& run) {
        Fp8MxGemm g;
        g.c = run.inout("c", normal(c.M * c.N, c.c_dtype, 3));
        g.a = run.input<uint8_t>(a), g.b = run.input<uint8_t>(b);
        g.a_scales = run.input<uint8_t>(a_scales), g.b_scales = run.input<uint8_t>(b_scales);
        g.M = c.M, g.N = c.N, g.K = c.K, g.beta = c.beta, g.c_dtype = c.c_dtype;
        fp8_mx_gemm(run.stream(), g);
    };
    compare_on_devices(op, {{"c", {ulp(c.c_dtype), 8 * 4 * 16 * double(c.K) * 0x1p-24}}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fp8MxGemmTest,
                         testing::Values(Case{128, 128, 128, 0, DType::bf16}, Case{128, 256, 384, 0, DType::bf16},
                                         Case{256, 128, 640, 1, DType::f32}));

}  // namespace
}  // namespace rz::test
