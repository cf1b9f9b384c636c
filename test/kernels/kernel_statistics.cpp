// Statistics of --stats-every: the CUDA kernels against the CPU ops, and those against plain double loops.
#include "kernels/statistics.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

// Empty segments, of one element, longer than a thread block; the run begins and ends inside a segment, and leaves the
// first and the last segment out.
const std::vector<int64_t> kBounds = {0, 3, 3, 4, 300, 301, 2600, 2999, 3100};
constexpr int64_t kFirst = 3, kN = 2900;

class SegmentSquaresTest : public testing::TestWithParam<std::pair<DType, bool>> {};

// A difference of two values and its square are exact or rounded once in double; the sum of up to 2,300 of them, in
// another order, differs by at most 2300 * 2^-53 of itself, as all terms are positive.
TEST_P(SegmentSquaresTest, EachSegmentsSumMatchesCpuAndDouble) {
    const auto [dtype, subtracts] = GetParam();
    const Data x = normal(kN, dtype, 1), minus = normal(kN, dtype, 2);
    const int64_t segments = int64_t(kBounds.size()) - 1;
    const auto op = [&, dtype = dtype, subtracts = subtracts](KernelRun& run) {
        SegmentSquares a;
        a.sums = run.inout_f64("sums", std::vector<double>(size_t(segments), 0.5));
        a.x = run.input(x);
        if (subtracts) a.minus = run.input(minus);
        a.bounds = run.values(kBounds);
        a.segments = segments;
        a.first = kFirst, a.n = kN;
        a.dtype = dtype;
        segment_squares(run.stream(), a);
    };
    const double tolerance = 2300 * std::ldexp(1.0, -53);
    const auto on_cpu = run_on(kCpu, op);
    for (size_t s = 0; s < size_t(segments); ++s) {
        double want = 0.5;
        for (int64_t i = std::max(kBounds[s], kFirst); i < std::min(kBounds[s + 1], kFirst + kN); ++i) {
            const double d = x.at(i - kFirst) - (subtracts ? minus.at(i - kFirst) : 0);
            want += d * d;
        }
        EXPECT_NEAR(on_cpu.at("sums").values[s], want, tolerance * want) << "segment " << s;
    }
    compare_on_devices(op, {{"sums", {tolerance, 0}}});
}

INSTANTIATE_TEST_SUITE_P(Types, SegmentSquaresTest,
                         testing::Values(std::pair(DType::f32, false), std::pair(DType::f32, true),
                                         std::pair(DType::bf16, false), std::pair(DType::bf16, true),
                                         std::pair(DType::f16, false), std::pair(DType::f16, true)));

// All terms of the sum are positive, 9,001 at most; the maximum is exact, and its quotient is rounded once.
TEST(BlockStatistics, MeanSquaresAndTheLargestLogitMatchCpuAndDouble) {
    constexpr float kEps = 1e-5f, kSharpness = 1024;
    for (const int64_t rows : {1, 33, 9001}) {
        Data rstd = normal(rows, DType::f32, 3), lse = normal(2 * rows, DType::f32, 4, 5000);
        for (int64_t r = 0; r < rows; ++r) rstd.set(r, 0.5f + std::abs(float(rstd.at(r))));
        lse.set(rows / 2, -INFINITY);
        const auto op = [&](KernelRun& run) {
            BlockStatistics a;
            a.squares = run.inout_f64("squares", {2});
            a.largest = run.inout("largest", raw(std::vector<float>{-3}));
            a.rstd = run.input(rstd);
            a.lse = run.input(lse);
            a.rows = rows, a.count = 2 * rows;
            a.eps = kEps, a.sharpness = kSharpness;
            block_statistics(run.stream(), a);
        };
        double squares = 2, largest = -3;
        for (int64_t r = 0; r < rows; ++r) squares += 1 / (rstd.at(r) * rstd.at(r)) - double(kEps);
        for (int64_t i = 0; i < 2 * rows; ++i) largest = std::max(largest, lse.at(i) / double(kSharpness));
        const double tolerance = 9001 * std::ldexp(1.0, -52);
        const auto on_cpu = run_on(kCpu, op);
        EXPECT_NEAR(on_cpu.at("squares").values[0], squares, tolerance * squares);
        EXPECT_FLOAT_EQ(float(on_cpu.at("largest").values[0]), float(largest));
        compare_on_devices(op, {{"squares", {tolerance, 0}}, {"largest", {ulp(DType::f32), 0}}});
    }
}

}  // namespace
}  // namespace rz::test
