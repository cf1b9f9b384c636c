// Cross-entropy over parts of the vocabulary, and the embedding of one: CUDA kernels against the CPU ops.
#include "kernels/argmax.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, V, first, vocab;
    DType dtype;
};

class VocabCrossEntropyTest : public testing::TestWithParam<Case> {};

// Targets in the part, in others, at its ends, and none.
ops::LogitsCase with_targets(const Case& c) {
    std::mt19937 generator(3);
    std::vector<int32_t> targets(size_t(c.N));
    for (size_t n = 0; n < targets.size(); ++n)
        targets[n] = int32_t(n % 2 ? generator() % uint64_t(c.vocab) : c.first + int64_t(generator() % uint64_t(c.V)));
    targets.front() = int32_t(c.first);
    targets.back() = int32_t(c.first + c.V - 1);
    if (c.N > 2) targets[1] = kIgnoreTarget;
    return {c.N, c.V, targets, c.dtype, 1.0f / float(c.N), c.first, c.vocab};
}

TEST_P(VocabCrossEntropyTest, SoftmaxOfAPart) {
    const ops::LogitsCase c = with_targets(GetParam());
    compare_on_devices([&](KernelRun& run) { vocab_softmax(run.stream(), c.softmax_of_part(run)); });
}

TEST_P(VocabCrossEntropyTest, LossAndGradientOfAPart) {
    const ops::LogitsCase c = with_targets(GetParam());
    constexpr int64_t kParts = 11;  // more than twice what a loop unrolled by four takes
    std::vector<float> stats(size_t(kParts * c.N * kVocabStats));
    std::mt19937 generator(4);
    for (int64_t p = 0; p < kParts; ++p)
        for (int64_t n = 0; n < c.N; ++n) {
            float* s = stats.data() + (p * c.N + n) * kVocabStats;
            s[0] = p == 2 && n == 0 ? -INFINITY : 4 + float(generator() % 1000) / 250;
            s[1] = p == 2 && n == 0 ? 0 : 1 + float(generator() % 1000) / 10;
            const bool here = c.targets[size_t(n)] >= c.first && c.targets[size_t(n)] < c.first + c.V;
            s[2] = (here ? p == 1 : p == 0) ? 0.5f : 0.0f;
        }
    for (const auto& [gradient, z] : {std::pair(true, 0.0f), {true, 0.02f}, {false, 0.02f}}) {
        const auto op = [&, gradient = gradient, z = z](KernelRun& run) {
            VocabCrossEntropy a = c.loss_of_part(run, gradient, stats);
            a.loss_scale = run.values<float>({1.5f});
            a.z = z, a.z_loss = run.out({"z-loss", {c.kOfPart, 0}}, c.N, DType::f32);
            if (z == 0) run.stream().zero(a.z_loss, 4 * c.N);
            vocab_cross_entropy(run.stream(), a);
        };
        compare_on_devices(op);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, VocabCrossEntropyTest,
                         testing::Values(Case{1, 2, 0, 5, DType::f32}, Case{5, 259, 259, 777, DType::bf16},
                                         Case{4, 1000, 500, 1500, DType::f32}, Case{3, 777, 7, 800, DType::f16},
                                         // more than twice what 256 threads and a loop unrolled by four take
                                         Case{3, 2601, 1500, 4200, DType::bf16}, Case{3, 3001, 100, 4000, DType::f16},
                                         Case{3, 2601, 0, 2700, DType::f32}));

// Logits with many equal largest ones, cut into uneven parts: the likeliest token is that of the whole row, to the bit.
TEST(VocabArgmax, OfPartsIsThatOfTheWholeRow) {
    constexpr int64_t N = 70, V = 37, kParts = 11;  // more than twice what a loop unrolled by four takes
    const std::vector<int64_t> ends{0, 5, 8, 10, 13, 15, 17, 19, 21, 23, 25, V};
    Data logits = normal(N * V, DType::bf16, 9, 2);
    for (int64_t i = 0; i < logits.size(); ++i) logits.set(i, float(std::round(logits.at(i))));
    for (int64_t v = 0; v < V; ++v) logits.set(v, v < 25 ? -INFINITY : 1.0f);  // of one row only the last part
    std::vector<int32_t> targets(size_t(N), kIgnoreTarget);
    std::vector<int32_t> own;
    std::vector<float> stats;
    for (int64_t p = 0; p < kParts; ++p) {
        const int64_t first = ends[size_t(p)], columns = ends[size_t(p) + 1] - first;
        Data part = zeros(N * columns, DType::bf16);
        for (int64_t n = 0; n < N; ++n)
            for (int64_t v = 0; v < columns; ++v) part.set(n * columns + v, float(logits.at(n * V + first + v)));
        const auto op = [&](KernelRun& run) {
            argmax(run.stream(), {.best = run.out("best", N, DType::f32),
                                  .logits = run.input(part),
                                  .N = N,
                                  .V = columns,
                                  .dtype = DType::bf16,
                                  .first = first});
            vocab_softmax(run.stream(), {.stats = run.out("stats", N * kVocabStats, DType::f32),
                                         .logits = run.input(part),
                                         .targets = run.values(targets),
                                         .N = N,
                                         .V = columns,
                                         .first = first,
                                         .dtype = DType::bf16});
        };
        const KernelRun::Results r = run_on(kCpu, op);
        const auto best = r.at("best").as<int32_t>();
        const auto of_part = r.at("stats").as<float>();
        own.insert(own.end(), best.begin(), best.end());
        stats.insert(stats.end(), of_part.begin(), of_part.end());
    }
    const auto op = [&](KernelRun& run) {
        vocab_argmax(run.stream(), {.best = run.out("best", N, DType::f32),
                                    .own = run.values(own),
                                    .stats = run.values(stats),
                                    .N = N,
                                    .parts = kParts});
    };
    compare_on_devices(op, {{"best", {}}});
    const auto best = run_on(kCpu, op).at("best").as<int32_t>();
    for (int64_t n = 0; n < N; ++n) {
        std::vector<double> row;
        for (int64_t v = 0; v < V; ++v) row.push_back(logits.at(n * V + v));
        EXPECT_EQ(best[size_t(n)], std::max_element(row.begin(), row.end()) - row.begin()) << "row " << n;
    }
}

// Rows of tokens outside the part are zero, and their gradients are left out.
TEST(EmbeddingOfAPart, TakesItsOwnTokensOnly) {
    constexpr int64_t N = 70, V = 9, kVocab = 30;
    std::vector<int32_t> tokens;
    for (int64_t n = 0; n < N; ++n) tokens.push_back(int32_t(n * n % kVocab));
    for (const int64_t C : {24, 33})
        for (const int64_t first : {0, 11, 21}) {
            const ops::EmbeddingCase c{N, C, V, tokens, DType::bf16, DType::f32, first, kVocab};
            const Data table = normal(V * C, DType::bf16, 1), dx = normal(N * C, DType::bf16, 2);
            const Data before = normal(V * C, DType::f32, 3);
            const auto op = [&](KernelRun& run) {
                embedding_forward(run.stream(), c.forward(run));
                embedding_backward(run.stream(), c.backward(run));
            };
            compare_on_devices(op, {{"dtable", {ulp(DType::f32), 1e-5}}});
            const auto got = run_on(kCpu, op);
            for (int64_t n = 0; n < N; ++n) {
                const int64_t row = tokens[size_t(n)] - first;
                for (int64_t c = 0; c < C; ++c)
                    ASSERT_EQ(got.at("x").values[size_t(n * C + c)], row < 0 || row >= V ? 0 : table.at(row * C + c));
            }
            for (int64_t v = 0; v < V; ++v)
                for (int64_t c = 0; c < C; ++c) {
                    double want = before.at(v * C + c);
                    for (int64_t n = 0; n < N; ++n)
                        if (tokens[size_t(n)] == first + v) want += dx.at(n * C + c);
                    ASSERT_NEAR(got.at("dtable").values[size_t(v * C + c)], want, 1e-5);
                }
        }
}

}  // namespace
}  // namespace rz::test
