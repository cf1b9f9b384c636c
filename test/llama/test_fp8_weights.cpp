// Weights kept in fp8 from one change of the parameters to the next (llama/model/fp8_weights.h): nothing is
// made twice, and nothing older than the parameters is used.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "comm/process.h"
#include "kernels/runtime/context.h"
#include "kernels/runtime/op_timer.h"
#include "llama/train/recheck.h"
#include "test/llama/layout_runs.h"

namespace rz {
namespace {

constexpr int64_t kT = 16;
constexpr int kMicroBatches = 3;
constexpr Fp8Recipe kTensor = Fp8Recipe::tensor;

// Tiles need sides, and tokens of a micro-batch, of 128.
ModelConfig model_for(Fp8Recipe recipe) {
    ModelConfig c = toy16();
    if (recipe == kTensor) return c;
    c.dim = c.head_dim = 128, c.heads = c.kv_heads = 1, c.ffn = 256, c.layers = 2;
    c.resolve();
    return c;
}
constexpr int64_t sequences_for(Fp8Recipe recipe) { return recipe == kTensor ? 2 : 8; }

layout_runs::Layout layout(int stage, bool keep, Recompute recompute = Recompute::none, Fp8Recipe recipe = kTensor) {
    layout_runs::Layout how{.config = model_for(recipe), .B = sequences_for(recipe), .T = kT};
    how.zero = {.stage = stage, .param_dtype = DType::bf16};
    how.fp8 = {.recipe = recipe, .keep_weights = keep};
    how.fp8_gather = false;
    how.micro_batches = kMicroBatches;
    how.recompute = recompute;
    return how;
}

// The micro-batches of every step; it outlives the work on them.
struct Data {
    std::vector<HostBatch> host{kMicroBatches};
    std::vector<DeviceBatch> batches;
    explicit Data(const layout_runs::Layout& how) {
        for (int m = 0; m < kMicroBatches; ++m) batches.push_back(fill(host[size_t(m)], how, how.B, m * how.B));
    }
    const DeviceBatch& operator()(int64_t m) const { return batches[size_t(m)]; }
};

constexpr PassArgs kGoal{.pass = Pass::train, .grad_scale = 1.0f / (2 * kT * kMicroBatches)};

// ---- counts ---------------------------------------------------------------------------------------------------------

// Bytes of weights that are read to find their magnitude, and to make codes; how often a slot's scales are zeroed;
// codes that are transposed; and bytes that are read and written to make codes of gradients.
struct Seen {
    int64_t measured = 0, quantised = 0, zeroed = 0, transposed = 0, gradients = 0;
    bool operator==(const Seen&) const = default;
};

// By micro-batch, of two steps and a validation.
std::vector<Seen> seen_in(const layout_runs::Layout& how) {
    RankContext context;
    std::vector<Seen> seen;
    const char *first = nullptr, *end = nullptr;  // of the parameters
    const int64_t scales = toy16().layers * kBlockScales * int64_t(sizeof(Fp8Scale));
    context.planned.executes = true;
    context.planned.cost = [&](const OpCall& op, const Stream&) -> Ticks {
        const auto weight = [&](const void* x) { return x >= first && x < end; };
        if (seen.empty()) return 0;
        if (const AbsMax* a = op.as<AbsMax>(); a && weight(a->x)) seen.back().measured += a->n * size_of(a->dtype);
        const auto quantises_weight = [&](const auto* q) {
            if (q && weight(q->x)) seen.back().quantised += q->rows * q->columns * size_of(q->dtype);
        };
        quantises_weight(op.as<Quantise>());
        quantises_weight(op.as<QuantiseBlocks>());
        quantises_weight(op.as<QuantiseMx>());
        if (const Quantise* q = op.as<Quantise>(); q && q->type == Fp8::e5m2)
            seen.back().gradients +=
                q->rows * q->columns * (size_of(q->dtype) + (q->y != nullptr) + (q->y_t != nullptr));
        if (const Transpose8* t = op.as<Transpose8>()) seen.back().transposed += t->rows * t->columns;
        if (!op.type && op.label && std::strcmp(op.label, "zero") == 0 && op.bytes == scales) ++seen.back().zeroed;
        return 0;
    };
    const Device device{DeviceKind::planned, 0, &context};
    Mesh mesh(device, {});
    TrainState core(how.config, core_options(how), device, mesh);
    initialise_weights(core.table, 11, core.compute, core.zero);
    const Data data(how);
    first = static_cast<const char*>(core.zero.params.parameters(0));
    end = first + core.zero.ownership.elements() * size_of(DType::bf16);
    for (int step = 1; step <= 2; ++step) {
        core.model.run(core.program, kGoal, [&](int64_t m) {
            seen.emplace_back();
            return data(m);
        });
        core.zero.optimizer.gradient_norm();
        core.zero.optimizer.update(1e-2f, step);
    }
    seen.emplace_back();
    core.model.evaluate(data(0));
    core.model.evaluate(data(1));
    core.compute.synchronize();
    return seen;
}

// Two norms of three blocks of dim 32, for the weights' gradients.
constexpr int64_t kOfNorms = 2 * 3 * 2 * kT * 32;

// Those of four layers, 4 bytes an element: read once, written as they lie and transposed.
int64_t of_gradients() {
    const ModelConfig c = toy16();
    return 4 * c.layers * 2 * kT * (c.qkv_rows() + 2 * c.dim + 2 * c.ffn);
}

int64_t bytes_of_weights(Fp8Recipe recipe = kTensor) {
    const ModelConfig c = model_for(recipe);
    return c.layers * c.dim * (c.qkv_rows() + c.q_rows() + 3 * c.ffn) * size_of(DType::bf16);
}

TEST(Fp8Weights, AreMeasuredByTheFirstMicroBatchAfterAnUpdateAlone) {
    const int64_t all = bytes_of_weights();
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        const int64_t passes = recompute == Recompute::block ? 3 : 2;
        const Seen later{0, passes * all, 1, kOfNorms, of_gradients()};
        const Seen first{all, passes * all, 1, kOfNorms, of_gradients()};
        EXPECT_EQ(seen_in(layout(0, /*keep=*/false, recompute)),
                  (std::vector<Seen>{first, later, later, first, later, later, {all, 2 * all, 2}}))
            << name_of(recompute);
    }
}

TEST(Fp8Weights, AreQuantisedLikewiseWhereTheirCodesAreKept) {
    const int64_t all = bytes_of_weights();
    const Seen first{all, all, 1, kOfNorms, of_gradients()}, later{0, 0, 1, kOfNorms, of_gradients()};
    for (const Recompute recompute : {Recompute::none, Recompute::block})
        EXPECT_EQ(seen_in(layout(0, /*keep=*/true, recompute)),
                  (std::vector<Seen>{first, later, later, first, later, later, {all, all, 2}}))
            << name_of(recompute);
}

TEST(Fp8Weights, CodesInTilesAreMadeByTheFirstMicroBatchWhereTheyAreKept) {
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mx})
        for (const bool keep : {false, true}) {
            const int64_t all = bytes_of_weights(recipe);
            const Seen first{.quantised = keep ? all : 2 * all}, later{.quantised = keep ? 0 : 2 * all};
            EXPECT_EQ(seen_in(layout(0, keep, Recompute::none, recipe)),
                      (std::vector<Seen>{first, later, later, first, later, later, first}))
                << name_of(recipe) << ", kept " << keep;
        }
}

// A byte for each element of a matrix, and another, of the blocks in fp8 alone.
TEST(Fp8Weights, CodesThatAreKeptTakeTwoBytesAWeight) {
    const auto parameters = [](bool keep, int64_t skip) {
        RankContext context;
        const Device device{DeviceKind::cpu, 0, &context};
        Mesh mesh(device, {});
        layout_runs::Layout how = layout(0, keep);
        how.fp8.skip_first = skip;
        const TrainState core(how.config, core_options(how), device, mesh);
        return context.memory.now(DeviceKind::cpu, MemKind::parameters);
    };
    EXPECT_EQ(parameters(true, 0) - parameters(false, 0), bytes_of_weights());
    EXPECT_EQ(parameters(true, 1) - parameters(false, 1), bytes_of_weights() * 2 / 3);
}

// ---- what changes parameters ----------------------------------------------------------------------------------------

// Losses of one batch before and after all that was made of parameters is forgotten.
class Watched {
   public:
    Watched(TrainState& core, const Data& data) : core_(core), data_(data) {}
    void expect_new(const std::string& after, bool changed = true) {
        const double now = loss();
        core_.zero.params.forget_what_was_made();
        EXPECT_EQ(now, loss()) << after;
        EXPECT_EQ(now != last_, changed) << after;
        last_ = now;
    }

   private:
    double loss() {
        core_.model.reset_loss();
        core_.model.evaluate(data_(0));
        core_.compute.synchronize();
        return *core_.model.loss_sum();
    }
    TrainState& core_;
    const Data& data_;
    double last_ = 0;
};

void change_parameters_in_every_way(Mesh& mesh, Device device, layout_runs::Layout how) {
    how.zero.ema = 0.5;
    TrainState core(how.config, core_options(how), device, mesh);
    ShardedAdamW& optimizer = core.zero.optimizer;
    Stream& compute = core.compute;
    const Data data(how);
    Watched watched(core, data);
    int64_t step = 0;
    enum class Kind { made, not_finite, left_out };
    const auto update = [&](Kind kind, const char* what) {
        const uint32_t nan = 0x7fc00000;
        if (kind == Kind::not_finite)  // gradients are added to it
            compute.copy(core.zero.grads.gradients(int(core.table.units().size()) - 1), &nan, sizeof nan);
        core.model.run(core.program, kGoal, std::cref(data));
        optimizer.gradient_norm();
        if (kind == Kind::left_out) optimizer.leave_out();
        optimizer.update(0.1f, ++step);
        compute.synchronize();
        watched.expect_new(what, kind == Kind::made);
    };
    initialise_weights(core.table, 11, compute, core.zero);
    optimizer.begin_average();
    watched.expect_new("initial weights");
    update(Kind::made, "an update");
    std::vector<std::vector<float>> saved;
    for (const OwnedRange& r : optimizer.owned()) {
        saved.emplace_back(size_t(r.elements.size()));
        compute.copy(saved.back().data(), r.master, r.elements.size() * 4);
    }
    compute.synchronize();
    update(Kind::made, "a second update");
    if (how.zero.stage < 2) {  // in the others gradients of a unit are not there between steps
        update(Kind::not_finite, "a gradient that is not finite");
        update(Kind::made, "the update after it");
    }
    update(Kind::left_out, "an update that is left out");
    update(Kind::made, "the update after that");
    size_t i = 0;
    for (const OwnedRange& r : optimizer.owned()) compute.copy(r.master, saved[i++].data(), r.elements.size() * 4);
    optimizer.all_gather_updated();
    watched.expect_new("an older state: a resume, a rollback");
    update(Kind::made, "the first update from there");
    optimizer.show_average();
    watched.expect_new("the average");
    optimizer.show_weights();
    watched.expect_new("the weights again");
}

TEST(Fp8Weights, NothingOlderThanTheParametersIsUsed) {
    const auto check = [](int stage, bool keep, Fp8Recipe recipe) {
        SCOPED_TRACE(format("%s, ZeRO-%d, codes kept %d", name_of(recipe), stage, keep));
        LoopbackHub hub(2);
        hub.run([&](int rank) {
            Mesh mesh(hub, rank, {});
            change_parameters_in_every_way(mesh, hub.device(rank), layout(stage, keep, Recompute::none, recipe));
        });
    };
    for (int stage = 0; stage <= 3; ++stage) check(stage, false, kTensor);
    for (int stage = 0; stage <= 2; ++stage)
        for (const Fp8Recipe recipe : {kTensor, Fp8Recipe::block, Fp8Recipe::mx}) check(stage, true, recipe);
}

// A step that is computed twice makes all of it twice.
TEST(Fp8Weights, ARehearsalLeavesNothingToTheStep) {
    LoopbackHub hub(1);
    hub.run([&](int rank) {
        Process process(hub, rank);
        Mesh mesh(hub, rank, {});
        const layout_runs::Layout how = layout(0, /*keep=*/true);
        TrainState core(how.config, core_options(how), hub.device(rank), mesh);
        initialise_weights(core.table, 11, core.compute, core.zero);
        const Data data(how);
        Recheck recheck(process, core);
        OpTimer timer;
        core.compute.set_op_timer(&timer);
        recheck.compute_twice(kGoal, std::cref(data));
        const int64_t first = timer.take()["AbsMax"].calls;
        recheck.begin();
        core.model.run(core.program, kGoal, std::cref(data));
        EXPECT_EQ(timer.take()["AbsMax"].calls, first);
        core.compute.set_op_timer(nullptr);
        EXPECT_EQ(recheck.compare(), "");
    });
}

// ---- bits -----------------------------------------------------------------------------------------------------------

using namespace layout_runs;

// With a step that is skipped, another that is not made, and an average that is shown.
TEST(Fp8Weights, BitsAreThoseOfMeasuringForEachMicroBatch) {
    Layout base = data_ranks(3, toy16()), forgets;
    base.T = kT, base.steps = 5, base.micro_batches = 2, base.bad_step = 2, base.omitted = 4;
    base.zero = {.param_dtype = DType::bf16, .ema = 0.9, .accumulate_locally = true};
    base.fp8.recipe = Fp8Recipe::tensor;
    forgets = base;
    forgets.forgets = true;
    const Outcome want = train(forgets);
    EXPECT_EQ(want.updates, 3);
    const Rows recomputed = {"--recompute none", "--recompute block --fp8-gather off"};
    expect_rows(each(kStages, recomputed), base, has_the_bits_of(want));
    expect_rows(each(each({"--zero 0", "--zero 1", "--zero 2"}, recomputed), {"--fp8-keep-weights on"}), base,
                has_the_bits_of(want));
}

// Weights measured for each micro-batch against those that are not, and whose codes are kept, in the same layout.
void expect_memory_changes_nothing(const Rows& rows, const Layout& base) {
    for (const std::string& row : rows) {
        SCOPED_TRACE(row);
        Layout forgets = with(base, row);
        forgets.forgets = true;
        expect_rows({row, row + " --fp8-keep-weights on"}, base, has_the_bits_of(train(forgets)));
    }
}

TEST(Fp8Weights, BitsInEveryLayoutAreThoseOfMeasuringForEachMicroBatch) {
    Layout base{.config = toy16(), .B = 4, .micro_batches = 4, .steps = 3, .T = 16, .left_out = 2};
    base.config.kv_heads = 2, base.config.layers = 4, base.config.ffn = 64;
    base.zero = {.param_dtype = DType::bf16, .accumulate_locally = true};
    base.fp8.recipe = Fp8Recipe::tensor;
    expect_memory_changes_nothing({"--tp 2 --dp 2", "--tp 2 --dp 2 --zero 1 --tp-overlap on --recompute norms,mlp"},
                                  base);
    expect_memory_changes_nothing(
        each({"--pp 2 --pp-schedule 1f1b", "--pp 2 --pp-schedule zb-h1 --zero 2", "--pp 2 --pp-schedule zb-v"},
             {"--recompute none", "--recompute block"}),
        base);
}

// Codes of whole weights, of parts, and of the blocks of a stage
TEST(Fp8Weights, CodesInTilesThatAreKeptChangeNoBit) {
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mx}) {
        SCOPED_TRACE(name_of(recipe));
        Layout base{.config = model_for(recipe), .B = 8, .micro_batches = 2, .steps = 3, .T = kT, .left_out = 2};
        base.config.heads = base.config.kv_heads = 2;
        base.zero = {.param_dtype = DType::bf16, .accumulate_locally = true};
        base.fp8.recipe = recipe;
        for (const char* row :
             {"--zero 2 --dp 2 --batch 16 --recompute block", "--tp 2", "--pp 2 --pp-schedule zb-h1"}) {
            SCOPED_TRACE(row);
            expect_same_bits({"--fp8-keep-weights on"}, with(base, row));
        }
    }
}

}  // namespace
}  // namespace rz
