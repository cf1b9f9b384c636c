#pragma once
// A toy LLaMA trained for a few steps under any sharding: what the ZeRO tests compare.

#include <cstring>
#include <random>
#include <vector>

#include "comm/mesh.h"
#include "kernels/embedding.h"
#include "kernels/runtime/context.h"
#include "llama/train/core.h"

namespace rz::zero_case {

struct Case {
    ZeroOptions zero;
    Recompute recompute = Recompute::none;
    bool tied = false;
    int64_t layers = 3;  // of the smallest toy
    int64_t vocab = 37;  // and of it
    int steps = 10;
    int64_t micro_batches = 1;
    int64_t B = 2;      // sequences per rank and micro-batch
    double clip = 0.5;  // below the first norms: clipping takes part
    int bad_step = 0;   // in this step the last rank has a gradient that is no number
    int left_out = 0;   // this step is not made at all
    float loss_factor = 1;
    Fp8Options fp8 = {};
    bool sides_of_16 = false;  // as with fp8
    bool fp8_gather = true;
    bool forgets = false;                        // each micro-batch, what was made of parameters before
    bool offload = false;                        // of activations, with Recompute::block
    std::vector<int64_t>* bytes_sent = nullptr;  // by rank, in the steps
};

// Sides in multiples of 128, for fp8 with tiles; 2 x 64 tokens.
inline ModelConfig toy128(bool tied) {
    ModelConfig c;
    c.dim = 128, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.head_dim = 64, c.ffn = 128, c.vocab = 37;
    c.max_seq_len = 64;
    c.tied = tied;
    c.init_std = 0.1;
    c.resolve();
    return c;
}

// Sides in multiples of 16, for fp8.
inline ModelConfig toy16(bool tied) {
    ModelConfig c;
    c.dim = 32, c.layers = 3, c.heads = 2, c.kv_heads = 1, c.head_dim = 16, c.ffn = 48, c.vocab = 37,
    c.max_seq_len = 16;
    c.tied = tied;
    c.init_std = 0.1;
    c.resolve();
    return c;
}

// Tokens whose embedding and head are cut into equal slices on 2, 3, 4 and 8 ranks: 48,960 and 48,984 elements, which
// are padded to 49,152.
constexpr int64_t kEqualVocab = 2040;

inline ModelConfig toy(bool tied, int64_t layers = 3, int64_t vocab = 37) {
    ModelConfig c;
    // 37 tokens, odd sizes: nothing divides by 3 or 4 ranks
    c.dim = 24, c.layers = layers, c.heads = 3, c.kv_heads = 1, c.head_dim = 8, c.ffn = 20, c.vocab = vocab,
    c.max_seq_len = 16;
    c.tied = tied;
    c.init_std = 0.1;
    c.resolve();
    return c;
}

struct Result {
    std::vector<float> weights;  // of all units, without padding; with an average that before them
    std::vector<float> norms;    // of each step that was made
    int64_t updates = 0;         // that AdamW counted
    std::vector<float> scales;   // with loss scaling: after each step
    bool operator==(const Result&) const = default;
};

// Global sequence s holds tokens drawn from a generator seeded by s, so every split of the batch sees the same data.
inline void fill_sequences(int64_t first, int64_t count, int64_t T, int64_t V, int32_t* tokens, int32_t* targets) {
    for (int64_t s = 0; s < count; ++s) {
        std::mt19937 rng(uint32_t(first + s) * 2654435761u + 17);
        for (int64_t t = 0; t < T; ++t) {
            tokens[s * T + t] = int32_t(rng() % uint32_t(V));
            targets[s * T + t] = int32_t(rng() % uint32_t(V));
        }
    }
}

// All units without padding, as this rank's parameters are.
inline void add_weights(TrainingCore& core, std::vector<float>& weights) {
    const DType dtype = core.zero.options.param_dtype;
    for (int u = 0; u < int(core.table.units().size()); ++u) {
        const UnitLayout& unit = core.zero.ownership.unit(u);
        const Buffer whole(core.device, unit.padded * size_of(dtype), MemKind::workspace, "a unit");
        core.zero.params.gather_whole(u, whole.data());
        core.compute.synchronize();
        if (core.device.is_planned() && !core.device.context->planned.executes) continue;
        with_dtype(dtype, [&]<class E>() {
            for (int64_t i = 0; i < core.table.units()[size_t(u)].size; ++i)
                weights.push_back(float(whole.as<const E>()[i]));
        });
    }
}

// On the mesh's device. A planned one that executes nothing has no results.
inline Result train(Mesh& mesh, const Case& how) {
    const Device device = mesh.data().transport().device();
    const bool executes = !device.is_planned() || device.context->planned.executes;
    const bool sides_of_16 = how.sides_of_16 || how.fp8.on();
    const bool tiles = how.fp8.on() && how.fp8.recipe != Fp8Recipe::tensor;
    const int64_t T = tiles ? 64 : sides_of_16 ? 16 : 11;
    TrainingCore core(tiles         ? toy128(how.tied)
                      : sides_of_16 ? toy16(how.tied)
                                    : toy(how.tied, how.layers, how.vocab),
                      {.zero = how.zero,
                       .adamw = {.max_norm = float(how.clip)},
                       .stage = {.B = how.B,
                                 .T = T,
                                 .recompute = how.recompute,
                                 .logits_bytes = 4096,
                                 .fp8 = how.fp8,
                                 .offload = how.offload},
                       .micro_batches = how.micro_batches,
                       .fp8_gather = how.fp8_gather,
                       .threads = 1},  // ranks outnumber cores
                      device, mesh);
    const ModelConfig& config = core.config;
    const ParamTable& table = core.table;
    Stream& compute = core.compute;
    Zero& zero = core.zero;
    const int64_t N = how.B * T;
    initialise_weights(table, 11, compute, zero);

    Result result;
    std::vector<int32_t> tokens(static_cast<size_t>(N)), targets(tokens), rows(tokens), starts(size_t(N + 1)),
        ids(tokens);
    const Place data = mesh.place(Axis::data);
    const int64_t per_pass = how.B * data.size;
    compute.synchronize();
    mesh.stream().synchronize();
    const int64_t bytes_before = mesh.bytes_sent();
    for (int step = 1; step <= how.steps; ++step) {
        if (step == how.left_out) continue;
        if (step == how.bad_step && data.rank == data.size - 1) {
            static const uint32_t kNan = 0x7fc00000;
            const int64_t e = size_of(how.zero.grad_dtype);
            void* gradient = zero.grads.gradients(int(table.units().size()) - 1);
            compute.copy(gradient, reinterpret_cast<const char*>(&kNan) + (4 - e), e);
        }
        const LossScaleState* scale = zero.optimizer.loss_scale();
        const Goal goal{.pass = Pass::train,
                        .grad_scale = how.loss_factor / float(N * data.size * how.micro_batches),
                        .loss_scale = scale ? &scale->scale : nullptr};
        core.model.run(core.program, goal, [&](int64_t m) -> DeviceBatch {
            compute.synchronize();  // the token vectors are filled again
            if (how.forgets) zero.params.forget_what_was_made();
            const int64_t first = ((step - 1) * how.micro_batches + m) * per_pass + data.rank * how.B;
            fill_sequences(first, how.B, T, config.vocab, tokens.data(), targets.data());
            const int64_t distinct =
                embedding_plan(tokens.data(), N, config.vocab, rows.data(), starts.data(), ids.data());
            return {how.B, T, tokens.data(), targets.data(), rows.data(), starts.data(), ids.data(), distinct};
        });
        zero.optimizer.gradient_norm();
        zero.optimizer.update(1e-2f, step);
        compute.synchronize();
        if (executes) result.norms.push_back(*zero.optimizer.norm());
        if (executes && scale) result.scales.push_back(scale->scale);
    }
    if (how.bytes_sent) (*how.bytes_sent)[size_t(data.rank)] = mesh.bytes_sent() - bytes_before;
    compute.copy(&result.updates, zero.optimizer.updates(), 8);
    if (how.zero.ema > 0) {
        zero.optimizer.show_average();
        add_weights(core, result.weights);
        zero.optimizer.show_weights();
    }
    add_weights(core, result.weights);
    return result;
}

}  // namespace rz::zero_case
