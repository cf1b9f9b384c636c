// Linear layers in fp8: the three products against double, and what they leave of a run's promises.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/runtime/context.h"
#include "kernels/runtime/op_timer.h"
#include "llama/model/linear.h"
#include "test/llama/layout_runs.h"
#include "test/checks.h"

namespace rz {
namespace {

using namespace layout_runs;

// ---- the products ---------------------------------------------------------------------------------------------------

constexpr int64_t kN = 64, kIn = 96, kOut = 80, kLargest = kOut * kIn;  // of tensor; block has 128 times as much

std::vector<bf16> normal(int64_t n, uint32_t seed, float std) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw(0, std);
    std::vector<bf16> x(size_t(n), bf16(0.0f));
    for (bf16& v : x) v = bf16(draw(random));
    return x;
}

// Signal to noise, in dB, of the rows of `got` against sums in double, in the mean: an outlier's own row would hide the
// others' noise.
template <class T, class Exact>
double snr(const std::vector<T>& got, int64_t columns, const Exact& exact) {
    double total = 0;
    const int64_t rows = int64_t(got.size()) / columns;
    for (int64_t r = 0; r < rows; ++r) {
        double signal = 0, noise = 0;
        for (int64_t c = 0; c < columns; ++c) {
            const double want = exact(r, c), error = double(float(got[size_t(r * columns + c)])) - want;
            signal += want * want, noise += error * error;
        }
        total += 10 * std::log10(signal / noise);
    }
    return total / double(rows);
}

struct Snr {
    double y, dx, dw;
};

// SNR of the three products. The operands' magnitudes lie far apart, so a scale that belongs to another operand, is
// inverted, or was left over from another tensor shows at once. `outlier`: what the first row of x and dy is
// multiplied by.
Snr products(Fp8Recipe recipe, int64_t N, int64_t in, int64_t out, float outlier = 1) {
    const Device device{DeviceKind::cpu, 0};
    Stream stream(device, "test");
    const Fp8Linear fp8(device, recipe, std::max({N * in, N * out, in * out}));
    std::vector<bf16> x = normal(N * in, 1, 30), w = normal(out * in, 2, 0.02f), dy = normal(N * out, 3, 1e-7f);
    for (int64_t i = 0; i < in; ++i) x[size_t(i)] = bf16(float(x[size_t(i)]) * outlier);
    for (int64_t o = 0; o < out; ++o) dy[size_t(o)] = bf16(float(dy[size_t(o)]) * outlier);
    std::vector<bf16> y(size_t(N * out)), dx(size_t(N * in));
    std::vector<float> dw(size_t(out * in), 0x1p-24f);
    linear(stream, y.data(), x.data(), w.data(), N, in, out, DType::bf16, DType::bf16, &fp8);
    linear_backward_input(stream, dx.data(), dy.data(), w.data(), N, in, out, DType::bf16, DType::bf16, &fp8);
    linear_backward_weight(stream, dw.data(), dy.data(), x.data(), N, in, out, DType::bf16, DType::f32, &fp8);
    stream.synchronize();
    for (float& v : dw) v -= 0x1p-24f;  // it is added to
    const auto sum = [](int64_t n, const auto& term) {
        double s = 0;
        for (int64_t k = 0; k < n; ++k) s += term(k);
        return s;
    };
    const auto at = [](const std::vector<bf16>& m, int64_t row, int64_t column, int64_t columns) {
        return double(float(m[size_t(row * columns + column)]));
    };
    return {snr(y, out,
                [&](int64_t n, int64_t o) {
                    return sum(in, [&](int64_t i) { return at(x, n, i, in) * at(w, o, i, in); });
                }),
            snr(dx, in,
                [&](int64_t n, int64_t i) {
                    return sum(out, [&](int64_t o) { return at(dy, n, o, out) * at(w, o, i, in); });
                }),
            snr(dw, in, [&](int64_t o, int64_t i) {
                return sum(N, [&](int64_t n) { return at(dy, n, o, out) * at(x, n, i, in); });
            })};
}

// Two e4m3 operands, 31.5 dB each, make 28.5 dB; e5m2 (25.6 dB) with e4m3 24.6 dB.
TEST(LinearFp8, ProductsKeepTheSignalToNoiseRatioOfTheirOperands) {
    const Snr tensor = products(Fp8Recipe::tensor, kN, kIn, kOut);
    EXPECT_GT(tensor.y, 27.5);
    EXPECT_GT(tensor.dx, 23.5);
    EXPECT_GT(tensor.dw, 23.5);
    for (const Fp8Recipe tiles : {Fp8Recipe::block, Fp8Recipe::mx}) {
        const Snr got = products(tiles, 128, 256, 128);
        EXPECT_GT(got.y, 27.5) << name_of(tiles);
        EXPECT_GT(got.dx, 27.5) << name_of(tiles);
        EXPECT_GT(got.dw, 27.5) << name_of(tiles);
    }
}

// A row that is 2^20 times as large takes the others' numbers below the smallest of one scale's codes; of tiles it
// takes none along K.
TEST(LinearFp8, TilesKeepAnOutlierToItself) {
    EXPECT_LT(products(Fp8Recipe::tensor, 128, 256, 128, 0x1p20f).y, 10);
    for (const Fp8Recipe tiles : {Fp8Recipe::block, Fp8Recipe::mx}) {
        const Snr got = products(tiles, 128, 256, 128, 0x1p20f);
        EXPECT_GT(got.y, 27.5) << name_of(tiles);
        EXPECT_GT(got.dx, 27.5) << name_of(tiles);
    }
}

// Types of each product, seen by a device that runs nothing: gradients in e5m2, never two of them, and fast sums in the
// forward product alone.
TEST(LinearFp8, FastSumsAndTypesAreThoseOfEachProduct) {
    RankContext context;
    std::vector<Fp8Gemm> seen;
    context.planned.cost = [&](const OpCall& op, const Stream&) -> Ticks {
        if (const Fp8Gemm* g = op.as<Fp8Gemm>()) seen.push_back(*g);
        return 1;
    };
    const Device device{DeviceKind::planned, 0, &context};
    Stream stream(device, "planned");
    const Fp8Linear fp8(device, Fp8Recipe::tensor, kLargest);
    alignas(16) static char memory[16];
    fp8.forward(stream, memory, memory, static_cast<const void*>(memory), 64, 32, 16, DType::bf16, DType::bf16);
    fp8.backward_input(stream, memory, memory, static_cast<const void*>(memory), 64, 32, 16, DType::bf16, DType::bf16);
    fp8.backward_weight(stream, memory, memory, memory, 64, 32, 16, DType::bf16, DType::f32);
    ASSERT_EQ(seen.size(), 3u);
    const auto is = [](const Fp8Gemm& g, int64_t M, int64_t N, int64_t K, Fp8 a, bool fast, float beta) {
        return g.M == M && g.N == N && g.K == K && g.a_type == a && g.b_type == Fp8::e4m3 &&
               g.fast_accumulation == fast && g.beta == beta;
    };
    EXPECT_TRUE(is(seen[0], 64, 16, 32, Fp8::e4m3, true, 0));
    EXPECT_TRUE(is(seen[1], 64, 32, 16, Fp8::e5m2, false, 0));
    EXPECT_TRUE(is(seen[2], 16, 32, 64, Fp8::e5m2, false, 1));
}

// Saturation would turn an infinity into 448 times the scale, and the guard that skips bad updates would never know.
TEST(LinearFp8, InfinityAndNaNReachTheResult) {
    const Device device{DeviceKind::cpu, 0};
    Stream stream(device, "test");
    const Fp8Linear fp8(device, Fp8Recipe::tensor, kLargest);
    for (const float bad : {float(INFINITY), float(NAN)}) {
        std::vector<bf16> dy = normal(kN * kOut, 3, 1), w = normal(kOut * kIn, 2, 1), dx(size_t(kN * kIn));
        dy[17] = bf16(bad);
        linear_backward_input(stream, dx.data(), dy.data(), w.data(), kN, kIn, kOut, DType::bf16, DType::bf16, &fp8);
        stream.synchronize();
        EXPECT_TRUE(std::isnan(float(dx[0])));
        EXPECT_TRUE(std::isnan(float(dx.back())));
    }
}

// ---- runs -----------------------------------------------------------------------------------------------------------

// Gradients and wire in fp32: bf16 sums would hide another order.
Layout fp8_ranks(int ranks, const std::string& settings = "", bool tied = false) {
    Layout how = data_ranks(ranks, toy16(tied));
    how.T = 16;
    return with(how, "--dtype bf16 --fp8 tensor --steps 4 " + settings);
}

TEST(Fp8Training, StagesAndRecomputationGiveTheSameBits) {
    const Outcome want = train(fp8_ranks(3));
    EXPECT_NE(train(fp8_ranks(3, "--fp8-skip-first 1 --fp8-skip-last 1")).weights, want.weights)
        << "blocks that are left out change nothing";
    expect_rows({"--zero 1", "--zero 2", "--zero 3", "--zero 3 --recompute mlp", "--zero 3 --recompute block"},
                fp8_ranks(3), has_the_bits_of(want));
}

// Magnitudes of slices, folded; codes of slices, gathered: the codes that a rank with the whole matrix makes. A scale
// of each rank's own, or of an earlier step, would show; so would a master's magnitude, which is not the parameter's.
TEST(Fp8Gather, GivesTheBitsOfZero0WithWholeParameters) {
    const std::string twice = "--micro-batches 2 --accumulate-locally on ";
    expect_same_bits(each(each({"--zero 3"}, {"--fp8-gather on", "--fp8-gather off"}),
                          {"--prefetch 0", "--prefetch 1", "--prefetch 3"}),
                     fp8_ranks(3, twice));
    expect_same_bits({"--zero 3 --overlap on", "--zero 3 --overlap off"}, fp8_ranks(3, twice, /*tied=*/true));
    expect_same_bits({"--zero 3"}, fp8_ranks(3, twice + "--fp8-skip-last 1"));
}

// In all ranks' sum an all-gather of n bytes sends (ranks - 1) n. Each step gathers each block twice; in fp8 that is
// one byte for each element of a matrix. Once a step come two for each of a norm, and 16 for each matrix and rank.
TEST(Fp8Gather, BytesOnTheWireAreTheFormulasToTheByte) {
    constexpr int kRanks = 3;
    const auto bytes = [](const char* gather) {
        return train(fp8_ranks(kRanks, std::string("--zero 3 --fp8-gather ") + gather)).all_bytes();
    };
    const ModelConfig m = toy16();
    const ParamTable table(m);
    const int64_t matrices = m.dim * (m.qkv_rows() + m.q_rows() + 3 * m.ffn), norms = 2 * m.dim;
    const int64_t wide = 2 * table.held_units()[1].padded, narrow = matrices;
    const int64_t steps = 4, blocks = 3, gathers = 2;
    EXPECT_EQ(bytes("off") - bytes("on"),
              steps * blocks * (kRanks - 1) *
                  (gathers * (wide - narrow) - 2 * norms - int64_t(sizeof(Fp8Scale)) * 4 * kRanks));
    EXPECT_LT(narrow, 0.52 * double(wide));
}

// With tiles units are gathered in bf16. Weights are tiled the same from whatever slices they came.
TEST(Fp8Training, TilesGiveTheSameBitsInEveryStage) {
    for (const char* tiles : {"--fp8 block", "--fp8 mx"}) {
        SCOPED_TRACE(tiles);
        Layout base = data_ranks(3, toy128());
        base.T = 64;
        expect_same_bits(
            {"--zero 1", "--zero 2", "--zero 3 --recompute block"},
            with(base, std::string("--dtype bf16 --steps 2 --micro-batches 2 --accumulate-locally on ") + tiles));
    }
}

// A layer's products are off by -24 dB, 6 %, at random; the norm averages thousands of elements.
TEST(Fp8Training, GradientsAreNearBf16s) {
    const float want = train(fp8_ranks(1, "--fp8 none")).norms[0][0], got = train(fp8_ranks(1)).norms[0][0];
    EXPECT_NEAR(got, want, 0.03 * want);
    EXPECT_NE(got, want);
}

// Twelve products a block; the head's three (y twice: the loss of a validation) and nothing else stay as they are.
TEST(Fp8Training, TheFourLayersOfCoveredBlocksAreInFp8AndTheHeadIsNot) {
    Mesh mesh(Device{DeviceKind::cpu, 0}, {});
    for (const auto& [first, last] : {std::pair(0, 0), {1, 0}, {1, 1}}) {
        TrainState core(toy16(),
                        {.zero = {.param_dtype = DType::bf16},
                         .adamw = {},
                         .stage = {.B = 1, .T = 16, .fp8 = {Fp8Recipe::tensor, first, last}}},
                        Device{DeviceKind::cpu, 0}, mesh);
        initialise_weights(core.table, 1, core.compute, core.zero);
        const HostBatch host = random_batch(1, 16, /*seed=*/1);
        const DeviceBatch batch = host.view();
        core.compute.synchronize();
        OpTimer timer;
        core.compute.set_op_timer(&timer);
        core.model.train(batch, 1);
        core.model.evaluate(batch);
        core.compute.set_op_timer(nullptr);
        int64_t fp8 = 0, plain = 0, measured = 0, transposed = 0;
        for (const auto& [name, total] : timer.take()) {
            if (name == "AbsMax") measured += total.calls;
            if (name == "Transpose8") transposed += total.calls;
            if (name.rfind("Fp8Gemm ", 0) == 0) fp8 += total.calls;
            if (name.rfind("Gemm ", 0) == 0) plain += total.calls;
        }
        const int64_t covered = 3 - first - last;
        EXPECT_EQ(fp8, covered * (12 + 4));
        EXPECT_EQ(plain, (3 - covered) * (12 + 4) + 3 + 1);
        // Producers find the magnitudes of what they write: left are weights, once for all passes.
        EXPECT_EQ(measured, covered * 4);
        EXPECT_EQ(transposed, covered * 2) << "codes of both norms, for the weights' gradients";
    }
}

// The two norms of a block's activations are kept as codes: one byte instead of two, and 16 bytes for each scale.
TEST(Fp8Training, NormsAreKeptAsCodes) {
    const auto activations = [](Fp8Options fp8) {
        RankContext context;
        const Device device{DeviceKind::cpu, 0, &context};
        Mesh mesh(device, {});
        const TrainState core(
            toy16(), {.zero = {.param_dtype = DType::bf16}, .adamw = {}, .stage = {.B = 1, .T = 16, .fp8 = fp8}},
            device, mesh);
        return context.memory.now(DeviceKind::cpu, MemKind::activations);
    };
    const int64_t plain = activations({}), norms = 2 * 16 * toy16().dim, slots = 16 * kBlockScales;
    EXPECT_EQ(activations({Fp8Recipe::tensor}), plain + 3 * (slots - norms));
    EXPECT_EQ(activations({Fp8Recipe::tensor, 1, 0}), plain + 3 * slots - 2 * norms);
}

TEST(Fp8Training, RefusalsNameTheNearestValue) {
    ModelConfig c = toy16();
    const auto refusal = [&](const Fp8Options& o, DType dtype, int64_t tokens, int64_t parts = 1, int64_t runs = 1) {
        return error_of([&] { check_fp8(o, c, dtype, tokens, Device{DeviceKind::cpu, 0}, parts, runs); });
    };
    const Fp8Options tensor{.recipe = Fp8Recipe::tensor};
    EXPECT_EQ(refusal(tensor, DType::bf16, 64), "");
    EXPECT_EQ(refusal({}, DType::f32, 7), "");
    EXPECT_EQ(refusal(tensor, DType::f32, 64),
              "--fp8 tensor needs --dtype bf16, and it is fp32\n  nearest: --dtype bf16");
    EXPECT_TRUE(says(refusal(tensor, DType::bf16, 40), "nearest: 32 or 48"));
    EXPECT_EQ(refusal(tensor, DType::bf16, 48, 1, 3), "");
    EXPECT_EQ(refusal(tensor, DType::bf16, 48, 1, 2),
              "--fp8 tensor: tokens per micro-batch (--batch x --seq-len) with --tp-overlap on 48 is not a multiple of "
              "--tp 2 x 16, which fp8 products need\n  nearest: 32 or 64");
    c.ffn = 5461;
    EXPECT_EQ(refusal(tensor, DType::bf16, 64),
              "--fp8 tensor: ffn 5461 is not a multiple of 16, which fp8 products need\n  nearest: 5456 or 5472");
    c.ffn = 48;
    EXPECT_EQ(refusal({.recipe = Fp8Recipe::block}, DType::bf16, 128),
              "--fp8 block: dim 32 is not a multiple of 128, which fp8 products need\n  nearest: 128");
    EXPECT_EQ(refusal({.recipe = Fp8Recipe::mx}, DType::bf16, 128),
              "--fp8 mx: dim 32 is not a multiple of 128, which fp8 products need\n  nearest: 128");
    EXPECT_EQ(refusal({Fp8Recipe::tensor, 2, 3}, DType::bf16, 64),
              "--fp8-skip-blocks 2,3: the model has 3 blocks, so none would be in fp8\n  nearest: 2,0");
    c.dim = 128, c.ffn = 64;  // the part of one of two ranks
    EXPECT_EQ(refusal({.recipe = Fp8Recipe::block}, DType::bf16, 128, 2),
              "--fp8 block: ffn 128 is not a multiple of --tp 2 x 128, which fp8 products need\n  nearest: 256");
}

}  // namespace
}  // namespace rz
