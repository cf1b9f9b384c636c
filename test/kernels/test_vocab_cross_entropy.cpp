// Cross-entropy over a vocabulary that is cut into parts, on the CPU, against sums in double.
#include "kernels/vocab_cross_entropy.h"

#include <deque>

#include "test/kernels/double_ops.h"

namespace rz::test {
namespace {

struct Parts {
    std::vector<Doubles> gradients, losses;  // by part
};

// `cuts`: where the parts begin, and the end.
Parts run_parts(const Tensor& logits, int64_t N, const std::vector<int32_t>& targets, const std::vector<int64_t>& cuts,
                DType dtype, float scale) {
    const int64_t V = cuts.back(), parts = int64_t(cuts.size()) - 1;
    Parts out;
    const Doubles x = logits.values();
    const Tensor stats(parts * N * kVocabStats, DType::f32), loss(N, DType::f32);
    std::deque<Tensor> own;  // a Tensor does not move
    for (int64_t p = 0; p < parts; ++p) {
        Doubles columns;
        for (int64_t n = 0; n < N; ++n)
            columns.insert(columns.end(), x.begin() + n * V + cuts[size_t(p)], x.begin() + n * V + cuts[size_t(p) + 1]);
        own.emplace_back(columns, dtype);
        vocab_softmax_cpu({.stats = stats.as<float>() + p * N * kVocabStats,
                           .logits = own.back().data(),
                           .targets = targets.data(),
                           .N = N,
                           .V = cuts[size_t(p) + 1] - cuts[size_t(p)],
                           .first = cuts[size_t(p)],
                           .dtype = dtype});
    }
    for (int64_t p = 0; p < parts; ++p) {
        vocab_cross_entropy_cpu({.loss = loss.as<float>(),
                                 .logits = own[size_t(p)].data(),
                                 .stats = stats.as<float>(),
                                 .targets = targets.data(),
                                 .N = N,
                                 .V = cuts[size_t(p) + 1] - cuts[size_t(p)],
                                 .first = cuts[size_t(p)],
                                 .parts = parts,
                                 .vocab = V,
                                 .grad_scale = scale,
                                 .write_gradient = true,
                                 .dtype = dtype});
        out.losses.push_back(loss.values());
        out.gradients.push_back(own[size_t(p)].values());
    }
    return out;
}

// An exponential and a sum of V of them in fp32: below 2^-18 of a probability, then one rounding to dtype.
TEST(VocabCrossEntropy, EachPartHasTheWholeLossAndItsOwnGradient) {
    constexpr int64_t N = 9, V = 301;
    constexpr float kScale = 0.125f;
    std::vector<int32_t> targets;
    for (int64_t n = 0; n < N; ++n) targets.push_back(n == 4 ? kIgnoreTarget : int32_t(n * 37 % V));
    targets.back() = V - 1;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor logits = random_tensor(N * V, dtype, 5);
        const Doubles x = logits.values();
        for (const std::vector<int64_t>& cuts :
             {std::vector<int64_t>{0, V}, {0, 151, V}, {0, 101, 201, V}, {0, 1, 2, 300, V}}) {
            const Parts got = run_parts(logits, N, targets, cuts, dtype, kScale);
            for (int64_t n = 0; n < N; ++n) {
                const bool ignored = targets[size_t(n)] == kIgnoreTarget;
                double sum = 0;
                for (int64_t v = 0; v < V; ++v) sum += std::exp(x[size_t(n * V + v)]);
                const double loss = ignored ? 0 : std::log(sum) - x[size_t(n * V + targets[size_t(n)])];
                for (size_t p = 0; p + 1 < cuts.size(); ++p) {
                    ASSERT_NEAR(got.losses[p][size_t(n)], loss, 1e-5) << "row " << n << ", part " << p;
                    ASSERT_EQ(got.losses[p][size_t(n)], got.losses[0][size_t(n)]);
                    const int64_t columns = cuts[p + 1] - cuts[p];
                    for (int64_t v = 0; v < columns; ++v) {
                        const double probability = std::exp(x[size_t(n * V + cuts[p] + v)]) / sum;
                        const double want =
                            ignored ? 0 : (probability - (cuts[p] + v == targets[size_t(n)])) * double(kScale);
                        ASSERT_NEAR(got.gradients[p][size_t(n * columns + v)], want,
                                    std::abs(want) * (dtype == DType::f32 ? 1e-5 : 1.0 / 256) + kScale * 1e-6)
                            << "row " << n << ", column " << cuts[p] + v;
                    }
                }
            }
        }
    }
}

// A part whose logits are all masked adds nothing; an infinite loss and a NaN reach all parts.
TEST(VocabCrossEntropy, MaskedInfiniteAndNoNumbers) {
    constexpr int64_t V = 8;
    const double inf = std::numeric_limits<double>::infinity();
    std::vector<double> x;
    for (const double first : {-inf, -inf, 1.0})  // row 0: the target is elsewhere; row 1: it is masked
        for (int64_t v = 0; v < V; ++v) x.push_back(v < 4 ? first : double(v) / 8);
    x[2 * V + 1] = std::nan("");
    const Parts got = run_parts(Tensor(x, DType::f32), 3, {6, 2, 5}, {0, 4, V}, DType::f32, 1);
    double sum = 0;
    for (int64_t v = 4; v < V; ++v) sum += std::exp(double(v) / 8);
    for (const Doubles& loss : got.losses) {
        EXPECT_NEAR(loss[0], std::log(sum) - 6.0 / 8, 1e-6);
        EXPECT_EQ(loss[1], inf);
        EXPECT_TRUE(std::isnan(loss[2]));
    }
    for (int64_t v = 0; v < 4; ++v) EXPECT_NEAR(got.gradients[0][size_t(v)], 0, 1e-37);  // the smallest exp()
    EXPECT_TRUE(std::isnan(got.gradients[0][4 + 2])) << "an infinite loss has no finite gradient";
    for (int64_t v = 0; v < 4; ++v) EXPECT_TRUE(std::isnan(got.gradients[1][size_t(8 + v)]));
}

TEST(VocabCrossEntropy, RefusesATargetOutsideOfTheVocabulary) {
    EXPECT_THROW(run_parts(Tensor(std::vector<double>(4, 0.0), DType::f32), 1, {4}, {0, 2, 4}, DType::f32, 1), Error);
    EXPECT_THROW(run_parts(Tensor(std::vector<double>(4, 0.0), DType::f32), 1, {-1}, {0, 2, 4}, DType::f32, 1), Error);
}

}  // namespace
}  // namespace rz::test
