#pragma once
// Small models, and micro-batches in vectors, which a model on the CPU reads in place.

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/embedding.h"
#include "llama/data/batch.h"
#include "llama/model/config.h"

namespace rz {

inline ModelConfig resolved(ModelConfig c, bool tied = false) {
    c.tied = tied;
    c.init_std = 0.1;
    c.resolve();
    return c;
}

inline ModelConfig toy(int64_t kv_heads, bool tied = false) {
    ModelConfig c;  // ffn, vocabulary and rows divide by none of 2, 3, 4
    c.dim = 48, c.layers = 2, c.heads = 12, c.kv_heads = kv_heads, c.head_dim = 4, c.ffn = 23, c.vocab = 37;
    c.max_seq_len = 16;
    return resolved(c, tied);
}

// The smallest: slices of its units are padded on 3 and 4 ranks.
inline ModelConfig toy24(bool tied = false, int64_t layers = 3, int64_t vocab = 37) {
    ModelConfig c;
    c.dim = 24, c.layers = layers, c.heads = 3, c.kv_heads = 1, c.head_dim = 8, c.ffn = 20, c.vocab = vocab;
    c.max_seq_len = 64;
    return resolved(c, tied);
}

// A vocabulary whose embedding and head, of toy24, are cut into equal slices on 2, 3, 4 and 8 ranks: 48,960 and 48,984
// elements, which are padded to 49,152.
constexpr int64_t kEqualVocab = 2040;

// Sides in multiples of 16, for fp8; T is 16 too.
inline ModelConfig toy16(bool tied = false) {
    ModelConfig c;
    c.dim = 32, c.layers = 3, c.heads = 2, c.kv_heads = 1, c.head_dim = 16, c.ffn = 48, c.vocab = 37;
    c.max_seq_len = 16;
    return resolved(c, tied);
}

// Sides in multiples of 128, for fp8 in tiles; with two sequences T is 64.
inline ModelConfig toy128() {
    ModelConfig c;
    c.dim = 128, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.head_dim = 64, c.ffn = 128, c.vocab = 37;
    c.max_seq_len = 64;
    return resolved(c);
}

struct HostBatch {
    int64_t B = 0, T = 0;
    std::vector<int32_t> tokens, targets, rows = {}, starts = {}, ids = {};
    int64_t distinct = 0;

    HostBatch() = default;
    HostBatch(int64_t b, int64_t t, int64_t vocab, std::vector<int32_t> inputs, std::vector<int32_t> outputs)
        : B(b), T(t), tokens(std::move(inputs)), targets(std::move(outputs)) {
        rows.resize(tokens.size()), starts.resize(tokens.size() + 1), ids.resize(tokens.size());
        distinct = embedding_plan(tokens.data(), B * T, vocab, rows.data(), starts.data(), ids.data());
    }
    DeviceBatch view() const {
        return {B, T, tokens.data(), targets.data(), rows.data(), starts.data(), ids.data(), distinct};
    }
};

inline HostBatch random_batch(int64_t B, int64_t T, unsigned seed, int64_t vocab = 37) {
    std::mt19937 rng(seed);
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < B * T; ++i) {
        tokens.push_back(int32_t(rng() % uint64_t(vocab)));
        targets.push_back(int32_t(rng() % uint64_t(vocab)));
    }
    return {B, T, vocab, std::move(tokens), std::move(targets)};
}

}  // namespace rz
