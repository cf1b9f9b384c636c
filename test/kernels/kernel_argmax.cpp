// Argmax of rows: the CUDA kernel against the CPU op, to the bit; the CPU op against std::max_element.
#include "kernels/argmax.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, V;
    DType dtype;
};

std::vector<int32_t> check(const Data& logits, int64_t N, int64_t V) {
    const auto op = [&](KernelRun& run) {
        argmax(run.stream(), {.best = run.out("best", N, DType::f32),
                              .logits = run.input(logits),
                              .N = N,
                              .V = V,
                              .dtype = logits.dtype});
    };
    std::vector<int32_t> cpu = run_on(kCpu, op).at("best").as<int32_t>();
    if (cuda_device_count() > 0) {
        EXPECT_EQ(run_on(kGpu, op).at("best").as<int32_t>(), cpu);
    }
    return cpu;
}

class ArgmaxTest : public testing::TestWithParam<Case> {};

TEST_P(ArgmaxTest, IsTheFirstLargest) {
    const Case c = GetParam();
    // Few values, so that most rows have several equal ones.
    Data logits = normal(c.N * c.V, c.dtype, 1, 2);
    for (int64_t i = 0; i < logits.size(); ++i) logits.set(i, float(std::round(logits.at(i))));
    const std::vector<int32_t> best = check(logits, c.N, c.V);
    for (int64_t n = 0; n < c.N; ++n) {
        std::vector<double> row;
        for (int64_t v = 0; v < c.V; ++v) row.push_back(logits.at(n * c.V + v));
        EXPECT_EQ(best[size_t(n)], std::max_element(row.begin(), row.end()) - row.begin()) << "row " << n;
    }
}

TEST(Argmax, InfinitiesAndNaN) {
    const int64_t V = 70;
    Data logits = normal(5 * V, DType::f32, 2);
    for (int64_t v = 0; v < V; ++v) logits.set(v, -INFINITY);
    for (int64_t v = 0; v < V; ++v) logits.set(V + v, NAN);
    logits.set(2 * V + 69, INFINITY);
    logits.set(3 * V + 0, NAN);
    logits.set(3 * V + 41, 100);
    for (int64_t v = 0; v < V; ++v) logits.set(4 * V + v, v == 33 ? -INFINITY : NAN);
    const std::vector<int32_t> want{0, 0, 69, 41, 33};
    EXPECT_EQ(check(logits, 5, V), want);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ArgmaxTest,
                         testing::Values(Case{1, 1, DType::f32}, Case{3, 257, DType::bf16}, Case{4, 1000, DType::f32},
                                         Case{2, 32003, DType::f16}, Case{2, 3001, DType::f32},
                                         Case{2, 3003, DType::bf16}));

}  // namespace
}  // namespace rz::test
