// Documents packed into one row: where they begin, and that a model trains on them as on separate rows.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "comm/mesh.h"
#include "llama/data/documents.h"
#include "llama/train/train_state.h"
#include "test/llama/helpers.h"
#include "test/llama/toys.h"

namespace rz {
namespace {

struct Found {
    std::vector<int32_t> starts, positions;
    int64_t squares;
};
Found find(DocBoundary boundary, const std::vector<int32_t>& tokens, int64_t B) {
    Found f{std::vector<int32_t>(tokens.size()), std::vector<int32_t>(tokens.size()), 0};
    f.squares = find_documents({boundary, 9}, tokens.data(), B, int64_t(tokens.size()) / B, f.starts.data(),
                               f.positions.data());
    return f;
}
using Ints = std::vector<int32_t>;

TEST(Documents, ATokenBeginsEach) {
    const Found f = find(DocBoundary::bos, {5, 6, 9, 7, 9, 9, 9, 1, 2, 3, 4, 5}, 2);
    EXPECT_EQ(f.starts, (Ints{0, 0, 2, 2, 4, 5, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(f.positions, (Ints{0, 1, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(f.squares, 4 + 4 + 1 + 1 + 36);
}

// Tiles in which no query sees a key, counted pair by pair.
TEST(Documents, SkippedTilesAreThoseThatNobodySees) {
    std::mt19937 draw(5);
    for (const int64_t T : {64, 200, 700}) {
        std::vector<int32_t> tokens(size_t(3 * T));
        for (int32_t& t : tokens) t = draw() % 50 == 0 ? 9 : 1;
        const Found f = find(DocBoundary::bos, tokens, 3);
        AttentionTiles want;
        for (int64_t row = 0; row < 3 * T; row += T)
            for (int64_t q = 0; q < T; q += kAttentionTile)
                for (int64_t k = 0; k <= q; k += kAttentionTile) {
                    bool seen = false;
                    for (int64_t t = q; t < std::min(q + kAttentionTile, T); ++t)
                        for (int64_t s = k; s < std::min(k + kAttentionTile, t + 1); ++s)
                            seen |= s >= f.starts[size_t(row + t)];
                    ++want.causal, want.skipped += !seen;
                }
        const AttentionTiles got = attention_tiles(f.starts.data(), 3, T);
        EXPECT_EQ(got.causal, want.causal) << T;
        EXPECT_EQ(got.skipped, want.skipped) << T;
        EXPECT_EQ(T > kAttentionTile, got.skipped > 0) << "documents of 50 tokens in rows of " << T;
    }
}

TEST(Documents, ATokenEndsEach) {
    const Found f = find(DocBoundary::eos, {5, 6, 9, 7, 9, 9, 9, 1, 2, 3, 4, 5}, 2);
    EXPECT_EQ(f.starts, (Ints{0, 0, 0, 3, 3, 5, 0, 1, 1, 1, 1, 1}));
    EXPECT_EQ(f.positions, (Ints{0, 1, 2, 0, 1, 0, 0, 0, 1, 2, 3, 4}));
    EXPECT_EQ(f.squares, 9 + 4 + 1 + 1 + 25);
}

// A window and documents: the later of the two first tokens; of a document as much counts as its tokens see.
TEST(Documents, AWindowHidesWhatIsFurtherBack) {
    const std::vector<int32_t> tokens{5, 6, 9, 7, 8, 8, 9, 1, 2, 3, 4, 5};
    Ints starts(12), positions(12);
    const int64_t squares =
        find_documents({DocBoundary::bos, 9, 3}, tokens.data(), 1, 12, starts.data(), positions.data());
    EXPECT_EQ(starts, (Ints{0, 0, 2, 2, 2, 3, 6, 6, 6, 7, 8, 9}));
    EXPECT_EQ(positions, (Ints{0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(squares, 2 * 2 + (4 * 4 - 1) + (6 * 6 - 3 * 3));
    EXPECT_EQ(attention_squares(12, 12), 144);
    EXPECT_EQ(attention_squares(12, 11), 143);
    EXPECT_EQ(attention_squares(12, 0), 144);
}

TEST(Documents, WithoutABoundaryARowIsOne) {
    const Found f = find(DocBoundary::none, {9, 9, 9, 9}, 1);
    EXPECT_EQ(f.starts, (Ints{0, 0, 0, 0}));
    EXPECT_EQ(f.squares, 16);
}

ModelConfig document_toy(int64_t window = 0) {
    ModelConfig c = toy24(/*tied=*/false, /*layers=*/2);
    c.heads = 4, c.kv_heads = 2, c.window = window;
    return resolved(c);
}

// Adds up the losses and gradients of what it is given, with the same weights always.
struct Summed {
    static constexpr int64_t kB = 2, kT = 48;
    Mesh mesh{kCpu};
    TrainState core;

    explicit Summed(Recompute recompute, DType dtype = DType::f32, int64_t window = 0)
        : core(document_toy(window),
               {.zero = {.param_dtype = dtype, .grad_dtype = DType::f32},
                .adamw = {},
                .stage = {.B = kB, .T = kT, .recompute = recompute, .logits_bytes = 4096}},
               kCpu, mesh) {
        initialise_weights(core.table, 3, core.compute, core.zero);
    }
    void add(int64_t B, int64_t T, const Ints& tokens, const Ints& targets, const DocumentMask& mask) {
        const HostBatch host(B, T, core.config.vocab, tokens, targets);
        DeviceBatch batch = host.view();
        Ints first(tokens.size()), positions(tokens.size());
        find_documents(mask, tokens.data(), B, T, first.data(), positions.data());
        if (mask) batch.first_key = first.data(), batch.positions = positions.data();
        core.model.train(batch, 1.0f / float(kB * kT));
        core.compute.synchronize();
    }
    double loss() const { return *core.model.loss_sum(); }
    std::vector<float> gradients() {
        std::vector<float> all;
        for (size_t u = 0; u < core.table.units().size(); ++u) {
            const auto* g = static_cast<const float*>(core.zero.grads.gradients(int(u)));
            all.insert(all.end(), g, g + core.table.units()[u].size);
        }
        return all;
    }
};

// Tokens whose documents begin, or end, with 36; and the same as one batch for each document.
struct Packed {
    DocumentMask mask;
    Ints tokens, targets;
    explicit Packed(DocBoundary boundary, int64_t window = 0) : mask{boundary, 36, window} {
        std::mt19937 rng(7);
        for (int64_t i = 0; i < Summed::kB * Summed::kT; ++i) {
            const bool doc = i == 1 || i == 20 || i == 21 || i == 47 || i == 48 || i == 80;
            tokens.push_back(doc ? 36 : int32_t(rng() % 36));
            targets.push_back(int32_t(rng() % 37));
        }
    }
    void add_separately(Summed& model) const {
        for (int64_t row = 0; row < Summed::kB; ++row)
            for (int64_t begin = row * Summed::kT; begin < (row + 1) * Summed::kT;) {
                int64_t end = begin + 1;
                const auto parts = [&] {
                    return tokens[size_t(mask.boundary == DocBoundary::bos ? end : end - 1)] == mask.token;
                };
                while (end < (row + 1) * Summed::kT && !parts()) ++end;
                const auto cut = [&](const Ints& x) { return Ints(x.begin() + begin, x.begin() + end); };
                model.add(1, end - begin, cut(tokens), cut(targets), {});
                begin = end;
            }
    }
};

// Both add up the same fp32 terms, in another order where a document's place differs: sums of some 100 terms.
TEST(Documents, PackedTrainsAsSeparately) {
    for (const auto& [boundary, window] :
         {std::pair<DocBoundary, int64_t>{DocBoundary::bos, 0}, {DocBoundary::eos, 0}, {DocBoundary::bos, 6}}) {
        const Packed data(boundary, window);
        Summed packed(Recompute::none, DType::f32, window), apart(Recompute::none, DType::f32, window),
            unmasked(Recompute::none, DType::f32, window);
        packed.add(Summed::kB, Summed::kT, data.tokens, data.targets, data.mask);
        unmasked.add(Summed::kB, Summed::kT, data.tokens, data.targets, {});
        data.add_separately(apart);
        EXPECT_NEAR(packed.loss(), apart.loss(), 1e-6 * apart.loss());
        EXPECT_GT(std::abs(unmasked.loss() - apart.loss()), 1e-4 * apart.loss());
        const std::vector<float> got = packed.gradients(), want = apart.gradients(), other = unmasked.gradients();
        ASSERT_EQ(got.size(), want.size());
        EXPECT_LE(distance(want, got), 2e-6);
        EXPECT_GT(distance(want, other), 1e-2);
    }
}

TEST(Documents, RecomputationGivesTheSameBits) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Packed data(DocBoundary::bos);
        std::vector<float> first;
        for (const Recompute recompute : {Recompute::none, Recompute::mlp, Recompute::block}) {
            Summed model(recompute, dtype);
            model.add(Summed::kB, Summed::kT, data.tokens, data.targets, data.mask);
            if (first.empty()) first = model.gradients();
            EXPECT_EQ(model.gradients(), first) << name_of(recompute);
        }
    }
}

}  // namespace
}  // namespace rz
