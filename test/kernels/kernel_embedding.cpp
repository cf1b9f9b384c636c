// Embedding: CUDA kernels against the CPU op.
#include "kernels/embedding.h"
#include "test/kernels/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, C, V, hot;  // every token is below `hot`, but the last
    DType dtype, grad_dtype;

    ops::EmbeddingCase op() const {
        std::mt19937 generator(7);
        std::vector<int32_t> tokens(static_cast<size_t>(N));
        for (auto& t : tokens) t = int32_t(generator() % uint32_t(hot));
        tokens.back() = int32_t(V - 1);
        return {N, C, V, tokens, dtype, grad_dtype};
    }
};

class Embedding : public testing::TestWithParam<Case> {};

TEST_P(Embedding, ForwardMatchesCpu) {
    const ops::EmbeddingCase c = GetParam().op();
    compare_on_devices([&](KernelRun& run) { embedding_forward(run.stream(), c.forward(run)); });
}

TEST_P(Embedding, BackwardMatchesCpu) {
    const ops::EmbeddingCase c = GetParam().op();
    compare_on_devices([&](KernelRun& run) { embedding_backward(run.stream(), c.backward(run)); });
}

// A plan may be made longer by tokens that have no rows: nothing of theirs is read or written, and no bit changes.
TEST(EmbeddingPlan, TokensWithoutRowsChangeNothing) {
    const int64_t N = 20, C = 16, V = 9, most = 9;
    std::vector<int32_t> tokens, rows(size_t(20)), starts(size_t(21)), ids(size_t(20), 1 << 30);
    for (int64_t n = 0; n < N; ++n) tokens.push_back(int32_t(n * n % 5));
    const int64_t distinct = embedding_plan(tokens.data(), N, V, rows.data(), starts.data(), ids.data());
    ASSERT_LT(distinct, most);
    for (int64_t i = distinct; i < most; ++i) starts[size_t(i + 1)] = int32_t(N);
    const Data dx = normal(N * C, DType::bf16, 2);
    Data before = normal(V * C, DType::bf16, 3);
    for (int64_t c = 0; c < C; ++c) before.set(c, -0.0f);  // adding nothing would make it +0
    const auto with = [&](int64_t count) {
        return [&, count](KernelRun& run) {
            embedding_backward(run.stream(), {.dtable = run.inout("dtable", before),
                                              .dx = run.input(dx),
                                              .rows = run.values(rows),
                                              .starts = run.values(starts),
                                              .ids = run.values(ids),
                                              .distinct = count,
                                              .N = N,
                                              .C = C,
                                              .V = V,
                                              .dtype = DType::bf16,
                                              .grad_dtype = DType::bf16});
        };
    };
    for (const Device& device : both_devices())
        EXPECT_TRUE(run_on(device, with(most)).at("dtable").bytes == run_on(device, with(distinct)).at("dtable").bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Embedding,
    testing::Values(Case{1, 8, 3, 1, DType::bf16, DType::bf16},         // one token
                    Case{129, 576, 40, 40, DType::bf16, DType::f32},    //
                    Case{200, 33, 300, 2, DType::bf16, DType::f32},     // two hot tokens; scalars
                    Case{65, 6, 32003, 32003, DType::f32, DType::f32},  // nearly all distinct
                    Case{30, 4100, 9, 9, DType::f32, DType::f32},       // several slices of columns
                    Case{80, 8, 3, 1, DType::f32, DType::f32},          // from here on: a warp's row numbers,
                    Case{160, 200, 6, 2, DType::f16, DType::f16},       // fetched again, in every pair of types
                    Case{90, 64, 3, 2, DType::f16, DType::f32}, Case{90, 33, 3, 2, DType::f16, DType::f32},
                    Case{90, 33, 3, 2, DType::f16, DType::f16}, Case{90, 33, 3, 2, DType::bf16, DType::bf16},
                    Case{90, 64, 3, 2, DType::bf16, DType::bf16}, Case{90, 64, 3, 2, DType::bf16, DType::f32},
                    Case{90, 33, 70, 2, DType::f32, DType::f32}));

}  // namespace
}  // namespace rz::test
