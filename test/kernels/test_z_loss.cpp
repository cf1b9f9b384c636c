// z-loss of both cross-entropies, against torch's autograd.
#include "kernels/vocab_cross_entropy.h"
#include "test/kernels/double_ops.h"
#include "test/kernels/z_loss_golden.h"

namespace rz::test {
namespace {

Doubles golden(const double (&x)[z_loss_golden::kN * z_loss_golden::kV]) { return Doubles(std::begin(x), std::end(x)); }

// In fp32 the exponentials of 19 logits and their sum: below 2^-18 of a probability, whose weight here is below 1.6.
void expect_golden(const Tensor& loss, const Tensor& z_loss, const Doubles& gradient, int64_t first, int64_t columns) {
    using namespace z_loss_golden;
    for (int64_t n = 0; n < kN; ++n) {
        EXPECT_NEAR(loss.values()[size_t(n)], kLosses[n], 1e-5) << "row " << n;
        EXPECT_NEAR(z_loss.values()[size_t(n)], kZLosses[n], 1e-5 * kZLosses[n]) << "row " << n;
        for (int64_t v = 0; v < columns; ++v)
            EXPECT_NEAR(gradient[size_t(n * columns + v)], kGradients[n * kV + first + v], 1e-6) << "row " << n;
    }
}

TEST(ZLoss, IsTorchs) {
    using namespace z_loss_golden;
    const Tensor logits(golden(kLogits), DType::f32), loss(kN, DType::f32), z_loss(kN, DType::f32);
    const std::string before = logits.bits();
    CrossEntropy a{.loss = loss.as<float>(),
                   .logits = logits.data(),
                   .targets = kTargets,
                   .N = kN,
                   .V = kV,
                   .grad_scale = kScale,
                   .write_gradient = false,
                   .dtype = DType::f32,
                   .z = kZ,
                   .z_loss = z_loss.as<float>()};
    cross_entropy_cpu(a);
    EXPECT_EQ(logits.bits(), before) << "no gradient was asked for";
    a.write_gradient = true;
    cross_entropy_cpu(a);
    expect_golden(loss, z_loss, logits.values(), 0, kV);
}

TEST(ZLoss, OfAVocabularyInPartsIsTorchs) {
    using namespace z_loss_golden;
    constexpr int64_t kCuts[] = {0, 7, 12, kV}, kParts = 3;
    const Tensor stats(kParts * kN * kVocabStats, DType::f32);
    const auto columns_of = [&](int64_t p) {
        Doubles out;
        for (int64_t n = 0; n < kN; ++n)
            out.insert(out.end(), kLogits + n * kV + kCuts[p], kLogits + n * kV + kCuts[p + 1]);
        return out;
    };
    for (int64_t p = 0; p < kParts; ++p) {
        const Tensor own(columns_of(p), DType::f32);
        vocab_softmax_cpu({.stats = stats.as<float>() + p * kN * kVocabStats,
                           .logits = own.data(),
                           .targets = kTargets,
                           .N = kN,
                           .V = kCuts[p + 1] - kCuts[p],
                           .first = kCuts[p],
                           .dtype = DType::f32});
    }
    for (int64_t p = 0; p < kParts; ++p) {
        const int64_t columns = kCuts[p + 1] - kCuts[p];
        const Tensor own(columns_of(p), DType::f32), loss(kN, DType::f32), z_loss(kN, DType::f32);
        vocab_cross_entropy_cpu({.loss = loss.as<float>(),
                                 .logits = own.data(),
                                 .stats = stats.as<float>(),
                                 .targets = kTargets,
                                 .N = kN,
                                 .V = columns,
                                 .first = kCuts[p],
                                 .parts = kParts,
                                 .vocab = kV,
                                 .grad_scale = kScale,
                                 .write_gradient = true,
                                 .dtype = DType::f32,
                                 .z = kZ,
                                 .z_loss = z_loss.as<float>()});
        expect_golden(loss, z_loss, own.values(), kCuts[p], columns);
    }
}

}  // namespace
}  // namespace rz::test
