// fp8 with a scale for each tile: quantisation to the bit (kernels/fp8/quantise_tiles.cu), products against the CPU op.
#include "kernels/fp8/fp8_block_gemm.h"
#include "kernels/fp8/quantise_blocks.h"
#include "test/kernels/capability.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Matrix {
    int64_t rows, columns;
    DType dtype;
};

// Rows of very different magnitude, a tile of zeros, and numbers at a power of two of 448, where the scale turns.
Data numbers(const Matrix& m) {
    Data x = normal(m.rows * m.columns, m.dtype, 9);
    for (int64_t i = 0; i < m.rows * m.columns; ++i)
        x.set(i, float(x.at(i)) * std::ldexp(1.0f, int(i / m.columns % 7) * 3));
    for (int64_t k = 0; k < 128; ++k) x.set(k, 0);
    x.set(m.columns + 3, 448 * 1024);
    return x;
}

uint8_t* codes(KernelRun& run, const char* name, int64_t n) {
    return reinterpret_cast<uint8_t*>(run.output<float>(name, n / 4, DType::f32));
}

class QuantiseBlocksTest : public testing::TestWithParam<Matrix> {};

TEST_P(QuantiseBlocksTest, CodesAndScalesAreExact) {
    const Matrix m = GetParam();
    const Data x = numbers(m);
    for (const Fp8Tiles tiles : {Fp8Tiles::rows, Fp8Tiles::squares})
        for (const int outputs : {1, 2, 3}) {
            const auto op = [&](KernelRun& run) {
                QuantiseBlocks a;
                const int64_t n = m.rows * m.columns;
                a.x = run.input(x), a.rows = m.rows, a.columns = m.columns, a.tiles = tiles, a.dtype = m.dtype;
                if (outputs & 1) {
                    a.y = codes(run, "y", n);
                    a.scales = run.output<float>("scales", fp8_scales_of(tiles, m.rows, m.columns), DType::f32);
                }
                if (outputs & 2) {
                    a.y_t = codes(run, "y_t", n);
                    a.scales_t = run.output<float>("scales_t", fp8_scales_of(tiles, m.columns, m.rows), DType::f32);
                }
                quantise_blocks(run.stream(), a);
            };
            compare_on_devices(op, {});
            if (cuda_device_count() == 0) continue;
            const auto want = run_on(Device{DeviceKind::cpu, 0}, op), got = run_on(Device{DeviceKind::cuda, 0}, op);
            for (const auto& [name, result] : want) EXPECT_TRUE(got.at(name).bytes == result.bytes) << name;
        }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantiseBlocksTest,
                         testing::Values(Matrix{128, 128, DType::bf16}, Matrix{256, 640, DType::bf16},
                                         Matrix{128, 384, DType::f32}, Matrix{128, 256, DType::f16}));

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
        for (const Device device : {Device{DeviceKind::cpu, 0}, Device{DeviceKind::cuda, 0}}) {
            if (device.kind == DeviceKind::cuda && cuda_device_count() == 0) continue;
            const auto got = run_on(device, [&](KernelRun& run) {
                QuantiseBlocks a;
                a.x = run.input(x), a.rows = side, a.columns = side, a.tiles = Fp8Tiles::squares, a.dtype = dtype;
                a.y = codes(run, "y", side * side);
                a.scales = run.output<float>("scales", fp8_scales_of(a.tiles, side, side), DType::f32);
                quantise_blocks(run.stream(), a);
            });
            for (int64_t tile = 0; tile < 64; ++tile) {
                const int64_t at = fp8_scale_at(Fp8Tiles::squares, side, side, tile / 8 * kFp8Tile, tile % 8);
                EXPECT_EQ(got.at("scales").values[size_t(at)], std::ldexp(1.0, exponent(tile))) << "square " << tile;
            }
        }
    }
}

// Planted once: codes whose tiles lie along rows, moved, are not codes whose tiles lie along columns.
TEST(QuantiseBlocks, TransposedCodesAreMadeFromTheNumbers) {
    const Matrix m{128, 256, DType::bf16};
    const Data x = numbers(m);
    const auto got = run_on(Device{DeviceKind::cpu, 0}, [&](KernelRun& run) {
        QuantiseBlocks a;
        a.x = run.input(x), a.rows = m.rows, a.columns = m.columns, a.tiles = Fp8Tiles::rows, a.dtype = m.dtype;
        a.y = codes(run, "y", 128 * 256), a.y_t = codes(run, "y_t", 128 * 256);
        a.scales = run.output<float>("scales", 256, DType::f32);
        a.scales_t = run.output<float>("scales_t", 256, DType::f32);
        quantise_blocks(run.stream(), a);
    });
    int64_t moved = 0;
    for (int64_t r = 0; r < 128; ++r)
        for (int64_t c = 0; c < 256; ++c) {
            const uint8_t y = got.at("y").bytes[size_t(r * 256 + c)], y_t = got.at("y_t").bytes[size_t(c * 128 + r)];
            const double want = x.at(r * 256 + c), scale = got.at("scales_t").values[size_t(c)];
            ASSERT_NEAR(double(kE4m3Values[y_t]) * scale, want, std::max(std::abs(want) / 16, scale * 0x1p-10));
            moved += y == y_t;
        }
    EXPECT_LT(moved, 128 * 256 / 2);
}

struct Case {
    int64_t M, N, K;
    Fp8Tiles b_tiles;
    float beta;
    DType c_dtype;
};

class Fp8BlockGemmTest : public testing::TestWithParam<Case> {};

// Sums of 128 products below 4 in another order; both sides then scale and add tiles in the same order.
TEST_P(Fp8BlockGemmTest, MatchesCpu) {
    if (compute_capability() != 90) GTEST_SKIP() << "no CUDA device with fp8 products by blocks (9.0)";
    const Case c = GetParam();
    std::mt19937 random(3);
    const auto random_codes = [&](int64_t n) {
        std::vector<uint8_t> all;
        while (int64_t(all.size()) < n)
            if (const uint8_t code = uint8_t(random()); std::abs(kE4m3Values[code]) <= 2) all.push_back(code);
        return all;
    };
    const auto random_scales = [&](int64_t n) {
        std::vector<float> all;
        for (int64_t i = 0; i < n; ++i) all.push_back(std::ldexp(1.0f, int(random() % 5) - 2));
        return all;
    };
    const auto a = random_codes(c.M * c.K), b = random_codes(c.N * c.K);
    const auto a_scales = random_scales(fp8_scales_of(Fp8Tiles::rows, c.M, c.K));
    const auto b_scales = random_scales(fp8_scales_of(c.b_tiles, c.N, c.K));
    const auto op = [&](KernelRun& run) {
        Fp8BlockGemm g;
        g.c = run.inout("c", normal(c.M * c.N, c.c_dtype, 3));
        g.a = run.input<uint8_t>(a), g.b = run.input<uint8_t>(b);
        g.a_scales = run.input<float>(a_scales), g.b_scales = run.input<float>(b_scales);
        g.M = c.M, g.N = c.N, g.K = c.K, g.beta = c.beta, g.b_tiles = c.b_tiles, g.c_dtype = c.c_dtype;
        fp8_block_gemm(run.stream(), g);
    };
    compare_on_devices(op, {{"c", {ulp(c.c_dtype), fp8_sum_error(c.K, 4 * 16)}}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fp8BlockGemmTest,
                         testing::Values(Case{128, 128, 128, Fp8Tiles::squares, 0, DType::bf16},
                                         Case{128, 256, 384, Fp8Tiles::squares, 0, DType::bf16},
                                         Case{256, 128, 640, Fp8Tiles::rows, 1, DType::f32}));

}  // namespace
}  // namespace rz::test
