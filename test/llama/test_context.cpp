// Context parallelism on ranks that are threads: attention of sequences that ranks share against attention of whole
// ones, the bytes that it sends, and what the ranks keep.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "comm/loopback.h"
#include "kernels/gemm/gemm.h"
#include "llama/model/presets.h"
#include "llama/parallel/context.h"
#include "llama/train/train_state.h"
#include "llama/train/plan_memory.h"
#include "test/llama/helpers.h"

namespace rz {
namespace {

struct ContextCase {
    int ranks;
    int64_t B, T, H, K, D;
    DType dtype;
    bool documents;
    ContextExchange exchange = ContextExchange::gather;
    int64_t window = 0;
    bool masks() const { return documents || window > 0; }
};

using Bytes = std::vector<char>;

Bytes random_values(int64_t n, DType t, unsigned seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> draw;
    Bytes out(size_t(n * size_of(t)));
    with_dtype(t, [&]<class E>() {
        for (int64_t i = 0; i < n; ++i) reinterpret_cast<E*>(out.data())[i] = E(draw(rng));
    });
    return out;
}
float value(const Bytes& x, int64_t i, DType t) {
    return with_dtype(t, [&]<class E>() { return float(reinterpret_cast<const E*>(x.data())[i]); });
}

// Whole sequences, (B, T) rows of packed q, k and v, and what attention makes of them on one rank
struct Whole {
    ContextCase c;
    int64_t row = (c.H + 2 * c.K) * c.D, o_row = c.H * c.D, e = size_of(c.dtype);
    Bytes qkv = random_values(c.B * c.T * row, c.dtype, 1), d_o = random_values(c.B * c.T * o_row, c.dtype, 2);
    Bytes o = Bytes(d_o.size()), dqkv = Bytes(qkv.size());
    std::vector<float> lse = std::vector<float>(size_t(c.B * c.H * c.T));
    std::vector<int32_t> first_key;

    explicit Whole(const ContextCase& of) : c(of) {
        for (int64_t b = 0; b < c.B && c.masks(); ++b)
            for (int64_t t = 0; t < c.T; ++t) {
                const int64_t document = !c.documents || t < 5 ? 0 : t < c.T / 2 + b ? 5 : c.T / 2 + b;
                first_key.push_back(int32_t(c.window > 0 ? std::max(document, t - c.window + 1) : document));
            }
        AttentionShape s{c.B,
                         c.T,
                         c.T,
                         c.H,
                         c.K,
                         c.D,
                         row,
                         c.T * row,
                         row,
                         c.T * row,
                         o_row,
                         c.T * o_row,
                         1 / std::sqrt(float(c.D)),
                         c.dtype};
        if (c.masks()) s.first_key = first_key.data(), s.first_key_batch = c.T;
        std::vector<char> workspace(size_t(attention_backward_workspace(s)));
        char *k = qkv.data() + c.H * c.D * e, *dk = dqkv.data() + c.H * c.D * e;
        attention_forward_cpu({o.data(), lse.data(), qkv.data(), k, k + c.K * c.D * e, s});
        attention_backward_cpu({dqkv.data(), dk, dk + c.K * c.D * e, d_o.data(), qkv.data(), k, k + c.K * c.D * e,
                                o.data(), lse.data(), workspace.data(), s});
    }

    // Rows of the whole that a rank has, in its order: calls f(b, its row of its sequence, row of the whole sequence).
    template <class F>
    void for_each_row(int rank, F&& f) const {
        const int64_t chunk = c.T / (2 * c.ranks);
        const ContextChunks chunks({rank, c.ranks});
        for (int64_t b = 0; b < c.B; ++b)
            for (int slot = 0; slot < 2; ++slot)
                for (int64_t t = 0; t < chunk; ++t) f(b, slot * chunk + t, chunks[slot] * chunk + t);
    }
    Bytes part(const Bytes& whole, int rank, int64_t columns) const {
        Bytes own;
        for_each_row(rank, [&](int64_t b, int64_t, int64_t t) {
            const char* from = whole.data() + (b * c.T + t) * columns * e;
            own.insert(own.end(), from, from + columns * e);
        });
        return own;
    }
};

class Context : public testing::TestWithParam<ContextCase> {};

// A chunk of queries is a call with the keys up to its end, whose outputs and gradients of queries have the bits of the
// whole call. The gradients of keys and values are the same terms in another order: up to T x H / K of them, each of
// which errs by a rounding of the sum.
TEST_P(Context, AttentionOfSharedSequencesIsThatOfWholeOnes) {
    const Whole w(GetParam());
    const ContextCase& c = w.c;
    LoopbackHub hub(c.ranks);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.cp = c.ranks}});
        Stream compute(kCpu, "compute");
        ContextParallel context(mesh, kCpu,
                                {.B = c.B,
                                 .T = c.T,
                                 .heads = c.H,
                                 .kv_heads = c.K,
                                 .head_dim = c.D,
                                 .dtype = c.dtype,
                                 .exchange = c.exchange,
                                 .window = c.window});
        const int64_t rows = context.own_rows(), n = c.B * rows, chunk = rows / 2;
        EXPECT_EQ(rows * c.ranks, c.T);
        const Bytes qkv = w.part(w.qkv, rank, w.row), d_o = w.part(w.d_o, rank, w.o_row);
        Bytes o(d_o.size()), dqkv(qkv.size(), char(0xff));
        std::vector<float> lse(size_t(n * c.H));
        std::vector<int32_t> first;
        if (c.masks())
            w.for_each_row(rank,
                           [&](int64_t b, int64_t, int64_t t) { first.push_back(w.first_key[size_t(b * c.T + t)]); });
        const int32_t* first_key = c.masks() ? first.data() : nullptr;
        const Buffer workspace(kCpu, 2 * 4 * c.B * c.H * (rows + 64), MemKind::workspace, "attention backward");

        context.forward(compute, o.data(), lse.data(), qkv.data(), first_key);
        compute.synchronize();
        EXPECT_EQ(mesh.cp().transport().bytes_sent(), context.key_bytes());
        context.backward(compute, dqkv.data(), d_o.data(), qkv.data(), o.data(), lse.data(), workspace.data(),
                         first_key);
        compute.synchronize();
        EXPECT_EQ(mesh.cp().transport().bytes_sent(), 2 * context.key_bytes() + context.gradient_bytes());

        const bool ring = c.exchange == ContextExchange::ring;
        const Bytes want_o = w.part(w.o, rank, w.o_row);
        if (!ring) {
            EXPECT_EQ(o, want_o);
        }
        // A ring rounds each of up to 2 cp parts, of averages of values below 5, before it joins them, and the sum.
        const double rounding = c.dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
        for (int64_t i = 0; i < n * w.o_row; ++i)
            ASSERT_NEAR(value(o, i, c.dtype), value(want_o, i, c.dtype), (2 * c.ranks + 40) * 5 * rounding) << "o";
        const Bytes want = w.part(w.dqkv, rank, w.row);
        double largest = 0;
        for (int64_t i = 0; i < n * w.row; ++i) largest = std::max(largest, std::abs(double(value(want, i, c.dtype))));
        // Joined log-sum-exps err by some roundings, which change every probability, and 16-bit parts by one each.
        const double ring_bound = !ring ? 0 : (c.dtype == DType::f32 ? 80 : 6) * rounding * largest;
        w.for_each_row(rank, [&](int64_t b, int64_t own, int64_t t) {
            for (int64_t h = 0; h < c.H; ++h)
                EXPECT_NEAR(lse[size_t(((own / chunk * c.B + b) * c.H + h) * chunk + own % chunk)],
                            w.lse[size_t((b * c.H + h) * c.T + t)], ring ? 1e-5 : 0);
            for (int64_t i = 0; i < w.row; ++i) {
                const int64_t at = (b * rows + own) * w.row + i;
                const double x = value(dqkv, at, c.dtype), y = value(want, at, c.dtype);
                if (i < c.H * c.D)
                    ASSERT_NEAR(x, y, ring_bound) << "dq";
                else
                    ASSERT_NEAR(x, y,
                                double(c.T * c.H / c.K) * 0x1p-24 * largest + 2 * rounding * std::abs(y) + ring_bound)
                        << "dk, dv";
            }
        });
    });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Context,
                         testing::Values(ContextCase{2, 1, 120, 2, 2, 8, DType::f32, false},
                                         ContextCase{2, 2, 256, 4, 2, 16, DType::f32, true},
                                         ContextCase{3, 2, 60, 2, 1, 8, DType::f32, true},
                                         ContextCase{4, 1, 256, 4, 1, 8, DType::bf16, false},
                                         ContextCase{4, 2, 64, 2, 1, 16, DType::bf16, true},
                                         ContextCase{2, 2, 256, 4, 2, 16, DType::f32, true, ContextExchange::ring},
                                         ContextCase{3, 2, 60, 2, 1, 8, DType::f32, false, ContextExchange::ring},
                                         ContextCase{4, 2, 64, 4, 2, 8, DType::f32, true, ContextExchange::ring},
                                         ContextCase{4, 1, 128, 2, 1, 16, DType::bf16, false, ContextExchange::ring},
                                         ContextCase{3, 2, 60, 2, 1, 8, DType::f32, true, ContextExchange::gather, 11},
                                         // Chunks of 8: windows that end with a chunk, and one key before and after
                                         ContextCase{4, 2, 64, 2, 1, 8, DType::f32, false, ContextExchange::ring, 8},
                                         ContextCase{4, 2, 64, 2, 1, 8, DType::f32, false, ContextExchange::ring, 9},
                                         ContextCase{4, 2, 64, 2, 1, 8, DType::f32, false, ContextExchange::ring, 10},
                                         ContextCase{4, 1, 64, 2, 1, 8, DType::bf16, true, ContextExchange::ring, 3}));

// Each token's loss of a model whose sequences `cp` ranks share, in the order of the whole batch.
std::vector<float> losses_of_tokens(int cp, ContextExchange exchange, int64_t window = 0) {
    constexpr int64_t B = 2, T = 48, V = 37;
    ModelConfig config;
    config.dim = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2, config.head_dim = 8, config.ffn = 44;
    config.vocab = V, config.max_seq_len = T, config.init_std = 0.1;
    config.window = window;
    config.resolve();
    std::vector<float> out(size_t(B * T));
    LoopbackHub hub(cp);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.cp = cp}});
        TrainState core(config,
                        {.zero = {}, .adamw = {}, .stage = {.B = B, .T = T}, .threads = 1, .cp_exchange = exchange},
                        hub.device(rank), mesh);
        initialise_weights(core.table, 5, core.compute, core.zero);
        std::vector<int32_t> tokens, targets, positions;
        std::vector<size_t> places;
        const int64_t chunk = cp > 1 ? T / (2 * cp) : T;
        const ContextChunks chunks({rank, cp});
        for (int64_t b = 0; b < B; ++b)
            for (int slot = 0; slot < (cp > 1 ? 2 : 1); ++slot)
                for (int64_t i = 0; i < chunk; ++i) {
                    const int64_t t = chunks[slot] * chunk + i, at = b * T + t;
                    tokens.push_back(int32_t(at * 7 % V)), targets.push_back(int32_t((at * 11 + 3) % V));
                    positions.push_back(int32_t(t)), places.push_back(size_t(at));
                }
        std::vector<float> losses(tokens.size());
        std::vector<int32_t> best(tokens.size());
        core.model.score({.B = B,
                          .T = int64_t(tokens.size()) / B,
                          .tokens = tokens.data(),
                          .targets = targets.data(),
                          .positions = cp > 1 ? positions.data() : nullptr},
                         losses.data(), best.data());
        core.compute.synchronize();
        for (size_t i = 0; i < places.size(); ++i) out[places[i]] = losses[i];
    });
    return out;
}

TEST(ContextModel, TokensHaveTheLossesOfOneRank) {
    const bool library = gemm_cpu_uses_library();
    for (const bool own_gemm : {true, false}) {
        set_gemm_cpu_uses_library(!own_gemm);
        const std::vector<float> one = losses_of_tokens(1, ContextExchange::gather);
        for (const int cp : {2, 3, 4}) {
            SCOPED_TRACE(format("cp %d, %s", cp, own_gemm ? "our own products" : "the library's"));
            if (own_gemm) {
                EXPECT_EQ(losses_of_tokens(cp, ContextExchange::gather), one);  // to the bit
            }
            for (const ContextExchange exchange : {ContextExchange::gather, ContextExchange::ring}) {
                const std::vector<float> got = losses_of_tokens(cp, exchange);
                for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(got[i], one[i], 2e-6 * one[i]) << "token " << i;
            }
        }
    }
    set_gemm_cpu_uses_library(library);
}

TEST(ContextModel, TokensInAWindowHaveTheLossesOfOneRank) {
    const std::vector<float> whole = losses_of_tokens(1, ContextExchange::gather);
    for (const int64_t window : {1, 7, 12, 47, 48}) {
        const std::vector<float> one = losses_of_tokens(1, ContextExchange::gather, window);
        // The first tokens see all before them in any case, at the same bits.
        for (size_t i = 0; i < one.size(); ++i)
            EXPECT_EQ(one[i] == whole[i], int64_t(i % 48) < window) << window << " " << i;
        for (const int cp : {2, 3})
            for (const ContextExchange exchange : {ContextExchange::gather, ContextExchange::ring}) {
                const std::vector<float> got = losses_of_tokens(cp, exchange, window);
                for (size_t i = 0; i < one.size(); ++i)
                    ASSERT_NEAR(got[i], one[i], 2e-6 * one[i]) << window << ", cp " << cp << ", token " << i;
            }
    }
}

// Sequences cp times as long on cp times the ranks: what is kept for the backward pass stays the same to the byte.
TEST(ContextMemory, ActivationsOfARankDoNotGrowWithTheSequence) {
    TrainOptions o;
    o.dtype = DType::bf16;
    o.batch = 2;
    o.seq_len = 64;
    ModelConfig config = find_preset("bytes").config;
    config.layers = 3, config.vocab = 257, config.max_seq_len = 1024;
    config.resolve();
    for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::block}) {
        o.recompute = recompute;
        o.cp = 1, o.seq_len = 64;
        const PlannedMemory one = plan_memory(o, config, DeviceKind::cuda, 0, 1);
        for (const int cp : {2, 4, 8}) {
            o.cp = cp, o.seq_len = 64 * cp;
            const PlannedMemory many = plan_memory(o, config, DeviceKind::cuda, cp - 1, cp);
            EXPECT_EQ(many.peak[size_t(MemKind::activations)], one.peak[size_t(MemKind::activations)]);
            EXPECT_GT(many.sent.cp, 0);
        }
        o.cp = 1, o.seq_len = 256;
        EXPECT_GT(plan_memory(o, config, DeviceKind::cuda, 0, 1).peak[size_t(MemKind::activations)],
                  3 * one.peak[size_t(MemKind::activations)]);
    }
}

}  // namespace
}  // namespace rz
