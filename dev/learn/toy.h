#pragma once
// The program's own models, as the lessons ask it for tables, losses, gradients and bytes.

#include "dev/learn/lesson.h"
#include "kernels/embedding.h"
#include "llama/model/presets.h"
#include "llama/train/train_state.h"

namespace learn {

inline rz::ModelConfig preset(const char* name) {
    rz::ModelConfig c = rz::find_preset(name).config;
    c.resolve();
    return c;
}

// Small enough for a moment of work.
inline rz::ModelConfig toy(int64_t dim, int64_t layers, int64_t vocab) {
    rz::ModelConfig c = rz::find_preset("bytes").config;
    c.dim = dim, c.layers = layers, c.heads = 4, c.kv_heads = 2, c.ffn = 2 * dim, c.vocab = vocab;
    c.resolve();
    return c;
}

// A micro-batch of B rows of T random tokens, in the order that the embedding's gradient needs, too.
struct Batch {
    int64_t B, T, distinct;
    std::vector<int32_t> tokens, targets, rows, starts, ids;

    Batch(int64_t B, int64_t T, int64_t vocab)
        : B(B), T(T), tokens(size_t(B * T)), targets(tokens), rows(tokens), starts(tokens.size() + 1), ids(tokens) {
        for (unsigned i = 0; i < tokens.size(); ++i) {
            tokens[i] = int32_t((noise(i) + 1) / 2 * double(vocab));
            targets[i] = int32_t((noise(5000 + i) + 1) / 2 * double(vocab));
        }
        distinct = rz::embedding_plan(tokens.data(), B * T, vocab, rows.data(), starts.data(), ids.data());
    }
    operator rz::DeviceBatch() const {
        return {B, T, tokens.data(), targets.data(), rows.data(), starts.data(), ids.data(), distinct};
    }
};

// A step on one micro-batch of this rank; returns the gradient's norm.
inline float train_step(rz::TrainState& core, const Batch& batch, float grad_scale) {
    core.model.train(batch, grad_scale);
    core.zero.optimizer.gradient_norm();
    core.zero.optimizer.update(1e-3f, 1);
    core.compute.synchronize();
    return *core.zero.optimizer.norm();
}

}  // namespace learn
