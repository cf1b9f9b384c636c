// Embedding: CUDA kernels against the CPU op.
#include "kernels/embedding.h"
#include "test/kernel_test.h"

namespace rz::test {
namespace {

struct Case {
    int64_t N, C, V, hot;  // every token is below `hot`
    DType dtype, grad_dtype;
};

std::vector<int32_t> draw_tokens(const Case& c) {
    std::mt19937 generator(7);
    std::vector<int32_t> tokens(size_t(c.N));
    for (auto& t : tokens) t = int32_t(generator() % uint32_t(c.hot));
    tokens.back() = int32_t(c.V - 1);
    return tokens;
}

class Embedding : public testing::TestWithParam<Case> {};

TEST_P(Embedding, Forward) {
    const Case c = GetParam();
    const Data table = normal(c.V * c.C, c.dtype, 1);
    const auto tokens = draw_tokens(c);
    const auto op = [&](KernelRun& run) {
        EmbeddingForward a;
        a.x = run.output("x", c.N * c.C, c.dtype);
        a.table = run.input(table);
        a.tokens = run.input<int32_t>(tokens);
        a.N = c.N, a.C = c.C, a.V = c.V, a.dtype = c.dtype;
        embedding_forward(run.stream(), a);
    };
    compare_on_devices(op, {});  // a copy
}

// A sum of r rows of a hot token: r roundings of a sum that stays below 5 sqrt(r), then one to grad_dtype.
TEST_P(Embedding, Backward) {
    const Case c = GetParam();
    const Data dx = normal(c.N * c.C, c.dtype, 2), before = normal(c.V * c.C, c.grad_dtype, 3);
    const auto tokens = draw_tokens(c);
    std::vector<int32_t> rows(size_t(c.N)), starts(size_t(c.N + 1)), ids(size_t(c.N));
    const int64_t distinct = embedding_plan(tokens.data(), c.N, c.V, rows.data(), starts.data(), ids.data());
    const auto op = [&](KernelRun& run) {
        EmbeddingBackward a;
        a.dtable = run.inout("dtable", before);
        a.dx = run.input(dx);
        a.rows = run.input<int32_t>(rows);
        a.starts = run.input<int32_t>(starts);
        a.ids = run.input<int32_t>(ids);
        a.distinct = distinct, a.N = c.N, a.C = c.C, a.V = c.V, a.dtype = c.dtype, a.grad_dtype = c.grad_dtype;
        embedding_backward(run.stream(), a);
    };
    const double r = double(c.N);
    compare_on_devices(op, {{"dtable", {ulp(c.grad_dtype), r * std::ldexp(5 * std::sqrt(r), -24)}}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Embedding,
                         testing::Values(Case{1, 8, 3, 1, DType::bf16, DType::bf16},         // one token
                                         Case{129, 576, 40, 40, DType::bf16, DType::f32},    //
                                         Case{200, 33, 300, 2, DType::bf16, DType::f32},     // two hot tokens; scalars
                                         Case{65, 6, 32003, 32003, DType::f32, DType::f32},  // nearly all distinct
                                         Case{30, 4100, 9, 9, DType::f32, DType::f32},  // several slices of columns
                                         Case{50, 64, 11, 11, DType::f16, DType::f16}));

}  // namespace
}  // namespace rz::test
