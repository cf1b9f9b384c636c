// Joining attention over two sets of keys: the CUDA kernel against the CPU op, and the CPU op against double.
#include "kernels/attention/attention_merge.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t B, T, H, D, gap;
    DType dtype;
    bool first = false;
};

class AttentionMergeTest : public testing::TestWithParam<Case> {};

TEST_P(AttentionMergeTest, OutputsAreWeightedByTheirSumsOfExponentials) {
    const Case c = GetParam();
    const int64_t batch = c.T * c.H * c.D + c.gap, n = c.B * batch, rows = c.B * c.H * c.T;
    const Data o = normal(n, DType::f32, 1), part = normal(n, c.dtype, 2);
    Data lse = normal(rows, DType::f32, 3, 3), part_lse = normal(rows, DType::f32, 4, 3);
    for (int64_t i = 0; i < rows; i += 5) part_lse.set(i, -INFINITY);  // parts, and sums so far, that see no key
    for (int64_t i = 1; i < rows; i += 7) lse.set(i, -INFINITY);
    const auto op = [&](KernelRun& run) {
        attention_merge(run.stream(), {.o = run.inout("o", o, ops::AttentionCase::kMerged),
                                       .lse = run.inout("lse", lse, ops::AttentionCase::kMergedLse),
                                       .part_o = run.input(part),
                                       .part_lse = run.input(part_lse),
                                       .B = c.B,
                                       .T = c.T,
                                       .H = c.H,
                                       .D = c.D,
                                       .o_batch = batch,
                                       .part_batch = batch,
                                       .first = c.first,
                                       .dtype = c.dtype});
    };
    const double bound = ops::AttentionCase::kMerged.absolute;
    const auto cpu = run_on(kCpu, op);
    for (int64_t b = 0; b < c.B; ++b)
        for (int64_t t = 0; t < c.T; ++t)
            for (int64_t h = 0; h < c.H; ++h) {
                const int64_t row = (b * c.H + h) * c.T + t;
                const double old = c.first ? 0 : std::exp(lse.at(row)), fresh = std::exp(part_lse.at(row));
                const double got = cpu.at("lse").values[size_t(row)];
                if (old + fresh > 0)
                    ASSERT_NEAR(got, std::log(old + fresh), bound * (1 + std::abs(got)));
                else
                    ASSERT_EQ(got, -INFINITY);
                for (int64_t d = 0; d < c.D; ++d) {
                    const int64_t at = b * batch + (t * c.H + h) * c.D + d;
                    const double want = c.first            ? part.at(at)
                                        : old + fresh == 0 ? o.at(at)
                                                           : (old * o.at(at) + fresh * part.at(at)) / (old + fresh);
                    ASSERT_NEAR(cpu.at("o").values[size_t(at)], want, bound);
                }
            }
    compare_on_devices(op);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionMergeTest,
                         testing::Values(Case{1, 1, 1, 2, 0, DType::f32}, Case{2, 7, 3, 64, 128, DType::bf16},
                                         Case{2, 5, 2, 80, 0, DType::f16}, Case{1, 33, 2, 6, 3, DType::f32},
                                         Case{2, 9, 2, 128, 0, DType::bf16, true},
                                         // more than twice what a warp and a loop unrolled by four take
                                         Case{1, 3, 2, 301, 0, DType::f32}, Case{1, 3, 2, 301, 0, DType::f32, true},
                                         Case{1, 3, 2, 301, 0, DType::bf16}, Case{1, 3, 2, 301, 0, DType::bf16, true},
                                         Case{1, 3, 2, 301, 0, DType::f16}, Case{1, 3, 2, 301, 0, DType::f16, true}));

}  // namespace
}  // namespace rz::test
