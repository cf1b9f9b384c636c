// fp8 with a scale for each tile, block recipe and MXFP8: quantisation to the bit (kernels/fp8/quantise_tiles.cu),
// products against the CPU op. MXFP8's scales and their order: test_fp8.cpp.
#include <cmath>

#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/fp8_mx_gemm.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

using Matrix = ops::QuantiseCase;

// Rows of very different magnitude, a tile of zeros, and numbers at a power of two of 448, where the scale turns.
Data numbers(const Matrix& m, int64_t zeros = 128) {
    Data x = normal(m.size(), m.dtype, 9);
    for (int64_t i = 0; i < m.size(); ++i) x.set(i, float(x.at(i)) * std::ldexp(1.0f, int(i / m.columns % 7) * 3));
    for (int64_t k = 0; k < zeros; ++k) x.set(k, 0);
    x.set(m.columns + 3, 448 * 1024);
    return x;
}

// And numbers around it, a NaN and infinities
Data numbers_for_mx(const Matrix& m) {
    Data x = numbers(m, kMxTile);
    x.set(m.columns + 40, 450 * 1024), x.set(m.columns + 70, 447 * 1024);
    x.set(2 * m.columns + 1, NAN), x.set(2 * m.columns + 33, INFINITY), x.set(2 * m.columns + 65, -INFINITY);
    return x;
}

Op blocks(const Matrix& m, const Data& x, Fp8Tiles tiles) {
    return [=](KernelRun& run) {
        QuantiseBlocks a = m.blocks(run, tiles);
        a.x = run.input(x);
        quantise_blocks(run.stream(), a);
    };
}
Op mx(const Matrix& m, const Data& x) {
    return [=](KernelRun& run) {
        QuantiseMx a = m.mx(run);
        a.x = run.input(x);
        quantise_mx(run.stream(), a);
    };
}

// ---- block recipe ---------------------------------------------------------------------------------------------------

class QuantiseBlocksTest : public testing::TestWithParam<Matrix> {};

TEST_P(QuantiseBlocksTest, CodesAndScalesAreExact) {
    Matrix m = GetParam();
    for (const Fp8Tiles tiles : {Fp8Tiles::rows, Fp8Tiles::squares})
        for (const int outputs : {1, 2, 3}) {
            m.plain = outputs & 1, m.transposed = outputs & 2;
            compare_bytes_on_devices(blocks(m, numbers(m), tiles));
        }
}

const Matrix kMatrices[] = {
    {128, 128, DType::bf16}, {256, 640, DType::bf16}, {128, 384, DType::f32}, {128, 256, DType::f16}};
INSTANTIATE_TEST_SUITE_P(Shapes, QuantiseBlocksTest, testing::ValuesIn(kMatrices));

TEST(QuantiseBlocks, ScalesArePowersOfTwoThatUseTheRange) {
    for (const float x : {1.0f, 447.0f, 448.0f, 449.0f, 3e-5f, 1e30f}) {
        const float scale = fp8_block_scale(std::bit_cast<uint32_t>(x));
        int exponent;
        EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << x;
        EXPECT_LE(x * scale, 448);
        EXPECT_GT(x * scale, 224);
    }
    EXPECT_EQ(fp8_block_scale(0), 1);
    EXPECT_TRUE(std::isnan(fp8_block_scale(0x7f800000u)));
}

// A square's scale is that of its largest number, wherever in the square that is. A warp looks through 16 lines, a
// thread through four numbers of each: 64 squares have their largest in each of these places, in other warps and lanes.
TEST(QuantiseBlocks, TheLargestNumberOfASquareIsFoundInEveryPlace) {
    constexpr int64_t side = 8 * kFp8Tile;
    const auto exponent = [](int64_t tile) { return int(tile % 7) - 3; };
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        Data x = normal(side * side, dtype, 4);
        for (int64_t tile = 0; tile < 64; ++tile) {
            const int64_t line = tile * 5 % 8 * 16 + tile % 16, column = tile * 11 % 32 * 4 + tile / 16;
            const double largest = std::ldexp(tile % 2 ? 448.0 : -448.0, exponent(tile));
            x.set((tile / 8 * kFp8Tile + line) * side + tile % 8 * kFp8Tile + column, float(largest));
        }
        for (const Device& device : both_devices()) {
            const auto got = run_on(device, blocks({side, side, dtype}, x, Fp8Tiles::squares));
            for (int64_t tile = 0; tile < 64; ++tile) {
                const int64_t at = fp8_scale_at(Fp8Tiles::squares, side, side, tile / 8 * kFp8Tile, tile % 8);
                EXPECT_EQ(got.at("scales").values[size_t(at)], std::ldexp(1.0, exponent(tile))) << "square " << tile;
            }
        }
    }
}

// Planted once: codes whose tiles lie along rows, moved, are not codes whose tiles lie along columns.
TEST(QuantiseBlocks, TransposedCodesAreMadeFromTheNumbers) {
    const Matrix m{128, 256, DType::bf16, true, true};
    const Data x = numbers(m);
    const auto got = run_on(kCpu, blocks(m, x, Fp8Tiles::rows));
    int64_t moved = 0;
    for (int64_t r = 0; r < 128; ++r)
        for (int64_t c = 0; c < 256; ++c) {
            const uint8_t y = got.at("blocks").bytes[size_t(r * 256 + c)],
                          y_t = got.at("blocks_t").bytes[size_t(c * 128 + r)];
            const double want = x.at(r * 256 + c), scale = got.at("scales_t").values[size_t(c)];
            ASSERT_NEAR(double(kE4m3Values[y_t]) * scale, want, std::max(std::abs(want) / 16, scale * 0x1p-10));
            moved += y == y_t;
        }
    EXPECT_LT(moved, 128 * 256 / 2);
}

// ---- MXFP8 ----------------------------------------------------------------------------------------------------------

class QuantiseMxTest : public testing::TestWithParam<Matrix> {};

TEST_P(QuantiseMxTest, CodesAndScalesAreExact) {
    Matrix m = GetParam();
    for (const int outputs : {1, 2, 3}) {
        m.plain = outputs & 1, m.transposed = outputs & 2;
        compare_bytes_on_devices(mx(m, numbers_for_mx(m)));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantiseMxTest, testing::ValuesIn(kMatrices));

// Codes whose tiles lie along rows, moved, are not codes whose tiles lie along columns.
TEST(QuantiseMx, TransposedCodesAreMadeFromTheNumbers) {
    const Matrix m{128, 256, DType::bf16, true, true};
    Data x = numbers_for_mx(m);
    for (int64_t k = 0; k < m.columns; ++k) x.set(2 * m.columns + k, 1);  // no NaN here
    const auto got = run_on(kCpu, mx(m, x));
    for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = 0; c < m.columns; ++c) {
            const uint8_t y_t = got.at("mx_t").bytes[size_t(c * m.rows + r)];
            const double want = x.at(r * m.columns + c);
            const double scale = from_e8m0(got.at("mx_scales_t").bytes[size_t(mx_scale_at(m.rows, c, r / 32))]);
            ASSERT_NEAR(double(kE4m3Values[y_t]) * scale, want, std::max(std::abs(want) / 16, scale * 0x1p-10));
        }
}

// ---- products -------------------------------------------------------------------------------------------------------

struct Case {
    int64_t M, N, K;
    Fp8Tiles b_tiles;  // of the block recipe
    float beta;
    DType c_dtype;
};

std::vector<uint8_t> random_codes(int64_t n, std::mt19937& random) {
    std::vector<uint8_t> all;
    while (int64_t(all.size()) < n)
        if (const uint8_t code = uint8_t(random()); std::abs(kE4m3Values[code]) <= 2) all.push_back(code);
    return all;
}
// Powers of two from 1/4 to 4
template <class T>
std::vector<T> random_scales(int64_t n, std::mt19937& random, T (*power)(int)) {
    std::vector<T> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(power(int(random() % 5) - 2));
    return all;
}

template <class Product>
Product product(KernelRun& run, const Case& c, std::mt19937& random) {
    Product g{};
    g.c = run.inout("c", c.M * c.N, c.c_dtype, 3);
    g.a = run.values(random_codes(c.M * c.K, random)), g.b = run.values(random_codes(c.N * c.K, random));
    g.M = c.M, g.N = c.N, g.K = c.K, g.beta = c.beta, g.c_dtype = c.c_dtype;
    return g;
}

class Fp8BlockGemmTest : public testing::TestWithParam<Case> {};

// Sums of 128 products below 4 in another order; both sides then scale and add tiles in the same order.
TEST_P(Fp8BlockGemmTest, MatchesCpu) {
    if (compute_capability() != 90) GTEST_SKIP() << "no CUDA device with fp8 products by blocks (9.0)";
    const Case c = GetParam();
    const auto op = [&](KernelRun& run) {
        std::mt19937 random(3);
        Fp8BlockGemm g = product<Fp8BlockGemm>(run, c, random);
        const auto power = [](int e) { return std::ldexp(1.0f, e); };
        g.a_scales = run.values(random_scales<float>(fp8_scales_of(Fp8Tiles::rows, c.M, c.K), random, power));
        g.b_scales = run.values(random_scales<float>(fp8_scales_of(c.b_tiles, c.N, c.K), random, power));
        g.b_tiles = c.b_tiles;
        fp8_block_gemm(run.stream(), g);
    };
    compare_on_devices(op, {{"c", {ulp(c.c_dtype), fp8_sum_error(c.K, 4 * 16)}}});
}

class Fp8MxGemmTest : public testing::TestWithParam<Case> {};

// Sums of K products below 4, each times two scales up to 4, in another order; then one rounding to C.
TEST_P(Fp8MxGemmTest, MatchesCpu) {
    if (compute_capability() < 100) GTEST_SKIP() << "no CUDA device with mx products (10.0)";
    const Case c = GetParam();
    const auto op = [&](KernelRun& run) {
        std::mt19937 random(3);
        Fp8MxGemm g = product<Fp8MxGemm>(run, c, random);
        const auto power = [](int e) { return uint8_t(127 + e); };
        g.a_scales = run.values(random_scales<uint8_t>(mx_scales_of(c.M, c.K), random, power));
        g.b_scales = run.values(random_scales<uint8_t>(mx_scales_of(c.N, c.K), random, power));
        fp8_mx_gemm(run.stream(), g);
    };
    compare_on_devices(op, {{"c", {ulp(c.c_dtype), 8 * 4 * 16 * double(c.K) * 0x1p-24}}});
}

const Case kProducts[] = {{128, 128, 128, Fp8Tiles::squares, 0, DType::bf16},
                          {128, 256, 384, Fp8Tiles::squares, 0, DType::bf16},
                          {256, 128, 640, Fp8Tiles::rows, 1, DType::f32}};
INSTANTIATE_TEST_SUITE_P(Shapes, Fp8BlockGemmTest, testing::ValuesIn(kProducts));
INSTANTIATE_TEST_SUITE_P(Shapes, Fp8MxGemmTest, testing::ValuesIn(kProducts));

}  // namespace
}  // namespace rz::test
