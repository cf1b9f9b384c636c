#pragma once
// A toy LLaMA trained on any layout of ranks, and what came out of it. A test of layouts is a table: one layout, what
// is promised of others, and of each of them the settings that differ.
//
//   const Layout one{.steps = 3};
//   expect_rows({"--tp 2", "--dp 3 --zero 3 --recompute block"}, one, is_close_to(train(one), 3 * one.rate));

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "comm/process.h"
#include "kernels/cross_entropy.h"
#include "kernels/gemm/gemm.h"
#include "llama/model/weights.h"
#include "llama/train/train_state.h"
#include "llama/train/statistics.h"
#include "llama/train/traffic.h"
#include "test/llama/toys.h"

namespace rz {
namespace layout_runs {

constexpr int64_t kT = 11;

struct Layout {
    ModelConfig config = toy(3);
    int tp = 1, dp = 1, pp = 1;
    std::optional<PipelineKind> schedule = {};
    int shard_size = 0;
    std::optional<Algorithm> algorithm = {};  // of the data axis
    int64_t chunk_bytes = 0;
    int ranks_per_node = 0;
    CommMeter* meter = nullptr;
    ZeroOptions zero = {};
    Fp8Options fp8 = {};
    bool fp8_gather = true;
    bool offload = false;  // of activations, with Recompute::block
    bool forgets = false;  // each micro-batch, what was made of parameters before
    Recompute recompute = Recompute::none;
    int64_t B = 2, micro_batches = 1;  // B: of all dp ranks together
    int steps = 10;
    bool wire_f32 = true, overlap = false;
    std::string folder = {};                         // where weights are loaded from; none: drawn
    std::vector<int32_t> inputs = {}, targets = {};  // (B, T); none: drawn
    int64_t T = kT;
    float rate = 1e-3f, z_loss = 0;
    float clip = 0.5f;  // below the first norms: clipping takes part
    float loss_factor = 1;
    bool decay_embeddings = true;
    int left_out = 0;  // the update of this step, from 1
    int bad_step = 0;  // in this step the last data rank has a gradient that is no number
    int omitted = 0;   // this step is not made at all
    Mup mup = {};
    int64_t logits_bytes = 1500;      // several chunks
    int64_t first_micro_batch = 0;    // of those that sequences are numbered by
    int64_t scale_micro_batches = 0;  // gradients are those of a mean over so many; 0: micro_batches
    bool head_is_embedding = false;   // an untied head begins with the embedding's weights
    bool statistics = false;          // of the last step
    bool halves = false;              // the first dp rank has a step's first micro-batches, the next one the next, ...

    int ranks() const { return tp * dp * pp; }
    float grad_scale() const {
        return loss_factor / float(B * T * (scale_micro_batches ? scale_micro_batches : micro_batches));
    }
    // First sequence of a dp rank's share of B sequences of a micro-batch.
    int64_t first_sequence(int step, int64_t micro_batch, int64_t share, AxisRank dp) const {
        return halves ? ((step * dp.size + dp.rank) * micro_batches + micro_batch) * share
                      : (step * micro_batches + first_micro_batch + micro_batch) * B + dp.rank * share;
    }
};

// A layout with some other settings, by the program's names for them where it has any: "--tp 2 --zero 3".
inline Layout with(Layout how, const std::string& settings) {
    std::string setting, value;
    ZeroOptions& zero = how.zero;
    const auto number = [&](auto& field) {
        return [&] { field = static_cast<std::remove_reference_t<decltype(field)>>(std::stoll(value)); };
    };
    const auto on_off = [&](bool& field) { return [&] { field = value == "on"; }; };
    const auto named = [&](auto& field) {
        return [&] { field = parse_name<std::remove_reference_t<decltype(field)>>(setting.c_str(), value); };
    };
    const std::map<std::string, std::function<void()>> settings_by_name = {
        {"--layers", number(how.config.layers)},
        {"--tp", number(how.tp)},
        {"--dp", number(how.dp)},
        {"--pp", number(how.pp)},
        {"--pp-schedule", [&] { how.schedule = parse_name<PipelineKind>("--pp-schedule", value); }},
        {"--shard-size", number(how.shard_size)},
        {"--collectives", [&] { how.algorithm = parse_name<Algorithm>("--collectives", value); }},
        {"--ring-chunk", number(how.chunk_bytes)},
        {"--ranks-per-node", number(how.ranks_per_node)},
        {"--zero", number(zero.stage)},
        {"--dtype", [&] { zero.param_dtype = parse_dtype("--dtype", value); }},
        {"--grad-dtype", [&] { zero.grad_dtype = parse_dtype("--grad-dtype", value); }},
        {"--wire-dtype", [&] { zero.wire_dtype = parse_dtype("--wire-dtype", value); }},
        {"--master-dtype", [&] { zero.master_dtype = parse_dtype("--master-dtype", value); }},
        {"--adam-dtype", [&] { zero.adam_dtype = parse_dtype("--adam-dtype", value); }},
        {"--overlap", on_off(zero.overlap)},
        {"--prefetch", number(zero.prefetch)},
        {"--accumulate-locally", on_off(zero.accumulate_locally)},
        {"--bucket-bytes", number(zero.bucket_bytes)},
        {"--offload-optimizer", named(zero.offload_optimizer)},
        {"--offload-params", on_off(zero.offload_params)},
        {"--offload-grads", on_off(zero.offload_grads)},
        {"--offload-activations", on_off(how.offload)},
        {"--fp8", named(how.fp8.recipe)},
        {"--fp8-skip-first", number(how.fp8.skip_first)},
        {"--fp8-skip-last", number(how.fp8.skip_last)},
        {"--fp8-keep-weights", on_off(how.fp8.keep_weights)},
        {"--fp8-gather", on_off(how.fp8_gather)},
        {"--recompute", named(how.recompute)},
        {"--tp-overlap", on_off(how.overlap)},
        {"--steps", number(how.steps)},
        {"--batch", number(how.B)},
        {"--micro-batches", number(how.micro_batches)},
        {"--logits-bytes", number(how.logits_bytes)}};
    std::istringstream words(settings);
    while (words >> setting >> value) {
        require(settings_by_name.contains(setting), "no setting of a layout: %s", setting.c_str());
        settings_by_name.at(setting)();
    }
    how.config.resolve();
    return how;
}

// Ranks of the data axis alone, two sequences each.
inline Layout data_ranks(int ranks, const ModelConfig& config = toy24()) {
    return {.config = config, .dp = ranks, .B = 2 * ranks, .rate = 1e-2f, .logits_bytes = 4096};
}

using Tensors = std::vector<std::vector<float>>;

struct Outcome {
    std::vector<double> losses, z_losses;   // of each step, mean over tokens
    std::vector<std::vector<float>> norms;  // by rank, of each step
    Tensors averages;                       // with zero.ema
    Tensors weights, gradients;             // whole; gradients: of the last step, before the update, without dp
    std::string statistics;                 // JSON
    int64_t unequal = 0;                    // elements that two ranks hold and that differ
    int64_t missing = 0;                    // elements that no rank has
    std::vector<std::vector<int64_t>> sent, expected;  // by rank: bytes_sent()
    int64_t updates = 0;                               // that the optimizer counted
    std::vector<float> scales;                         // with loss scaling: after each step

    int64_t all_bytes() const {  // that all ranks sent
        int64_t sum = 0;
        for (const auto& axes : sent) sum += axes.back();
        return sum;
    }
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

inline DeviceBatch fill(HostBatch& b, const Layout& how, int64_t B, int64_t first) {
    std::vector<int32_t> tokens = how.inputs, targets = how.targets;
    if (tokens.empty()) {
        tokens.resize(size_t(B * how.T)), targets.resize(tokens.size());
        draw(first, B, how.T, how.config.vocab, tokens.data(), targets.data());
    }
    b = {B, how.T, how.config.vocab, std::move(tokens), std::move(targets)};
    return b.view();
}

// On tp, on the data axis with what shard and replicate cut of it, on model, and on all axes.
inline std::vector<int64_t> bytes_sent(const Mesh& mesh) {
    int64_t data = mesh.data().transport().bytes_sent();
    for (Collectives* part : {&mesh.shard(), &mesh.replicate()})
        if (part != &mesh.data()) data += part->transport().bytes_sent();
    return {mesh.tp().transport().bytes_sent(), data, mesh.model().transport().bytes_sent(), mesh.bytes_sent()};
}

// For one rank without shards.
inline void copy_embedding_to_head(TrainState& core) {
    const Tensor &head = core.table.head(), &embedding = core.table.embedding();
    const auto at = [&](const Tensor& t) {
        return static_cast<char*>(core.zero.optimizer.owned()[size_t(t.unit)].master) + core.table.within(t) * 4;
    };
    core.compute.copy(at(head), at(embedding), head.size * 4);
    core.zero.optimizer.all_gather_updated();
}

inline void add_parameters(TrainState& core, Collector& into, bool executes) {
    const DType dtype = core.zero.options.param_dtype;
    for (int u = 0; u < int(core.table.held_units().size()); ++u) {
        const int64_t bytes = core.table.held_units()[size_t(u)].padded * size_of(dtype);
        const Buffer whole(core.device, bytes, MemKind::workspace, "a unit");
        core.zero.params.gather_whole(u, whole.data());
        core.compute.synchronize();
        if (executes) into.add(core.table, u, whole.data(), dtype);
    }
}

inline CoreOptions core_options(const Layout& how) {
    return {.zero = how.zero,
            .adamw = {.max_norm = how.clip},
            .decay_embeddings = how.decay_embeddings,
            .mup = how.mup,
            .stage = {.B = how.B / how.dp,
                      .T = how.T,
                      .recompute = how.recompute,
                      .logits_bytes = how.logits_bytes,
                      .fp8 = how.fp8,
                      .offload = how.offload,
                      .z_loss = how.z_loss},
            .micro_batches = how.micro_batches,
            .fp8_gather = how.fp8_gather,
            .threads = 1,  // ranks outnumber cores
            .pipeline = {.schedule = {.kind = how.schedule}},
            .tp_overlap = how.overlap,
            .tp_wire_f32 = how.wire_f32};
}

inline MeshOptions mesh_options(const Layout& how) {
    MeshOptions options{.grid = {.tp = how.tp, .pp = how.pp, .shard_size = how.shard_size}};
    options.algorithms.data = how.algorithm;
    options.ranks_per_node = how.ranks_per_node;
    options.collectives.chunk_bytes = how.chunk_bytes;
    options.collectives.meter = how.meter;
    return options;
}

// One run: on() by each rank, in its thread or process, then end(). A planned device that executes nothing leaves no
// results.
class LayoutRun {
   public:
    explicit LayoutRun(const Layout& how)
        : how_(how),
          weights_(how.config, out_.weights),
          gradients_(how.config, out_.gradients),
          averages_(how.config, out_.averages) {
        out_.losses.resize(size_t(how.steps));
        out_.z_losses.resize(size_t(how.steps));
        out_.norms.resize(size_t(how.ranks()));
        out_.sent.resize(size_t(how.ranks())), out_.expected.resize(size_t(how.ranks()));
    }

    // `hub`: that of ranks that are threads, for statistics.
    void on(Mesh& mesh, LoopbackHub* hub = nullptr) {
        const Layout& how = how_;
        const int rank = mesh.world().rank;
        const Device device = mesh.data().transport().device();
        const bool executes = !device.is_planned() || device.context->planned.executes;
        const int64_t B = how.B / how.dp;
        TrainState core(how.config, core_options(how), device, mesh);
        Stream& compute = core.compute;
        ShardedAdamW& optimizer = core.zero.optimizer;
        if (how.folder.empty())
            initialise_weights(core.table, 11, compute, core.zero, mup_table(how.mup, how.config, core.table));
        else
            load_weights(how.folder, core.table, device, compute, core.zero);
        if (how.head_is_embedding) copy_embedding_to_head(core);
        std::vector<HostBatch> batches(static_cast<size_t>(how.micro_batches));  // all of a step: a pipeline's overlap
        const AxisRank dp = mesh.place(Axis::dp);
        std::optional<Statistics> statistics;
        if (how.statistics) statistics.emplace(core);
        compute.synchronize();
        mesh.stream().synchronize();
        const std::vector<int64_t> before = bytes_sent(mesh);
        for (int step = 0; step < how.steps; ++step) {
            if (step + 1 == how.omitted) continue;
            if (step + 1 == how.bad_step && dp.rank == dp.size - 1) damage_a_gradient(core);
            const LossScaleState* scale = optimizer.loss_scale();
            PassArgs goal{
                .pass = Pass::train, .grad_scale = how.grad_scale(), .loss_scale = scale ? &scale->scale : nullptr};
            if (statistics) statistics->begin(), goal.watch = statistics->watch();
            core.model.run(core.program, goal, [&](int64_t m) {
                if (how.forgets) core.zero.params.forget_what_was_made();
                return fill(batches[size_t(m)], how, B, how.first_sequence(step, m, B, dp));
            });
            optimizer.gradient_norm();
            if (step == how.steps - 1 && how.dp == 1 && how.zero.whole_gradients() && executes) {
                compute.synchronize();
                for (int u = 0; u < int(core.table.held_units().size()); ++u)
                    gradients_.add(core.table, u, core.zero.grads.gradients(u), how.zero.grad_dtype);
            }
            if (step + 1 == how.left_out) optimizer.leave_out();
            optimizer.update(how.rate, step + 1);
            if (statistics) statistics->end(step);
            compute.synchronize();
            if (executes) add_numbers(core, rank, step);
            core.model.reset_loss();
        }
        if (statistics) {
            Process process(*hub, rank);
            process.run([&] {
                const std::string json =
                    statistics->report(how.steps - 1, process, 1, how.B * how.T * how.micro_batches);
                if (rank == 0) out_.statistics = json;
                return 0;
            });
        }
        std::vector<int64_t>&sent = out_.sent[size_t(rank)], &expected = out_.expected[size_t(rank)];
        sent = bytes_sent(mesh);
        const Traffic t = step_traffic(core);
        expected = {t.tp, t.data + t.replicate, t.model, t.total()};
        for (size_t k = 0; k < before.size(); ++k) {
            sent[k] -= before[k];
            expected[k] *= how.steps - (how.omitted > 0);
        }
        // The formulas are of one level, and do not have what Muon gathers of matrices that are cut.
        if (how.algorithm == Algorithm::hier || how.zero.muon.on) expected = sent;
        if (rank == 0) compute.copy(&out_.updates, optimizer.updates(), sizeof out_.updates);
        if (how.zero.ema > 0) {
            optimizer.show_average();
            add_parameters(core, averages_, executes);
            optimizer.show_weights();
        }
        add_parameters(core, weights_, executes);
    }

    Outcome end() {
        out_.unequal = weights_.unequal() + gradients_.unequal() + averages_.unequal();
        out_.missing = weights_.missing();
        return std::move(out_);
    }

   private:
    static void damage_a_gradient(TrainState& core) {
        static const uint32_t kNan = 0x7fc00000;
        const int64_t e = size_of(core.zero.options.grad_dtype);
        void* gradient = core.zero.grads.gradients(int(core.table.held_units().size()) - 1);
        core.compute.copy(gradient, reinterpret_cast<const char*>(&kNan) + (4 - e), e);
    }
    void add_numbers(TrainState& core, int rank, int step) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const double tokens = double(how_.B * how_.T * how_.micro_batches);
        out_.norms[size_t(rank)].push_back(*core.zero.optimizer.norm());
        out_.losses[size_t(step)] += *core.model.loss_sum() / tokens;
        if (const double* z = core.model.z_sum()) out_.z_losses[size_t(step)] += *z / tokens;
        if (const LossScaleState* s = core.zero.optimizer.loss_scale(); s && rank == 0) out_.scales.push_back(s->scale);
    }

    const Layout how_;
    std::mutex mutex_;
    Outcome out_;
    Collector weights_, gradients_, averages_;
};

// Ranks are the hub's threads. `done` is called by each at the end.
inline Outcome train(const Layout& how, LoopbackHub& hub, const std::function<void(int rank, Mesh&)>& done = {}) {
    LayoutRun run(how);
    hub.run([&](int rank) {
        Mesh mesh(hub, rank, mesh_options(how));
        run.on(mesh, &hub);
        if (done) done(rank, mesh);
    });
    return run.end();
}

inline Outcome train(const Layout& how) {
    LoopbackHub hub(how.ranks());
    Outcome out = train(how, hub);
    EXPECT_EQ(out.missing, 0);
    return out;
}

// While one lives, products are our own: each element's bits depend on its row and column alone.
struct OwnGemm {
    const bool library = gemm_cpu_uses_library();
    OwnGemm() { set_gemm_cpu_uses_library(false); }
    ~OwnGemm() { set_gemm_cpu_uses_library(library); }
};

// ---- what is promised of a layout -----------------------------------------------------------------------------------

using Promise = std::function<void(const Outcome& got)>;

// All that a rank could tell: weights, averages, the norm of each step (one that is no number in the same steps),
// losses but for the order in which ranks' are added.
inline void expect_the_bits(const Outcome& got, const Outcome& want) {
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    EXPECT_TRUE(got.weights == want.weights);
    EXPECT_TRUE(got.averages == want.averages);
    EXPECT_EQ(got.updates, want.updates);
    EXPECT_EQ(got.scales, want.scales);
    for (const auto& norms : got.norms)
        EXPECT_TRUE(std::equal(norms.begin(), norms.end(), want.norms[0].begin(), want.norms[0].end(), same))
            << "the norm is the same number on all ranks";
    for (size_t s = 0; s < want.losses.size(); ++s) EXPECT_NEAR(got.losses[s], want.losses[s], 1e-12);
    EXPECT_EQ(got.unequal, 0) << "ranks disagree";
    EXPECT_EQ(got.sent, got.expected) << "bytes";
}

inline Promise has_the_bits_of(const Outcome& want) {
    return [want](const Outcome& got) { expect_the_bits(got, want); };
}

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

inline double how_far(const Layout& how) { return how.steps * double(how.rate); }

inline Promise is_close_to(const Outcome& want, double sum_of_rates) {
    return [want, sum_of_rates](const Outcome& got) { expect_close(got, want, sum_of_rates); };
}

// ---- the table ------------------------------------------------------------------------------------------------------

using Rows = std::vector<std::string>;

// Each of some settings with each of others.
inline Rows each(const Rows& some, const Rows& others) {
    Rows all;
    for (const std::string& a : some)
        for (const std::string& b : others) all.push_back(a + " " + b);
    return all;
}

inline const Rows kStages = each({"--zero"}, {"0", "1", "2", "3"}), kSlicing = each({"--zero"}, {"1", "2", "3"});

inline void expect_rows(const Rows& rows, const Layout& base, const Promise& promise) {
    for (const std::string& row : rows) {
        SCOPED_TRACE(row);
        promise(train(with(base, row)));
    }
}

// Every row gives the bits of `base`.
inline void expect_same_bits(const Rows& rows, const Layout& base) {
    expect_rows(rows, base, has_the_bits_of(train(base)));
}

}  // namespace layout_runs
}  // namespace rz
