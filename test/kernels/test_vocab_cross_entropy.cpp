// Cross-entropy over a vocabulary that is cut into parts, on the CPU, against sums in double; z-loss of both
// cross-entropies against torch's autograd.
#include "test/kernels/double_ops.h"
#include "test/kernels/z_loss_golden.h"

namespace rz::test {
namespace {

struct Parts {
    std::vector<Doubles> gradients, losses, z_losses;  // by part
};

// `cuts`: where the parts begin, and the end.
Parts run_parts(const Doubles& logits, int64_t N, const std::vector<int32_t>& targets, const std::vector<int64_t>& cuts,
                DType dtype, float scale, float z = 0) {
    const int64_t V = cuts.back(), parts = int64_t(cuts.size()) - 1;
    CpuTensors t;
    float* const stats = t.scratch(4 * parts * N * kVocabStats);
    const std::vector<float> of_all(size_t(parts * N * kVocabStats));
    std::vector<VocabCrossEntropy> own;
    for (int64_t p = 0; p < parts; ++p) {
        const int64_t first = cuts[size_t(p)], columns = cuts[size_t(p) + 1] - first;
        const ops::LogitsCase c{N, columns, targets, dtype, scale, first, V};
        VocabCrossEntropy a = c.loss_of_part(t, /*gradient=*/true, of_all);
        Doubles part;
        for (int64_t n = 0; n < N; ++n)
            part.insert(part.end(), logits.begin() + n * V + first, logits.begin() + n * V + first + columns);
        memcpy(a.logits, Tensor(part, dtype).data(), size_t(N * columns * size_of(dtype)));
        a.stats = stats, a.z = z, a.z_loss = t.out("z-loss", N, DType::f32);
        VocabSoftmax softmax = c.softmax_of_part(t);
        softmax.logits = a.logits, softmax.stats = stats + p * N * kVocabStats;
        vocab_softmax_cpu(softmax);
        own.push_back(a);
    }
    Parts out;
    for (const VocabCrossEntropy& a : own) {
        vocab_cross_entropy_cpu(a);
        out.losses.push_back(values_of(a.loss, N, DType::f32));
        out.z_losses.push_back(values_of(a.z_loss, N, DType::f32));
        out.gradients.push_back(values_of(a.logits, N * a.V, dtype));
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
            const Parts got = run_parts(x, N, targets, cuts, dtype, kScale);
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
    const Parts got = run_parts(x, 3, {6, 2, 5}, {0, 4, V}, DType::f32, 1);
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
    EXPECT_THROW(run_parts(Doubles(4, 0.0), 1, {4}, {0, 2, 4}, DType::f32, 1), Error);
    EXPECT_THROW(run_parts(Doubles(4, 0.0), 1, {-1}, {0, 2, 4}, DType::f32, 1), Error);
}

// ---- z-loss ---------------------------------------------------------------------------------------------------------

const std::vector<int32_t> kGoldenTargets(std::begin(z_loss_golden::kTargets), std::end(z_loss_golden::kTargets));
const Doubles kGoldenLogits(std::begin(z_loss_golden::kLogits), std::end(z_loss_golden::kLogits));

// In fp32 the exponentials of 19 logits and their sum: below 2^-18 of a probability, whose weight here is below 1.6.
void expect_golden(const Doubles& loss, const Doubles& z_loss, const Doubles& gradient, int64_t first,
                   int64_t columns) {
    using namespace z_loss_golden;
    for (int64_t n = 0; n < kN; ++n) {
        EXPECT_NEAR(loss[size_t(n)], kLosses[n], 1e-5) << "row " << n;
        EXPECT_NEAR(z_loss[size_t(n)], kZLosses[n], 1e-5 * kZLosses[n]) << "row " << n;
        for (int64_t v = 0; v < columns; ++v)
            EXPECT_NEAR(gradient[size_t(n * columns + v)], kGradients[n * kV + first + v], 1e-6) << "row " << n;
    }
}

TEST(ZLoss, IsTorchs) {
    using namespace z_loss_golden;
    const Tensor logits(kGoldenLogits, DType::f32), z_loss(kN, DType::f32);
    const std::string before = logits.bits();
    CpuTensors t;
    CrossEntropy a = ops::LogitsCase{kN, kV, kGoldenTargets, DType::f32, kScale}.loss(t, /*gradient=*/false);
    a.logits = logits.data(), a.z = kZ, a.z_loss = z_loss.as<float>();
    cross_entropy_cpu(a);
    EXPECT_EQ(logits.bits(), before) << "no gradient was asked for";
    a.write_gradient = true;
    cross_entropy_cpu(a);
    expect_golden(values_of(a.loss, kN, DType::f32), z_loss.values(), logits.values(), 0, kV);
}

TEST(ZLoss, OfAVocabularyInPartsIsTorchs) {
    using namespace z_loss_golden;
    const std::vector<int64_t> cuts{0, 7, 12, kV};
    const Parts got = run_parts(kGoldenLogits, kN, kGoldenTargets, cuts, DType::f32, kScale, kZ);
    for (size_t p = 0; p < 3; ++p)
        expect_golden(got.losses[p], got.z_losses[p], got.gradients[p], cuts[p], cuts[p + 1] - cuts[p]);
}

}  // namespace
}  // namespace rz::test
