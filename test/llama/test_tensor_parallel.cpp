// Tensor and sequence parallelism on ranks that are threads: against exact sums of integers, Hugging Face's stored
// numbers, one rank, and the formula of its bytes.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "comm/loopback.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/fp8/quantise.h"
#include "kernels/gemm/gemm.h"
#include "llama/base/safetensors.h"
#include "llama/model/hf.h"
#include "llama/model/linear.h"
#include "llama/model/linear_fp8.h"
#include "llama/train/train_state.h"
#include "test/llama/layout_runs.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

using namespace layout_runs;

// ---- the axis' own operations ---------------------------------------------------------------------------------------

// The ranks of a tp axis alone. Calls body(rank, mesh, compute stream, tp).
template <class Body>
void on_tp_ranks(int ranks, DType wire, const Body& body) {
    LoopbackHub hub(ranks);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.tp = ranks}});
        Stream compute(kCpu, "compute");
        TensorParallel tp(mesh, wire);
        body(rank, mesh, compute, tp);
    });
}

int64_t first_row(int64_t rows, int rank, int ranks) { return even_offsets(rows, ranks)[size_t(rank)]; }

float small_integer(int64_t i) { return float(i * 7 % 17 - 8); }

TEST(TensorParallel, RowsAreGatheredAndPartialSumsScatteredExactly) {
    constexpr int64_t C = 8;
    for (const int ranks : {2, 3, 4})
        for (const int64_t N : {12, 13, 7}) {
            on_tp_ranks(ranks, DType::f32, [&](int rank, Mesh& mesh, Stream& compute, TensorParallel& tp) {
                const int64_t R = tp.rows(N), first = first_row(N, rank, ranks);
                std::vector<float> own(size_t(R * C)), all(size_t(N * C)), partial(all), sum(own);
                for (int64_t i = 0; i < R * C; ++i) own[size_t(i)] = small_integer(first * C + i);
                tp.gather(compute, all.data(), own.data(), N, C, DType::f32);
                for (int64_t i = 0; i < N * C; ++i) partial[size_t(i)] = small_integer(i) * float(rank + 1);
                tp.scatter(compute, sum.data(), partial.data(), N, C, DType::f32);
                compute.synchronize();
                for (int64_t i = 0; i < N * C; ++i) ASSERT_EQ(all[size_t(i)], small_integer(i));
                for (int64_t i = 0; i < R * C; ++i)
                    ASSERT_EQ(sum[size_t(i)], small_integer(first * C + i) * float(ranks * (ranks + 1) / 2));
                EXPECT_EQ(mesh.tp().transport().bytes_sent(),
                          tp.gather_bytes(N, C, DType::f32) + tp.scatter_bytes(N, C));
            });
        }
}

// Pairs of four ranks, and all of them, and values whose sum depends on the order: the same bits on all holders.
TEST(TensorParallel, WhatSeveralHoldIsSummedOverThem) {
    constexpr int64_t n = 1001;
    for (const int holders : {2, 4}) {
        std::vector<std::vector<float>> values(4, std::vector<float>(size_t(n)));
        for (int r = 0; r < 4; ++r)
            for (int64_t i = 0; i < n; ++i)
                values[size_t(r)][size_t(i)] = small_integer(i * 3 + r) * std::ldexp(1.0f, int((i + 5 * r) % 23));
        std::vector<std::vector<float>> sums = values;
        on_tp_ranks(4, DType::f32, [&](int rank, Mesh& mesh, Stream& compute, TensorParallel& tp) {
            const Replicated r{1, n - 1, rank / holders * holders, holders};
            tp.sum(compute, sums[size_t(rank)].data(), r, DType::f32);
            compute.wait(mesh.stream().record());
            compute.synchronize();
            EXPECT_EQ(mesh.tp().transport().bytes_sent(), tp.sum_bytes(r, DType::f32));
        });
        for (int rank = 0; rank < 4; ++rank) {
            EXPECT_EQ(sums[size_t(rank)][0], values[size_t(rank)][0]) << "outside of the range";
            for (int64_t i = 1; i < n; ++i) {
                float want = values[size_t(rank / holders * holders)][size_t(i)];
                for (int k = 1; k < holders; ++k) want += values[size_t(rank / holders * holders + k)][size_t(i)];
                ASSERT_EQ(sums[size_t(rank)][size_t(i)], want);
            }
        }
    }
}

// Each rank quantises its rows; what is gathered, in pairs, are the codes of a rank that has all of them. The largest
// number lies on one rank only, and once it is no number.
TEST(TensorParallel, RowsHaveTheCodesOfAllRows) {
    constexpr int64_t N = 13, C = 32;
    for (const int ranks : {2, 3, 4})
        for (const float largest : {77.0f, float(NAN)}) {
            std::vector<float> x(size_t(N * C));
            for (size_t i = 0; i < x.size(); ++i) x[i] = small_integer(int64_t(i)) * std::ldexp(1.0f, -int(i / 64));
            x[size_t(C + 3)] = largest;
            std::vector<uint8_t> want(x.size());
            Fp8Scale scale{};
            abs_max_cpu({&scale, x.data(), N * C, DType::f32});
            quantise_cpu({want.data(), nullptr, &scale, x.data(), N, C, Fp8::e4m3, DType::f32});
            on_tp_ranks(ranks, DType::f32, [&](int rank, Mesh& mesh, Stream& s, const TensorParallel& tp) {
                const int64_t R = tp.rows(N), first = first_row(N, rank, ranks);
                Buffer own(kCpu, R * C, MemKind::workspace, "codes"), all(kCpu, N * C, MemKind::workspace, "all codes");
                Fp8Scale mine{};
                std::vector<Fp8Scale> parts(static_cast<size_t>(ranks));
                const Buffer rows(kCpu, R * C * 4, MemKind::workspace, "rows");
                std::memcpy(rows.data(), x.data() + first * C, size_t(R * C * 4));
                abs_max(s, {.scale = &mine, .x = rows.data(), .n = R * C, .dtype = DType::f32});
                tp.share_magnitude(s, &mine, parts.data(), Fp8::e4m3);
                quantise(s, {.y = own.as<uint8_t>(),
                             .scale = &mine,
                             .x = rows.data(),
                             .rows = R,
                             .columns = C,
                             .type = Fp8::e4m3,
                             .dtype = DType::f32});
                tp.gather(s, all.data(), own.data(), N, C / 2, DType::bf16);
                s.synchronize();
                EXPECT_EQ(mine.amax, scale.amax);
                EXPECT_EQ(std::memcmp(&mine.inverse, &scale.inverse, 4), 0);
                EXPECT_EQ(std::memcmp(all.data(), want.data(), want.size()), 0) << ranks << " ranks, " << largest;
                EXPECT_EQ(mesh.tp().transport().bytes_sent(),
                          tp.magnitude_bytes() + tp.gather_bytes(N, C / 2, DType::bf16));
            });
        }
}

// ---- products and the embedding, exactly ----------------------------------------------------------------------------

float weight(int tensor, int64_t element) { return float((element * 5 + tensor) % 7 - 3); }

// A rank's part of each tensor, of small integers, in the order of the local buffer.
std::vector<float> integer_weights(const ParamTable& table) {
    const UnitLayout& last = table.held_units().back();
    std::vector<float> w(size_t(last.offset + last.padded), 0.0f);
    table.for_each_run(0, int64_t(w.size()), INT64_MAX, [&](const TensorRun& run) {
        for (int64_t i = 0; i < run.count; ++i) w[size_t(run.local + i)] = weight(run.tensor, run.first + i);
    });
    return w;
}

// x W^T of a whole tensor, in integers.
int64_t product(const std::vector<float>& x, int64_t row, const ParamTable& table, const Tensor& t, int64_t out) {
    const int64_t in = t.shape[1];
    int64_t sum = 0;
    for (int64_t i = 0; i < in; ++i)
        sum += int64_t(x[size_t(row * in + i)]) * int64_t(weight(int(&t - table.tensors().data()), out* in + i));
    return sum;
}

// Every sum stays below 2^24, so each order of it is exact: gathered rows times a part of the outputs, and a part of
// the inputs times their weights, added over the ranks.
TEST(TensorParallel, ProductsOfIntegersAreExact) {
    constexpr int64_t N = 13;
    const ModelConfig config = toy(3);
    for (const int ranks : {2, 3, 4}) {
        on_tp_ranks(ranks, DType::f32, [&](int rank, Mesh&, Stream& s, TensorParallel& tp) {
            const ParamTable table(config, {.part = rank, .parts = ranks});
            const std::vector<float> w = integer_weights(table);
            const int64_t R = tp.rows(N), first = first_row(N, rank, ranks);

            const Tensor& up = table.block(1, kUp);
            const TensorShard rows = table.held()[size_t(&up - table.tensors().data())];
            std::vector<float> x(size_t(N * config.dim)), all(x), y(size_t(N * rows.rows));
            for (size_t i = 0; i < x.size(); ++i) x[i] = small_integer(int64_t(i));
            tp.gather(s, all.data(), x.data() + first * config.dim, N, config.dim, DType::f32);
            linear(s, y.data(), all.data(), w.data() + rows.local, N, config.dim, rows.rows, DType::f32, DType::f32);
            s.synchronize();
            for (int64_t n = 0; n < N; ++n)
                for (int64_t i = 0; i < rows.rows; ++i)
                    ASSERT_EQ(y[size_t(n * rows.rows + i)],
                              float(product(x, n, table, up, rows.first / config.dim + i)));

            const Tensor& down = table.block(0, kDown);
            const TensorShard cols = table.held()[size_t(&down - table.tensors().data())];
            std::vector<float> h(size_t(N * config.ffn)), own(size_t(N * cols.cols)), partial(size_t(N * config.dim)),
                sum(size_t(R * config.dim));
            for (size_t i = 0; i < h.size(); ++i) h[i] = small_integer(int64_t(i) * 3);
            for (int64_t n = 0; n < N; ++n)
                for (int64_t i = 0; i < cols.cols; ++i)
                    own[size_t(n * cols.cols + i)] = h[size_t(n * config.ffn + cols.first + i)];
            linear(s, partial.data(), own.data(), w.data() + cols.local, N, cols.cols, config.dim, DType::f32,
                   DType::f32);
            tp.scatter(s, sum.data(), partial.data(), N, config.dim, DType::f32);
            s.synchronize();
            for (int64_t n = 0; n < R; ++n)
                for (int64_t i = 0; i < config.dim; ++i)
                    ASSERT_EQ(sum[size_t(n * config.dim + i)], float(product(h, first + n, table, down, i)));
        });
    }
}

TEST(TensorParallel, TheEmbeddingOfAnyVocabularyIsExact) {
    constexpr int64_t B = 1, T = 13;
    const ModelConfig config = toy(3);
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < T; ++t) tokens.push_back(int32_t(t * 3));  // 0 to 36, the last of the vocabulary
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const DType wire : {dtype, DType::f32})
            for (const int ranks : {2, 3, 4}) {
                on_tp_ranks(ranks, wire, [&](int rank, Mesh&, Stream& s, TensorParallel& tp) {
                    const ParamTable table(config, {.part = rank, .parts = ranks});
                    ResidentParameters parameters(kCpu, s, unit_layouts(table), dtype);
                    s.synchronize();
                    table.for_each_run(0, table.held_units()[0].padded, INT64_MAX, [&](const TensorRun& run) {
                        with_dtype(dtype, [&]<class E>() {
                            for (int64_t i = 0; i < run.count; ++i)
                                reinterpret_cast<E*>(parameters.bytes(0))[run.local + i] = E(weight(0, run.first + i));
                        });
                    });
                    const StageOptions options{.B = B, .T = T, .dtype = dtype, .grad_dtype = dtype, .tp = &tp};
                    Workspace work(config, table, options, false, kCpu, s);
                    Stage stage(config, table, options, 0, 1, 1, 0, kCpu, s, work, parameters, nullptr);
                    stage.forward(0, 0, {B, T, tokens.data(), tokens.data()}, {.pass = Pass::loss});
                    s.synchronize();
                    const int64_t first = first_row(T, rank, ranks);
                    with_dtype(dtype, [&]<class E>() {
                        const E* x = static_cast<const E*>(stage.input(0));
                        for (int64_t i = 0; i < tp.rows(T) * config.dim; ++i)
                            ASSERT_EQ(float(x[i]),
                                      weight(0, tokens[size_t(first + i / config.dim)] * config.dim + i % config.dim));
                    });
                });
            }
}

// ---- a model on a tp x dp grid (test_layouts.cpp has how it trains) -------------------------------------------------

// DualPipe's two copies of a unit are added after each is summed over tp, however late that is.
TEST(TensorParallelModel, CopiesOfAUnitWaitForItsSumOverTp) {
    ModelConfig config = toy(2);
    config.layers = 4;
    LoopbackHub hub(4);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.tp = 2, .pp = 2}});
        TrainState core(config,
                        {.zero = {},
                         .adamw = {},
                         .stage = {.B = 1, .T = kT},
                         .micro_batches = 4,
                         .threads = 1,
                         .pipeline = {.schedule = {.kind = PipelineKind::dualpipe}}},
                        hub.device(rank), mesh);
        const std::vector<std::vector<Replicated>> replicated = replicated_elements(core.table);
        const std::vector<UnitLayout>& held = core.table.held_units();
        ASSERT_EQ(core.units.shared().size(), held.size());
        for (size_t u = 0; u < held.size(); ++u) {
            const int unit = core.units.shared()[u];
            const std::vector<float> own(size_t(held[u].padded), float(rank + 1));
            float* gradients = static_cast<float*>(core.units.gradients(unit));
            core.compute.copy(gradients, own.data(), int64_t(own.size()) * 4);
            mesh.stream().enqueue_host([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
            core.units.reduce(unit, true);
            core.compute.synchronize();
            // Ranks 0 and 1 are one stage, 2 and 3 the other; rank's copy is on rank + 2.
            std::vector<float> want(own.size(), mesh.place(Axis::tp).rank == 0 ? 1 + 3 : 2 + 4);
            for (const Replicated& r : replicated[u])
                std::fill_n(want.begin() + r.begin, r.count, float(1 + 2 + 3 + 4));
            EXPECT_EQ(std::vector<float>(gradients, gradients + own.size()), want) << "unit " << unit;
        }
    });
}

// Bytes on the tp axis of 20 steps of one micro-batch of 11 tokens in bf16, counted by hand: in each of the two blocks
// 2 gathers and 2 scatters forward, 4 and 2 backward; the embedding a scatter and a gather; the head one each and three
// floats a token; the gradients of five norms, and of keys and values where two ranks hold a head.
int64_t tp_bytes_by_hand(int tp, int rank, int64_t wire_bytes) {
    const int64_t rows = 11 / tp + (rank < 11 % tp), C = 48;
    const int64_t gather = rows * C * 2 * (tp - 1), scatter = (11 - rows) * C * wire_bytes;
    const int64_t norms = 5 * 2 * (C / tp * (tp - 1)) * 2, kv = tp == 4 ? 2 * 2 * (4 * C) * 2 : 0;
    return 20 * (14 * gather + 10 * scatter + 11 * 12 * (tp - 1) + norms + kv);
}

// In bf16, with narrow moments and masters too, over 20 steps, at both types of partial sums.
TEST(TensorParallelModel, WhatSeveralRanksHoldStaysTheSameToTheBit) {
    for (const bool wire_f32 : {false, true})
        for (const int tp : {2, 3, 4}) {
            const Layout how{.config = toy(tp == 3 ? 3 : 2), .tp = tp, .dp = 2, .steps = 20, .wire_f32 = wire_f32};
            const Outcome got = train(with(how,
                                           "--zero 1 --dtype bf16 --grad-dtype bf16 --wire-dtype bf16 "
                                           "--master-dtype bf16 --adam-dtype bf16"));
            EXPECT_EQ(got.unequal, 0) << "tp " << tp;
            for (const auto& norms : got.norms) EXPECT_EQ(norms, got.norms[0]);
            EXPECT_EQ(got.sent, got.expected);
            for (int rank = 0; rank < 2 * tp; ++rank)
                EXPECT_EQ(got.sent[size_t(rank)][0], tp_bytes_by_hand(tp, rank % tp, wire_f32 ? 4 : 2));
            EXPECT_LT(got.losses.back(), got.losses.front());
        }
}

// ---- Hugging Face's numbers -----------------------------------------------------------------------------------------

struct GoldenCut {
    const char* name;
    int tp;
};
class TensorParallelGolden : public testing::TestWithParam<GoldenCut> {};

// As ModelGolden in test_model.cpp: 1e-4 of a tensor's largest value.
TEST_P(TensorParallelGolden, LossAndGradientsMatchHuggingFace) {
    const std::string folder = std::string("test/golden/model/") + GetParam().name;
    const Safetensors expected(folder + "/expected.safetensors");
    Layout how{.config = load_config(folder), .tp = GetParam().tp, .steps = 1, .folder = folder};
    how.inputs = stored_ids(expected, "inputs"), how.targets = stored_ids(expected, "targets");
    how.B = expected.find("inputs")->shape[0], how.T = expected.find("inputs")->shape[1];
    const Outcome got = train(how);
    const double loss = stored(expected, "loss")[0];
    EXPECT_NEAR(got.losses[0], loss, 1e-4 * loss);
    const ParamTable table(how.config);
    for (size_t t = 0; t < table.tensors().size(); ++t) {
        const std::string name = "grad." + table.tensors()[t].name;
        if (!expected.find(name)) continue;
        EXPECT_LT(distance(stored(expected, name), got.gradients[t]), 1e-4) << name;
    }
    EXPECT_EQ(got.unequal, 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorParallelGolden,
                         testing::Values(GoldenCut{"gqa", 3}, GoldenCut{"tied", 2}, GoldenCut{"tied", 4},
                                         GoldenCut{"llama3_rope", 2}, GoldenCut{"olmo2", 2}, GoldenCut{"olmo2", 4}));

// ---- refusals -------------------------------------------------------------------------------------------------------

std::string refusal_of_cut(int64_t heads, int64_t kv_heads, int64_t tp) {
    ModelConfig c;
    c.dim = heads * 8, c.layers = 1, c.heads = heads, c.kv_heads = kv_heads, c.ffn = 100, c.vocab = 100;
    c.resolve();
    return error_of([&] { check_tensor_parallel(c, tp); });
}

TEST(TensorParallelRefusal, NamesTheNearestCut) {
    EXPECT_EQ(refusal_of_cut(32, 8, 4), "");
    EXPECT_EQ(refusal_of_cut(32, 8, 16), "");
    EXPECT_EQ(refusal_of_cut(32, 8, 6), "--tp 6: 32 heads do not divide by 6\n  nearest: --tp 4 or 8");
    EXPECT_EQ(refusal_of_cut(32, 8, 64), "--tp 64: 32 heads do not divide by 64\n  nearest: --tp 32");
    EXPECT_EQ(refusal_of_cut(12, 2, 3),
              "--tp 3: of 2 kv heads and 3 ranks one must divide the other\n  nearest: --tp 2 or 4");
}

}  // namespace
}  // namespace rz
