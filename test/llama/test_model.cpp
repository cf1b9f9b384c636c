// The whole model: against Hugging Face's stored numbers, against itself, and against finite differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "comm/mesh.h"
#include "kernels/cross_entropy.h"
#include "comm/loopback.h"
#include "llama/model/generate.h"
#include "llama/model/hf.h"
#include "llama/base/safetensors.h"
#include "llama/model/weights.h"
#include "llama/train/train_state.h"
#include "test/llama/helpers.h"
#include "test/llama/toys.h"

namespace rz {
namespace {

// A model on one CPU rank.
struct TestModel {
    Mesh mesh{kCpu};
    TrainState core;
    const ModelConfig& config = core.config;
    const ParamTable& table = core.table;
    Stream& stream = core.compute;
    Zero& zero = core.zero;
    Model& model = core.model;

    TestModel(const ModelConfig& c, int64_t B, int64_t T, DType dtype = DType::f32,
              Recompute recompute = Recompute::none, AdamWOptions adamw = {})
        : core(c,
               {.zero = {.param_dtype = dtype, .grad_dtype = DType::f32},
                .adamw = adamw,
                .stage = {.B = B, .T = T, .recompute = recompute, .logits_bytes = 4096}},
               kCpu, mesh) {}

    double loss(const HostBatch& b) {  // mean over tokens
        model.reset_loss();
        model.evaluate(b.view());
        stream.synchronize();
        return *model.loss_sum() / double(b.B * b.T);
    }
    double train(const HostBatch& b) {
        model.reset_loss();
        model.train(b.view(), 1.0f / float(b.B * b.T));
        stream.synchronize();
        return *model.loss_sum() / double(b.B * b.T);
    }
    void step(float lr, int64_t n) {
        zero.optimizer.gradient_norm();
        zero.optimizer.update(lr, n);
        stream.synchronize();
    }
    float* master(const Tensor& t) {
        return static_cast<float*>(zero.optimizer.owned()[size_t(t.unit)].master) +
               (t.offset - table.units()[size_t(t.unit)].offset);
    }
    const float* grad(const Tensor& t) {
        return static_cast<const float*>(zero.grads.gradients(t.unit)) +
               (t.offset - table.units()[size_t(t.unit)].offset);
    }
    std::vector<float> logits(const HostBatch& b) {
        std::vector<float> out(size_t(b.B * b.T * config.vocab));
        model.logits(b.view(), out.data());
        stream.synchronize();
        return out;
    }
};

// ---- Hugging Face's numbers ---------------------------------------------------------------------------------------

class ModelGolden : public testing::TestWithParam<const char*> {};

TEST_P(ModelGolden, LogitsLossAndGradientsMatchHuggingFace) {
    const std::string folder = std::string("test/golden/model/") + GetParam();
    const ModelConfig config = load_config(folder);
    const Safetensors expected(folder + "/expected.safetensors");
    const std::vector<int32_t> ids = stored_ids(expected, "inputs"), targets = stored_ids(expected, "targets");
    const auto& shape = expected.find("inputs")->shape;
    const int64_t B = shape[0], T = shape[1];

    TestModel m(config, B, T);
    load_weights(folder, m.table, kCpu, m.stream, m.zero);

    const HostBatch batch(B, T, config.vocab, ids, targets);
    const double count =
        double(std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t != kIgnoreTarget; }));

    // fp32 sums of a few dozen terms in another order: make_golden.py finds up to 4e-7 of error in its own logits and
    // 2e-6 in its gradients.
    EXPECT_LT(distance(stored(expected, "logits"), m.logits(batch)), 1e-5);
    m.model.reset_loss();
    m.model.train(batch.view(), float(1 / count));
    m.stream.synchronize();
    const double loss = stored(expected, "loss")[0];
    EXPECT_NEAR(*m.model.loss_sum() / count, loss, 1e-4 * loss);

    int compared = 0;
    for (const Tensor& t : m.table.tensors()) {
        if (!expected.find("grad." + t.name)) continue;
        EXPECT_LT(distance(stored(expected, "grad." + t.name), m.grad(t)), 1e-4) << t.name;
        ++compared;
    }
    EXPECT_GE(compared, 9) << "the golden file holds gradients of a block's tensors at least";
}

INSTANTIATE_TEST_SUITE_P(Cases, ModelGolden,
                         testing::Values("gqa", "tied", "llama3_rope", "linear_rope", "dynamic_rope", "yarn_rope",
                                         "yarn_mscale_rope", "mistral", "mistral_window", "qwen2", "qwen3", "smollm3",
                                         "olmo2"));

// ---- the model against itself ---------------------------------------------------------------------------------------

TEST(Model, GradientsMatchCentralDifferences) {
    for (bool tied : {false, true}) {
        TestModel m(toy24(tied, 2), 2, 7);
        initialise_weights(m.table, 5, m.stream, m.zero);
        const auto batch = random_batch(2, 7, 3);
        m.train(batch);
        std::mt19937 rng(1);
        for (const Tensor& t : m.table.tensors()) {
            // Along one random direction per tensor: a directional derivative sums many elements, so fp32 noise of the
            // loss (about 1e-7 of it) over a step of 1e-2 leaves 1e-5 absolute, next to derivatives of order 0.1.
            std::vector<float> direction(size_t(t.size)), before(size_t(t.size));
            double want = 0, norm = 0;
            for (auto& d : direction) {
                d = float(std::normal_distribution<double>()(rng));
                norm += double(d) * d;
            }
            for (size_t i = 0; i < direction.size(); ++i) {
                direction[i] /= float(std::sqrt(norm));
                want += double(direction[i]) * double(m.grad(t)[i]);
                before[i] = m.master(t)[i];
            }
            const float h = 1e-2f;
            double side[2];
            for (int s = 0; s < 2; ++s) {
                for (size_t i = 0; i < before.size(); ++i) m.master(t)[i] = before[i] + (s ? h : -h) * direction[i];
                m.zero.optimizer.all_gather_updated();
                side[s] = m.loss(batch);
            }
            std::copy(before.begin(), before.end(), m.master(t));
            m.zero.optimizer.all_gather_updated();
            EXPECT_NEAR((side[1] - side[0]) / (2 * h), want, 2e-4 + 1e-2 * std::abs(want))
                << t.name << (tied ? " tied" : "");
        }
    }
}

TEST(Model, ALaterTokenNeverChangesAnEarlierLogit) {
    TestModel m(toy24(false, 2), 1, 9);
    initialise_weights(m.table, 5, m.stream, m.zero);
    auto batch = random_batch(1, 9, 4);
    const auto before = m.logits(batch);
    for (int64_t changed = 0; changed < 9; ++changed) {
        auto other = batch;
        other.tokens[size_t(changed)] = (other.tokens[size_t(changed)] + 1) % int32_t(m.config.vocab);
        const auto after = m.logits(other);
        const size_t earlier = size_t(changed * m.config.vocab);
        EXPECT_TRUE(std::equal(before.begin(), before.begin() + long(earlier), after.begin())) << changed;
        EXPECT_FALSE(std::equal(before.begin() + long(earlier), before.end(), after.begin() + long(earlier)))
            << changed;
    }
}

TEST(Model, TiedHeadsGradientIsTheSumOfBothUses) {
    TestModel tied(toy24(true, 2), 1, 8), untied(toy24(false, 2), 1, 8);
    initialise_weights(tied.table, 5, tied.stream, tied.zero);
    tied.stream.synchronize();
    for (const Tensor& t : untied.table.tensors()) {
        const Tensor* same = tied.table.find(t.name);
        const Tensor& from = same ? *same : tied.table.embedding();  // the untied head starts as the embedding
        std::copy_n(tied.master(from), t.size, untied.master(t));
    }
    untied.zero.optimizer.all_gather_updated();
    const auto batch = random_batch(1, 8, 6);
    EXPECT_EQ(tied.train(batch), untied.train(batch));
    const float* sum = tied.grad(tied.table.embedding());
    const float* input = untied.grad(untied.table.embedding());
    const float* output = untied.grad(untied.table.head());
    for (int64_t i = 0; i < tied.table.embedding().size; ++i) {
        // Both sums have the same fp32 terms; the tied one rounds once more when it adds onto the other use.
        EXPECT_NEAR(sum[i], input[i] + output[i], 3e-7f * (std::abs(input[i]) + std::abs(output[i])));
    }
}

TEST(Model, OverfitsOneBatch) {
    for (DType dtype : {DType::f32, DType::bf16}) {
        AdamWOptions adamw;
        adamw.weight_decay = 0;
        TestModel m(toy24(false, 2), 2, 16, dtype, Recompute::none, adamw);
        initialise_weights(m.table, 5, m.stream, m.zero);
        const auto batch = random_batch(2, 16, 8);
        const double first = m.train(batch);
        EXPECT_NEAR(first, std::log(37.0), 1.5);
        m.step(1e-2f, 1);
        double loss = first;
        for (int64_t step = 2; step <= 200; ++step) {
            loss = m.train(batch);
            m.step(1e-2f, step);
        }
        EXPECT_LT(loss, 0.05) << name_of(dtype);
    }
}

// ---- generation -----------------------------------------------------------------------------------------------------

TEST(Generate, RowsThatKernelsCantReadAreRefusedByName) {
    ModelConfig c = toy24(false, 2);
    c.head_dim = 2;  // (3 + 2) x 2 x 4 bytes of q, k and v for each token
    TestModel m(c, 1, 20);
    const std::string e = error_of([&] { Decoder(m.config, m.table, DType::f32, kCpu, m.stream, m.zero.params, 20); });
    EXPECT_TRUE(says(e, "a token's q, k and v take 40 bytes"));
    EXPECT_TRUE(says(e, "nearest: head-dim 8"));
}

TEST(Generate, CachedDecodingGivesTheLogitsOfAFullPass) {
    for (const auto& [tied, window, post_norm] : {std::tuple<bool, int64_t, bool>{false, 0, false},
                                                  {true, 0, false},
                                                  {false, 1, false},
                                                  {false, 5, false},
                                                  {true, 9, false},
                                                  {false, 0, true}}) {
        SCOPED_TRACE(window);
        ModelConfig config = toy24(tied, 2);
        config.window = window, config.post_norm = post_norm;
        TestModel m(config, 1, 20);
        initialise_weights(m.table, 5, m.stream, m.zero);
        const auto batch = random_batch(1, 20, 2);
        const auto all = m.logits(batch);
        Decoder decoder(m.config, m.table, DType::f32, kCpu, m.stream, m.zero.params, 20);
        const std::vector<int32_t> prompt(batch.tokens.begin(), batch.tokens.begin() + 7);
        auto got = decoder.append(prompt);
        for (size_t t = 6;; ++t) {
            const std::vector<float> want(all.begin() + long(t) * 37, all.begin() + long(t + 1) * 37);
            EXPECT_LT(distance(want, got), 1e-5) << t;  // fp32, other tile sizes
            if (t + 1 == 20) break;
            got = decoder.append({batch.tokens[t + 1]});
        }
        EXPECT_THROW(decoder.append({0}), Error);
    }
}

// In chunks and token by token, on every rank, with parameters whole and sharded.
TEST(Generate, APipelinesLogitsAreThoseOfOneRankToTheBit) {
    ModelConfig config = toy24(false, 2);
    config.layers = 6;
    config.resolve();
    std::vector<int32_t> prompt;
    for (int i = 0; i < 9; ++i) prompt.push_back(i * 5 % 37);
    const auto logits = [&](Mesh& mesh, Device device, ZeroOptions zero, std::optional<PipelineKind> kind) {
        TrainState core(config,
                        {.zero = zero,
                         .adamw = {},
                         .stage = {.B = 1, .T = 8},
                         .micro_batches = 4,
                         .pipeline = {.schedule = {.kind = kind}}},
                        device, mesh);
        initialise_weights(core.table, 5, core.compute, core.zero);
        const int at = mesh.place(Axis::pp).rank;
        Decoder decoder = core.plan
                              ? Decoder(core.config, core.table, DType::f32, device, core.compute, core.units, 16,
                                        core.plan->evaluation[size_t(at)], mesh, core.plan->schedule.rank_of.back()[0])
                              : Decoder(core.config, core.table, DType::f32, device, core.compute, core.units, 16);
        std::vector<float> all = decoder.append(prompt);
        for (const int32_t token : {3, 17, 8}) {
            const std::vector<float> next = decoder.append({token});
            all.insert(all.end(), next.begin(), next.end());
        }
        core.compute.synchronize();
        return all;
    };
    Mesh alone(kCpu);
    const std::vector<float> want = logits(alone, kCpu, {}, std::nullopt);
    for (const PipelineKind kind : {PipelineKind::f1b1, PipelineKind::zb_v, PipelineKind::interleaved})
        for (const int stage : {0, 3}) {
            LoopbackHub hub(4);  // pp 2 x dp 2
            hub.run([&](int rank) {
                Mesh mesh(hub, rank, {.grid = {.pp = 2}});
                ZeroOptions zero;
                zero.stage = stage, zero.accumulate_locally = stage == 3;
                EXPECT_EQ(logits(mesh, hub.device(rank), zero, kind), want) << name_of(kind) << ", rank " << rank;
            });
        }
}

TEST(Generate, SamplingObeysItsOptions) {
    const std::vector<float> logits{1, 4, 3, 2, 4};
    EXPECT_EQ(choose_token(logits, {.temperature = 0}, 0), 1);  // ties go to the lower id
    std::vector<int> seen(5);
    for (int64_t i = 0; i < 4000; ++i) ++seen[size_t(choose_token(logits, {.temperature = 1, .seed = 7}, i))];
    double total = 0;
    for (float x : logits) total += std::exp(x);
    for (size_t i = 0; i < 5; ++i) {
        const double p = std::exp(logits[i]) / total, sigma = std::sqrt(4000 * p * (1 - p));
        EXPECT_NEAR(seen[i], 4000 * p, 5 * sigma) << i;
    }
    for (int64_t i = 0; i < 200; ++i) {
        const int32_t k = choose_token(logits, {.temperature = 5, .top_k = 2, .seed = 7}, i);
        EXPECT_TRUE(k == 1 || k == 4);
        const int32_t p = choose_token(logits, {.temperature = 1, .top_p = 0.5, .seed = 7}, i);
        EXPECT_TRUE(p == 1 || p == 4);
        EXPECT_EQ(choose_token(logits, {.temperature = 1, .seed = 7}, i),
                  choose_token(logits, {.temperature = 1, .seed = 7}, i));
    }
}

}  // namespace
}  // namespace rz
