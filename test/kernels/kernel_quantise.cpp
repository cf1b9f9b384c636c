// Quantisation to fp8: CUDA kernels against the CPU ops, to the bit.
#include "kernels/fp8/fold_scales.h"
#include "test/kernels/kernel_test.h"
#include "test/kernels/runs_source.h"

namespace rz::test {
namespace {

using Case = ops::QuantiseCase;

Fp8Scale* scale_slot(KernelRun& run, uint32_t amax) {
    return run.inout("scale", raw(std::vector<Fp8Scale>{{0, amax, {0, 0}}}));
}

class QuantiseTest : public testing::TestWithParam<Case> {};

// Codes and both scale words are exact. The largest number is not known beforehand: its magnitude is found first.
TEST_P(QuantiseTest, CodesTransposedCodesAndScaleAreExact) {
    Case c = GetParam();
    for (const Fp8 type : {Fp8::e4m3, Fp8::e5m2})
        for (const int outputs : {1, 2, 3}) {
            c.plain = outputs & 1, c.transposed = outputs & 2;
            const auto op = [&](KernelRun& run) {
                const Quantise a = c.whole(run, scale_slot(run, 0), type);
                abs_max(run.stream(), {a.scale, a.x, c.size(), c.dtype});
                quantise(run.stream(), a);
            };
            compare_bytes_on_devices(op);
        }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantiseTest,
                         testing::Values(Case{16, 16, DType::bf16}, Case{80, 144, DType::bf16},
                                         Case{64, 272, DType::f32}, Case{160, 64, DType::f16}));

// A length that no vector divides, and what stands in the slot already.
TEST(AbsMax, TailsAndEarlierMagnitudesCount) {
    for (const int64_t n : {int64_t(1), int64_t(8), int64_t(2049), int64_t(70001)})
        for (const float before : {0.0f, 100.0f}) {
            Data x = normal(n, DType::bf16, 4);
            x.set(n - 1, -7);
            const auto op = [&](KernelRun& run) {
                abs_max(run.stream(), {scale_slot(run, std::bit_cast<uint32_t>(before)), run.input(x), n, DType::bf16});
            };
            compare_on_devices(op);
            const auto got = run_on(kCpu, op).at("scale");
            EXPECT_EQ(got.values[1], std::max(7.0f, before));
        }
}

// One vector more than all threads of the largest grid take at a time, and a tail
TEST(AbsMax, MoreThanTheGridTakesAtATime) {
    if (runs_source()) GTEST_SKIP() << "for what nvcc makes of loops";
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
        const int64_t n = int64_t(1024) * 256 * (16 / size_of(t)) + 16 / size_of(t) + 3;
        Data x = zeros(n, t);
        x.set(7, 2), x.set(n - 5, -3);  // in the second round
        const auto op = [&](KernelRun& run) { abs_max(run.stream(), {scale_slot(run, 0), run.input(x), n, t}); };
        compare_on_devices(op);
        EXPECT_EQ(run_on(kCpu, op).at("scale").values[1], 3) << name_of(t);
    }
}

// Planted once: a maximum by fmaxf drops a NaN, and saturation hides an infinity.
TEST(AbsMax, NaNAndInfinityAreAboveAllNumbers) {
    for (const float bad : {float(NAN), float(INFINITY)}) {
        Data x = normal(1000, DType::bf16, 4, 1e30f);
        x.set(313, bad);
        const auto op = [&](KernelRun& run) {
            abs_max(run.stream(), {scale_slot(run, 0), run.input(x), 1000, DType::bf16});
        };
        for (const Device& device : both_devices())
            EXPECT_FALSE(std::isfinite(run_on(device, op).at("scale").values[1]));
    }
}

TEST(Transpose8, MovesBytesAndTwiceIsTheIdentity) {
    for (const auto& [rows, columns] : {std::pair(int64_t(16), int64_t(16)), {96, 208}, {64, 128}}) {
        std::vector<uint8_t> bytes(size_t(rows * columns));
        std::mt19937 random(7);
        for (uint8_t& b : bytes) b = uint8_t(random());
        const auto op = [&, rows = rows, columns = columns](KernelRun& run) {
            const int64_t words = rows * columns / 4;
            uint8_t* once = run.out("once", words, DType::f32);
            transpose8(run.stream(), {once, run.values(bytes), rows, columns});
            transpose8(run.stream(), {run.out("twice", words, DType::f32), once, columns, rows});
        };
        for (const Device& device : both_devices()) {
            const auto got = run_on(device, op);
            EXPECT_EQ(got.at("twice").bytes, bytes);
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = 0; c < columns; ++c)
                    ASSERT_EQ(got.at("once").bytes[size_t(c * rows + r)], bytes[size_t(r * columns + c)]);
        }
    }
}

// More matrices than a thread block has threads; one rank's magnitude is not finite.
TEST(FoldScales, TheLargestOfTheRanksWinsAndNaNIsLargest) {
    constexpr int64_t kRanks = 11, kMatrices = 200;  // ranks: more than twice what a loop unrolled by four takes
    std::vector<Fp8Scale> parts;
    std::mt19937 random(5);
    for (int64_t i = 0; i < kRanks * kMatrices; ++i)
        parts.push_back({0, std::bit_cast<uint32_t>(float(random() % 1000) / 8), {0, 0}});
    parts[7] = {0, 0x7fc00000u, {0, 0}};
    const auto op = [&](KernelRun& run) {
        FoldScales a;
        a.scales = run.out("scales", 4 * kMatrices, DType::f32);
        a.parts = run.values(parts);
        a.ranks = kRanks, a.n = kMatrices, a.type = Fp8::e4m3;
        fold_scales(run.stream(), a);
    };
    compare_bytes_on_devices(op);
    const auto got = run_on(kCpu, op);
    const std::vector<double>& scales = got.at("scales").values;
    EXPECT_TRUE(std::isnan(scales[4 * 7]));
    for (size_t i = 8; i < size_t(kMatrices); ++i) {
        float most = 0;
        for (size_t r = 0; r < size_t(kRanks); ++r)
            most = std::max(most, std::bit_cast<float>(parts[r * size_t(kMatrices) + i].amax));
        ASSERT_EQ(float(scales[4 * i]), most > 0 ? 1 / (448 / most) : 1.0f);
    }
}

}  // namespace
}  // namespace rz::test
