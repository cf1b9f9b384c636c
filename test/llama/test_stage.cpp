// Stages and the halves of the backward pass: however the model is cut and whatever order micro-batches take through
// it, the gradients are those of the whole model, to the bit. The whole model's are checked against Hugging Face and
// finite differences in test_model.cpp.

#include <gtest/gtest.h>

#include <memory>

#include "comm/mesh.h"
#include "llama/model/model.h"
#include "llama/model/stage.h"
#include "test/kernels/cpu_device.h"
#include "test/llama/toys.h"

namespace rz {
namespace {

constexpr int64_t kB = 2, kT = 7, kN = kB * kT;
constexpr float kScale = 1.0f / 64;

ModelConfig stage_toy(bool tied, bool post_norm) {
    ModelConfig c = toy24(tied);
    c.post_norm = post_norm;
    c.resolve();
    return c;
}

// A model's parameters and gradients on one rank.
struct StageRank {
    ModelConfig config;
    ParamTable table;
    Stream stream{kCpu, "compute"};
    Mesh mesh{kCpu};
    Zero zero;
    StageRank(bool tied, DType dtype, DType grad_dtype, bool post_norm)
        : config(stage_toy(tied, post_norm)),
          table(config),
          zero(kCpu, stream, unit_layouts(table), decay_segments(table),
               {.param_dtype = dtype, .grad_dtype = grad_dtype}, {}, mesh) {
        initialise_weights(table, 5, stream, zero);
        stream.synchronize();
    }
    std::vector<char> gradients() {
        stream.synchronize();
        std::vector<char> all;
        for (const Unit& u : table.units()) {
            const int unit = int(&u - table.units().data());
            const char* g = static_cast<const char*>(zero.grads.gradients(unit));
            all.insert(all.end(), g, g + u.size * size_of(zero.options.grad_dtype));
        }
        return all;
    }
};

struct StageCase {
    bool tied;
    DType dtype, grad_dtype;
    Recompute recompute = Recompute::none;
    bool post_norm = false;
};

StageOptions stage_options(const StageCase& c) {
    return {
        .B = kB, .T = kT, .dtype = c.dtype, .grad_dtype = c.grad_dtype, .recompute = c.recompute, .logits_bytes = 600};
}

std::vector<HostBatch> batches(int count) {
    std::vector<HostBatch> out;
    for (int m = 0; m < count; ++m) out.push_back(random_batch(kB, kT, unsigned(m + 1)));
    return out;
}

std::pair<std::vector<char>, double> whole_model(const StageCase& c, int micro_batches) {
    StageRank r(c.tied, c.dtype, c.grad_dtype, c.post_norm);
    Model model(r.config, r.table, stage_options(c), kCpu, r.stream, r.zero.params, &r.zero.grads);
    const auto data = batches(micro_batches);
    model.run(model.training_program(micro_batches), {.pass = Pass::train, .grad_scale = kScale},
              [&](int64_t m) { return data[size_t(m)].view(); });
    auto gradients = r.gradients();
    return {std::move(gradients), *model.loss_sum()};
}

// Two stages on one rank, cut after `cut`; all forwards first (GPipe), so every slot is in use at once.
struct TwoStages {
    StageRank r;
    Workspace work;
    std::vector<HostBatch> data;
    std::vector<std::unique_ptr<Stage>> stages;
    PassArgs goal{.pass = Pass::train, .grad_scale = kScale};

    TwoStages(const StageCase& c, int cut, int micro_batches, int weight_slots)
        : r(c.tied, c.dtype, c.grad_dtype, c.post_norm),
          work(r.config, r.table, stage_options(c), true, kCpu, r.stream),
          data(batches(micro_batches)) {
        const int last = int(r.table.units().size()) - 1;
        for (const auto& [first, end] : {std::pair(0, cut), std::pair(cut + 1, last)})
            stages.push_back(std::make_unique<Stage>(r.config, r.table, stage_options(c), first, end, micro_batches,
                                                     weight_slots, kCpu, r.stream, work, r.zero.params, &r.zero.grads));
        for (int m = 0; m < micro_batches; ++m) {
            for (int u = 0; u <= cut; ++u) stages[0]->forward(u, m, data[size_t(m)].view(), goal);
            copy(stages[1]->input(m), stages[0]->output(m));
            for (int u = cut + 1; u <= last; ++u) stages[1]->forward(u, m, data[size_t(m)].view(), goal);
        }
    }
    ~TwoStages() { r.stream.synchronize(); }  // what is queued reads `data`
    void copy(void* to, const void* from) {
        r.stream.copy(to, from, kN * r.config.dim * size_of(r.zero.options.param_dtype));
    }
    template <class F>
    void down(int stage, F&& f) {
        for (int u = stages[size_t(stage)]->last_unit(); u >= stages[size_t(stage)]->first_unit(); --u) f(u);
    }
};

class Stages : public testing::TestWithParam<StageCase> {};

TEST_P(Stages, TwoGiveTheBitsOfOne) {
    const StageCase c = GetParam();
    const auto [want, loss] = whole_model(c, 3);
    for (int cut = 1; cut <= 2; ++cut) {
        TwoStages two(c, cut, 3, 0);
        for (int m = 0; m < 3; ++m) {
            const DeviceBatch b = two.data[size_t(m)].view();
            two.down(1, [&](int u) { two.stages[1]->backward(u, m, b, two.goal); });
            two.copy(two.stages[0]->gradient(m), two.stages[1]->gradient(m));
            two.down(0, [&](int u) { two.stages[0]->backward(u, m, b, two.goal); });
        }
        EXPECT_TRUE(two.r.gradients() == want) << "cut after unit " << cut;
        EXPECT_EQ(*two.work.loss_sum(), loss);
    }
}

// All input gradients first, so that every weight slot is pending while forward slots change hands; then the weight
// gradients in ascending order.
TEST_P(Stages, HalvesGiveTheBitsOfTheWhole) {
    const StageCase c = GetParam();
    const auto [want, loss] = whole_model(c, 3);
    for (int cut = 1; cut <= 2; ++cut) {
        TwoStages two(c, cut, 3, 3);
        for (int m = 0; m < 3; ++m) {
            const DeviceBatch b = two.data[size_t(m)].view();
            two.down(1, [&](int u) { two.stages[1]->input_grad(u, m, m, b, two.goal); });
            two.copy(two.stages[0]->gradient(m), two.stages[1]->gradient(m));
            two.down(0, [&](int u) { two.stages[0]->input_grad(u, m, m, b, two.goal); });
            // The slot may serve the next micro-batch at once: spoil what it holds.
            for (int s = 0; s < 2; ++s)
                for (int u = two.stages[size_t(s)]->first_unit(); u <= two.stages[size_t(s)]->last_unit(); ++u)
                    two.stages[size_t(s)]->forward(u, m, two.data[0].view(), {.pass = Pass::train});
        }
        for (int m = 0; m < 3; ++m)
            for (int s : {1, 0})
                two.down(s, [&](int u) { two.stages[size_t(s)]->weight_grad(u, m, two.data[size_t(m)].view()); });
        // Tied, the head's share of the embedding's gradient comes before the embedding's own of all micro-batches.
        if (!c.tied) {
            EXPECT_TRUE(two.r.gradients() == want) << "cut after unit " << cut;
        }
        two.r.stream.synchronize();
        EXPECT_EQ(*two.work.loss_sum(), loss);
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, Stages,
                         testing::Values(StageCase{false, DType::f32, DType::f32},
                                         StageCase{false, DType::bf16, DType::bf16},
                                         StageCase{false, DType::bf16, DType::f32},
                                         StageCase{true, DType::f32, DType::f32},
                                         StageCase{false, DType::f32, DType::f32, Recompute::block},
                                         StageCase{false, DType::f32, DType::f32, Recompute::mlp},
                                         StageCase{false, DType::f32, DType::f32, Recompute::norms},
                                         StageCase{true, DType::bf16, DType::f32, Recompute::attention},
                                         StageCase{false, DType::f32, DType::f32, Recompute::norms | Recompute::mlp},
                                         StageCase{false, DType::bf16, DType::f32,
                                                   Recompute::norms | Recompute::attention | Recompute::mlp, true},
                                         StageCase{false, DType::bf16, DType::f32, Recompute::none, true},
                                         StageCase{true, DType::f32, DType::f32, Recompute::block, true},
                                         StageCase{false, DType::bf16, DType::f32, Recompute::block, true},
                                         StageCase{false, DType::f32, DType::f32, Recompute::mlp, true}));

}  // namespace
}  // namespace rz
