#pragma once
// One model trained on ranks that are threads, on any layout of them, and what came out: for tests that compare
// layouts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "comm/process.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gemm/gemm.h"
#include "llama/model/weights.h"
#include "llama/train/core.h"
#include "llama/train/statistics.h"
#include "llama/train/traffic.h"

namespace rz {
namespace layout_runs {

inline ModelConfig toy(int64_t kv_heads, bool tied = false) {
    ModelConfig c;  // ffn, vocabulary and rows divide by none of 2, 3, 4
    c.dim = 48, c.layers = 2, c.heads = 12, c.kv_heads = kv_heads, c.head_dim = 4, c.ffn = 23, c.vocab = 37;
    c.max_seq_len = 16;
    c.tied = tied;
    c.init_std = 0.1;
    c.resolve();
    return c;
}

constexpr int64_t kT = 11;

struct Layout {
    ModelConfig config = toy(3);
    int tp = 1, dp = 1, pp = 1;
    std::optional<PipelineKind> schedule = {};
    int shard_size = 0;
    ZeroOptions zero = {};
    Fp8Options fp8 = {};
    bool forgets = false;  // each micro-batch, what was made of parameters before
    Recompute recompute = Recompute::none;
    int64_t B = 2, micro_batches = 1;  // B: of all dp ranks together
    int steps = 10;
    bool wire_f32 = true, overlap = false;
    std::string folder = {};                         // where weights are loaded from; none: drawn
    std::vector<int32_t> inputs = {}, targets = {};  // (B, T); none: drawn
    int64_t T = kT;
    float rate = 1e-3f, z_loss = 0;
    bool decay_embeddings = true;
    int left_out = 0;  // the update of this step, from 1
    Mup mup = {};
    int64_t logits_bytes = 1500;      // several chunks
    int64_t first_micro_batch = 0;    // of those that sequences are numbered by
    int64_t scale_micro_batches = 0;  // gradients are those of a mean over so many; 0: micro_batches
    bool head_is_embedding = false;   // an untied head begins with the embedding's weights
    bool statistics = false;          // of the last step
    bool halves = false;              // the first dp rank has a step's first micro-batches, the next one the next, ...

    float grad_scale() const {
        return 1.0f / float(B * T * (scale_micro_batches ? scale_micro_batches : micro_batches));
    }
    // First sequence of a dp rank's share of B sequences of a micro-batch.
    int64_t first_sequence(int step, int64_t micro_batch, int64_t share, Place dp) const {
        return halves ? ((step * dp.size + dp.rank) * micro_batches + micro_batch) * share
                      : (step * micro_batches + first_micro_batch + micro_batch) * B + dp.rank * share;
    }
};

using Tensors = std::vector<std::vector<float>>;

struct Outcome {
    std::vector<double> losses, z_losses;   // of each step, mean over tokens
    std::vector<std::vector<float>> norms;  // by rank, of each step
    Tensors averages;                       // with zero.ema
    Tensors weights, gradients;             // whole; gradients: of the last step, before the update, without dp
    std::string statistics;                 // JSON
    int64_t unequal = 0;                    // elements that two ranks hold and that differ
    std::vector<std::vector<int64_t>> sent, expected;  // by rank: bytes_sent()
};

class Collector {
   public:
    Collector(const ModelConfig& config, Tensors& into) : into_(into) {
        const ParamTable whole(config);
        for (const Tensor& t : whole.tensors()) {
            into_.emplace_back(size_t(t.size), 0.0f);
            seen_.emplace_back(size_t(t.size), false);
        }
    }
    void add(const ParamTable& table, int unit, const void* data, DType dtype) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const UnitLayout& u = table.held_units()[size_t(unit)];
        table.for_each_run(u.offset, u.offset + u.padded, INT64_MAX, [&](const TensorRun& run) {
            with_dtype(dtype, [&]<class E>() {
                const E* x = static_cast<const E*>(data) + run.local - u.offset;
                for (int64_t i = 0; i < run.count; ++i) {
                    const size_t tensor = size_t(run.tensor), at = size_t(run.first + i);
                    const float value = float(x[i]);
                    if (seen_[tensor][at])
                        unequal_ += std::memcmp(&into_[tensor][at], &value, 4) != 0;
                    else
                        into_[tensor][at] = value, seen_[tensor][at] = true;
                }
            });
        });
    }
    int64_t unequal() const { return unequal_; }  // elements that two ranks have given different values
    int64_t missing() const {
        int64_t n = 0;
        for (const auto& tensor : seen_) n += std::count(tensor.begin(), tensor.end(), false);
        return n;
    }

   private:
    std::mutex mutex_;
    Tensors& into_;
    int64_t unequal_ = 0;
    std::vector<std::vector<bool>> seen_;
};

// Sequence s of a run holds the same tokens at any layout.
inline void draw(int64_t first, int64_t count, int64_t T, int64_t V, int32_t* tokens, int32_t* targets) {
    for (int64_t s = 0; s < count; ++s) {
        std::mt19937 rng(uint32_t(first + s) * 2654435761u + 17);
        for (int64_t t = 0; t < T; ++t) {
            tokens[s * T + t] = int32_t(rng() % uint32_t(V));
            targets[s * T + t] = rng() % 9 == 0 ? kIgnoreTarget : int32_t(rng() % uint32_t(V));
        }
    }
}

struct HostBatch {
    std::vector<int32_t> tokens, targets, rows, starts, ids;
};

inline DeviceBatch fill(HostBatch& b, const Layout& how, int64_t B, int64_t first) {
    const int64_t N = B * how.T;
    const size_t n = size_t(N);
    b = {how.inputs, how.targets, std::vector<int32_t>(n), std::vector<int32_t>(n + 1), std::vector<int32_t>(n)};
    if (how.inputs.empty()) {
        b.tokens.resize(n), b.targets.resize(n);
        draw(first, B, how.T, how.config.vocab, b.tokens.data(), b.targets.data());
    }
    const int64_t distinct =
        embedding_plan(b.tokens.data(), N, how.config.vocab, b.rows.data(), b.starts.data(), b.ids.data());
    return {B, how.T, b.tokens.data(), b.targets.data(), b.rows.data(), b.starts.data(), b.ids.data(), distinct};
}

// On tp, on the data axis with what shard and replicate cut of it, on model, and on all axes.
inline std::vector<int64_t> bytes_sent(const Mesh& mesh) {
    int64_t data = mesh.data().transport().bytes_sent();
    for (Collectives* part : {&mesh.shard(), &mesh.replicate()})
        if (part != &mesh.data()) data += part->transport().bytes_sent();
    return {mesh.tp().transport().bytes_sent(), data, mesh.model().transport().bytes_sent(), mesh.bytes_sent()};
}

// For one rank without shards.
inline void copy_embedding_to_head(TrainingCore& core) {
    const Tensor &head = core.table.head(), &embedding = core.table.embedding();
    const auto at = [&](const Tensor& t) {
        return static_cast<char*>(core.zero.optimizer.owned()[size_t(t.unit)].master) + core.table.within(t) * 4;
    };
    core.compute.copy(at(head), at(embedding), head.size * 4);
    core.zero.optimizer.publish();
}

inline void add_parameters(TrainingCore& core, Collector& into) {
    const DType dtype = core.zero.options.param_dtype;
    for (int u = 0; u < int(core.table.held_units().size()); ++u) {
        const int64_t bytes = core.table.held_units()[size_t(u)].padded * size_of(dtype);
        const Buffer whole(core.device, bytes, MemKind::workspace, "a unit");
        core.zero.params.gather_whole(u, whole.data());
        core.compute.synchronize();
        into.add(core.table, u, whole.data(), dtype);
    }
}

inline CoreOptions core_options(const Layout& how, int64_t B) {
    return {.zero = how.zero,
            .adamw = {.max_norm = 0.5f},
            .decay_embeddings = how.decay_embeddings,
            .mup = how.mup,
            .stage = {.B = B,
                      .T = how.T,
                      .recompute = how.recompute,
                      .logits_bytes = how.logits_bytes,
                      .fp8 = how.fp8,
                      .z_loss = how.z_loss},
            .micro_batches = how.micro_batches,
            .threads = 1,
            .pipeline = {.schedule = {.kind = how.schedule}},
            .tp_overlap = how.overlap,
            .tp_wire_f32 = how.wire_f32};
}

inline Outcome train(const Layout& how) {
    const int ranks = how.tp * how.dp * how.pp;
    Outcome out;
    out.losses.resize(size_t(how.steps));
    out.z_losses.resize(size_t(how.steps));
    out.norms.resize(size_t(ranks));
    out.sent.resize(size_t(ranks)), out.expected.resize(size_t(ranks));
    Collector weights(how.config, out.weights), gradients(how.config, out.gradients),
        averages(how.config, out.averages);
    std::mutex mutex;
    LoopbackHub hub(ranks);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, {.grid = {.tp = how.tp, .pp = how.pp, .shard_size = how.shard_size}});
        const int64_t B = how.B / how.dp;
        TrainingCore core(how.config, core_options(how, B), hub.device(rank), mesh);
        Stream& compute = core.compute;
        if (how.folder.empty())
            initialise_weights(core.table, 11, compute, core.zero, mup_table(how.mup, how.config, core.table));
        else
            load_weights(how.folder, core.table, hub.device(rank), compute, core.zero);
        if (how.head_is_embedding) copy_embedding_to_head(core);
        std::vector<HostBatch> batches(static_cast<size_t>(how.micro_batches));  // all of a step: a pipeline's overlap
        const Place dp = mesh.place(Axis::dp);
        std::optional<Statistics> statistics;
        if (how.statistics) statistics.emplace(core);
        const std::vector<int64_t> before = bytes_sent(mesh);
        for (int step = 0; step < how.steps; ++step) {
            Goal goal{.pass = Pass::train, .grad_scale = how.grad_scale()};
            if (statistics) statistics->begin(), goal.watch = statistics->watch();
            core.model.run(core.program, goal, [&](int64_t m) {
                if (how.forgets) core.zero.params.forget_what_was_made();
                return fill(batches[size_t(m)], how, B, how.first_sequence(step, m, B, dp));
            });
            core.zero.optimizer.gradient_norm();
            compute.synchronize();
            if (step == how.steps - 1 && how.dp == 1 && how.zero.whole_gradients())
                for (int u = 0; u < int(core.table.held_units().size()); ++u)
                    gradients.add(core.table, u, core.zero.grads.gradients(u), how.zero.grad_dtype);
            if (step + 1 == how.left_out) core.zero.optimizer.leave_out();
            core.zero.optimizer.update(how.rate, step + 1);
            if (statistics) statistics->end(step);
            compute.synchronize();
            const std::lock_guard<std::mutex> lock(mutex);
            out.norms[size_t(rank)].push_back(*core.zero.optimizer.norm());
            out.losses[size_t(step)] += *core.model.loss_sum() / double(how.B * how.T * how.micro_batches);
            if (const double* z = core.model.z_sum())
                out.z_losses[size_t(step)] += *z / double(how.B * how.T * how.micro_batches);
            core.model.reset_loss();
        }
        if (statistics) {
            Process process(hub, rank);
            process.run([&] {
                const std::string json =
                    statistics->report(how.steps - 1, process, 1, how.B * how.T * how.micro_batches);
                if (rank == 0) out.statistics = json;
                return 0;
            });
        }
        out.sent[size_t(rank)] = bytes_sent(mesh);
        const Traffic t = step_traffic(core);
        out.expected[size_t(rank)] = {t.tp, t.data + t.replicate, t.model, t.total()};
        for (size_t k = 0; k < before.size(); ++k) {
            out.sent[size_t(rank)][k] -= before[k];
            out.expected[size_t(rank)][k] *= how.steps;
        }
        if (how.zero.ema > 0) {
            core.zero.optimizer.show_average();
            add_parameters(core, averages);
            core.zero.optimizer.show_weights();
        }
        add_parameters(core, weights);
    });
    EXPECT_EQ(weights.missing(), 0);
    out.unequal = weights.unequal() + gradients.unequal() + averages.unequal();
    return out;
}

// While one lives, products are our own: each element's bits depend on its row and column alone.
struct OwnGemm {
    const bool library = gemm_cpu_uses_library();
    OwnGemm() { set_gemm_cpu_uses_library(false); }
    ~OwnGemm() { set_gemm_cpu_uses_library(library); }
};

// A layout may differ so much from one rank's, in fp32 over ten steps.
inline void expect_close(const Outcome& got, const Outcome& want, double sum_of_rates) {
    for (size_t s = 0; s < want.losses.size(); ++s) {
        EXPECT_NEAR(got.losses[s], want.losses[s], 1e-5 * want.losses[s]) << "step " << s + 1;
        for (const auto& norms : got.norms) {
            EXPECT_EQ(norms[s], got.norms[0][s]) << "the norm is the same number on all ranks";
            EXPECT_NEAR(norms[s], want.norms[0][s], 1e-6 * want.norms[0][s]) << "step " << s + 1;
        }
    }
    double difference = 0, size = 0, largest = 0;
    for (size_t t = 0; t < want.weights.size(); ++t)
        for (size_t i = 0; i < want.weights[t].size(); ++i) {
            const double w = want.weights[t][i], d = got.weights[t][i] - w;
            difference += d * d, size += w * w, largest = std::max(largest, std::abs(d));
        }
    EXPECT_LE(largest, 2 * sum_of_rates);
    EXPECT_LE(std::sqrt(difference / size), 1e-5);
    EXPECT_EQ(got.unequal, 0) << "what several ranks hold differs";
    EXPECT_EQ(got.sent, got.expected) << "bytes";
}

}  // namespace layout_runs
}  // namespace rz
