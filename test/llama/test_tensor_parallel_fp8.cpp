// Layers in fp8 on the ranks of the tp axis.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "comm/loopback.h"
#include "llama/model/linear_fp8.h"
#include "llama/train/train_state.h"
#include "test/llama/helpers.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

using namespace layout_runs;

// A part's heads, kv heads and columns of ffn are whole tiles of the whole model's.
Layout fp8_layout(Fp8Recipe recipe) {
    Layout how{.steps = 1, .T = 64};
    ModelConfig c = toy128();
    c.kv_heads = 2, c.head_dim = 128, c.ffn = 256;
    how.config = resolved(c);
    how.zero.param_dtype = DType::bf16;
    how.fp8.recipe = recipe;
    return how;
}

// |got - want| / |want| of all gradients.
double gradients_apart(const Outcome& got, const Outcome& want) {
    double difference = 0, size = 0;
    for (size_t t = 0; t < want.gradients.size(); ++t)
        for (size_t i = 0; i < want.gradients[t].size(); ++i) {
            const double w = want.gradients[t][i], d = got.gradients[t][i] - w;
            difference += d * d, size += w * w;
        }
    return std::sqrt(difference / size);
}

// Integers whose magnitude differs from tile to tile, of 32 and of 128, along rows and columns. Tiles' scales are
// powers of two, so what their codes stand for is integers too, and every sum of 256 products is exact: below 2^24.
std::vector<float> tiled_integers(int64_t rows, int64_t columns, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> x;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < columns; ++k) {
            const int of_32[] = {70, 9, 30}, of_128 = (i / 128 + k / 128) % 2 ? 3 : 1;
            const int most = of_128 * of_32[(i / 32 + 2 * (k / 32)) % 3];
            x.push_back(float(int(random() % uint32_t(2 * most + 1)) - most));
        }
    return x;
}

std::vector<float> columns_of(const std::vector<float>& x, int64_t columns, int64_t first, int64_t count) {
    std::vector<float> part;
    for (auto row = x.begin(); row != x.end(); row += columns)
        part.insert(part.end(), row + first, row + first + count);
    return part;
}

struct Fp8Products {
    std::vector<float> y, dx, dw;
    Fp8Products(Fp8Recipe recipe, const std::vector<float>& x, const std::vector<float>& w,
                const std::vector<float>& dy, int64_t in, int64_t out)
        : y(dy.size()), dx(x.size()), dw(w.size()) {
        const int64_t N = int64_t(x.size()) / in;
        Stream s(kCpu, "compute");
        const Fp8Linear fp8(kCpu, recipe, int64_t(std::max({x.size(), w.size(), dy.size()})));
        const DType t = DType::f32;
        fp8.forward(s, y.data(), x.data(), w.data(), N, in, out, t, t);
        fp8.backward_input(s, dx.data(), dy.data(), w.data(), N, in, out, t, t);
        fp8.backward_weight(s, dw.data(), dy.data(), x.data(), N, in, out, t, t);
        s.synchronize();
    }
};

std::vector<float> added(std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
}

// With tiles the parts have the tiles of the whole, and so the codes: where sums are exact, products of parts are parts
// of the products, and add up to them.
TEST(TensorParallelFp8, ProductsOfPartsAreExactWithTiles) {
    constexpr int64_t N = 128, in = 256, out = 256, half = 128;
    const std::vector<float> x = tiled_integers(N, in, 1), w = tiled_integers(out, in, 2),
                             dy = tiled_integers(N, out, 3);
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mx}) {
        SCOPED_TRACE(name_of(recipe));
        const auto rows_of_w = [&](int64_t first) {
            return std::vector<float>(w.begin() + first * in, w.begin() + (first + half) * in);
        };
        const Fp8Products whole(recipe, x, w, dy, in, out);
        const auto by_outputs = [&](int64_t first) {
            return Fp8Products(recipe, x, rows_of_w(first), columns_of(dy, out, first, half), in, half);
        };
        const auto by_inputs = [&](int64_t first) {
            return Fp8Products(recipe, columns_of(x, in, first, half), columns_of(w, in, first, half), dy, half, out);
        };
        EXPECT_EQ(added(by_outputs(0).dx, by_outputs(half).dx), whole.dx);
        EXPECT_EQ(added(by_inputs(0).y, by_inputs(half).y), whole.y);
        for (const int64_t first : {int64_t(0), half}) {
            const Fp8Products outputs = by_outputs(first), inputs = by_inputs(first);
            EXPECT_EQ(outputs.y, columns_of(whole.y, out, first, half));
            EXPECT_EQ(outputs.dw,
                      std::vector<float>(whole.dw.begin() + first * in, whole.dw.begin() + (first + half) * in));
            EXPECT_EQ(inputs.dx, columns_of(whole.dx, in, first, half));
            EXPECT_EQ(inputs.dw, columns_of(whole.dw, in, first, half));
        }
        // The codes do round: parts of the numbers themselves make other sums.
        float plain = 0;
        for (int64_t i = 0; i < in; ++i) plain += x[size_t(i)] * w[size_t(i)];
        EXPECT_NE(whole.y[0], plain);
    }
}

// How much of two runs' errors, as against `exact`, is the same: 1 all of it, 0 nothing.
double shared_error(const Outcome& a, const Outcome& b, const Outcome& exact) {
    double product = 0, of_a = 0, of_b = 0;
    for (size_t t = 0; t < exact.gradients.size(); ++t)
        for (size_t i = 0; i < exact.gradients[t].size(); ++i) {
            const double e = exact.gradients[t][i], x = a.gradients[t][i] - e, y = b.gradients[t][i] - e;
            product += x * y, of_a += x * x, of_b += y * y;
        }
    return product / std::sqrt(of_a * of_b);
}

// The same of a whole model, whose partial sums are no integers: in fp32 two ranks add them in another order, which
// moves some bf16 roundings, and these some codes. Where a share s of one operand's codes is another by a step (12
// times the variance of a rounding error; the two operands' errors make 10^-2.85 of a product) the product is off by
// sqrt(6 s 10^-2.85) = 0.09 sqrt(s), and about ten times that share of the next operand's codes changes, whose steps
// are a tenth of them: from s to 0.9 sqrt(s), product by product. So no bound on the gradients follows from how little
// the first sums differ. What follows from equal tiles is that codes' errors, as against bf16, are mostly the whole's:
// with codes of other tiles the two errors would share nothing and the gradients be sqrt(2) times an error apart;
// where half is shared, they are one error apart.
//
// A loss: 8 forward products of 10^-1.425 = 0.038 each put the last norm's rows off by at most sqrt(8) x 0.038 = 0.11,
// logits of 0.1 x sqrt(128) = 1.1 by 0.12, two runs' by 0.17 apart if no code were the same, and a mean of about 114
// targets by 0.016. Four times that is 2^-4.
TEST(TensorParallelFp8, ErrorsWithTilesAreThoseOfTheWhole) {
    const OwnGemm own;
    const Outcome exact = train(fp8_layout(Fp8Recipe::none));
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mx}) {
        SCOPED_TRACE(name_of(recipe));
        Layout how = fp8_layout(recipe);
        const Outcome want = train(how);
        how.tp = 2;
        const Outcome got = train(how);
        const double shared = shared_error(got, want, exact);
        RecordProperty(name_of(recipe), format("%g", shared));
        EXPECT_GT(shared, 0.5);
        EXPECT_NEAR(got.losses[0], want.losses[0], 0x1p-4);
        EXPECT_EQ(got.unequal, 0);
        EXPECT_EQ(got.sent, got.expected);
    }
}

// With one scale for an operand, a part of it has its own, so products differ by the noise of two quantisations, 24.6
// to 28.5 dB below them each. On their way through two blocks gradients pass at most 8 forward and 8 backward:
// 2 (8 x 10^-2.85 + 8 x 10^-2.46) = 0.28^2. Losses average 128 tokens.
TEST(TensorParallelFp8, PartsWithScalesOfTheirOwnAreNearTheWhole) {
    Layout how = fp8_layout(Fp8Recipe::tensor);
    const Outcome want = train(how);
    how.tp = 2;
    const Outcome got = train(how);
    EXPECT_LT(gradients_apart(got, want), 0.28);
    EXPECT_NEAR(got.losses[0], want.losses[0], 1e-2 * want.losses[0]);
    EXPECT_EQ(got.unequal, 0);
}

// Recomputation, the backward pass in two halves, ZeRO's stages and its gather in fp8: all make the same codes, and
// send what the formula says.
TEST(TensorParallelFp8, EveryWayGivesTheSameBits) {
    const Rows of_all = {"--zero 3 --recompute block", "--zero 3 --recompute block --tp-overlap on"};
    const Rows of_tensor = {"--recompute norms,attention,mlp", "--pp 2 --pp-schedule zb-h1",
                            "--pp 2 --pp-schedule zb-h1 --tp-overlap on --recompute block"};
    for (const Fp8Recipe recipe : {Fp8Recipe::tensor, Fp8Recipe::block, Fp8Recipe::mx})
        for (const bool post_norm : {false, true}) {
            SCOPED_TRACE(format("%s%s", name_of(recipe), post_norm ? ", norms after the branches" : ""));
            const bool tiles = recipe != Fp8Recipe::tensor;
            Layout base = with(fp8_layout(recipe), "--tp 2 --dp 2 --steps 2 --micro-batches 2 --accumulate-locally on");
            base.config.post_norm = post_norm;
            base.B = tiles ? 8 : 4;  // a rank's rows are whole tiles, for parts of a product
            expect_same_bits(of_all, base);
            if (tiles) continue;
            expect_same_bits(of_tensor, base);
            expect_same_bits({of_tensor.back()}, with(base, "--layers 4 --fp8-skip-first 1"));
        }
}

// The gradient of a branch comes as codes that have the scale of all ranks' rows, at once or part by part: the products
// are those of the whole, to the bit.
TEST(TensorParallelFp8, GradientsOfBranchesTravelAsTheCodesOfTheWhole) {
    constexpr int64_t N = 64, in = 32, out = 48, half = N / 2;
    constexpr DType t = DType::bf16;
    std::mt19937 random(5);
    const auto drawn = [&](int64_t n) {
        std::vector<bf16> x;
        for (int64_t i = 0; i < n; ++i) x.push_back(bf16(float(int(random() % 2001) - 1000) / 64));
        return x;
    };
    const std::vector<bf16> x = drawn(N * in), w = drawn(out * in);
    std::vector<bf16> dy = drawn(N * out), dx(size_t(N * in), bf16(0.0f));
    dy.back() = bf16(100.0f);  // the largest is the last rank's
    std::vector<float> dw(size_t(out * in));
    const auto products = [] { return Fp8Linear(kCpu, Fp8Recipe::tensor, N * out); };
    Stream whole(kCpu, "compute");
    const Fp8Linear of_all = products();
    of_all.backward_input(whole, dx.data(), dy.data(), w.data(), N, in, out, t, t);
    of_all.backward_weight(whole, dw.data(), dy.data(), x.data(), N, in, out, t, DType::f32);
    whole.synchronize();
    for (const bool overlap : {false, true}) {
        LoopbackHub hub(2);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.grid = {.tp = 2}});
            Stream s(kCpu, "compute");
            TensorParallel tp(mesh, DType::f32, nullptr, overlap);
            const Fp8Linear fp8 = products();
            const ParallelLinear layer(
                {.parallel = Parallel::row, .in = in, .out = out, .begin = 0, .number = 0, .x_is_measured = false}, t,
                DType::f32, &tp, &fp8);
            std::vector<float> rows(size_t(N * out)), got_dw(dw.size());
            std::vector<bf16> codes(size_t(half * out)), y(size_t(half * out)), got_dx(dx.size());
            std::vector<Fp8Scale> scales(kBlockScales), parts(2);
            const BlockShape shape{.B = 1, .T = N};
            const BlockScratch scratch{.dnorm = codes.data(), .whole = rows.data(), .parts = parts.data()};
            BlockPass p{.stream = s, .shape = shape, .scratch = scratch, .scales = scales.data(), .N = N, .R = half};
            layer.forward(p, y.data(), x.data(), w.data());
            layer.measure_dy(p, &dy[size_t(rank * half * out)], half * out);
            const void* all = layer.input_grad(p, got_dx.data(), &dy[size_t(rank * half * out)], w.data());
            layer.weight_grad(p, reinterpret_cast<char*>(got_dw.data()), all, x.data());
            s.synchronize();
            EXPECT_EQ(std::memcmp(got_dx.data(), dx.data(), dx.size() * sizeof(bf16)), 0) << overlap;
            EXPECT_EQ(got_dw, dw) << overlap;
        });
    }
}

// Codes of this rank's rows of two norms: one byte instead of two, and 16 bytes for each scale.
TEST(TensorParallelFp8, NormsAreKeptAsCodes) {
    const auto activations = [](Fp8Options fp8) {
        std::vector<int64_t> bytes(2);
        LoopbackHub hub(2);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {.grid = {.tp = 2}});
            const TrainState core(fp8_layout({}).config,
                                  {.zero = {.param_dtype = DType::bf16},
                                   .adamw = {},
                                   .stage = {.B = 2, .T = 64, .fp8 = fp8},
                                   .threads = 1},
                                  hub.device(rank), mesh);
            bytes[size_t(rank)] = core.compute.context().memory.now(DeviceKind::cpu, MemKind::activations);
        });
        EXPECT_EQ(bytes[0], bytes[1]);
        return bytes[0];
    };
    const int64_t R = 2 * 64 / 2, C = 128, blocks = 2;
    EXPECT_EQ(activations({Fp8Recipe::tensor}), activations({}) + blocks * (16 * kBlockScales - 2 * R * C));
}

}  // namespace
}  // namespace rz
