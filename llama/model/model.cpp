#include "llama/model/model.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace rz {

StepShape step_shape(const ParamTable& table, DType dtype, const ParameterSource& parameters,
                     const GradientSink* gradients, const std::vector<StageUnits>& stages, int64_t micro_batches,
                     bool trains) {
    const int at_once = parameters.gathered_at_once();
    StepShape shape{.stages = stages,
                    .tied = table.tied(),
                    .trains = trains,
                    .micro_batches = int(micro_batches),
                    .shard = {.sharded_parameters = at_once > 0,
                              .reduce_each = gradients && gradients->reduces_each_micro_batch(),
                              .prefetch = std::max(at_once - 1, 0)}};
    for (const Unit& u : table.units()) shape.unit_bytes.push_back(checked_mul(u.padded, size_of(dtype), "unit"));
    return shape;
}

Model::Model(const ModelConfig& config, const ParamTable& table, const StageOptions& options, Device device,
             Stream& compute, ParameterSource& parameters, GradientSink* gradients)
    : table_(table),
      dtype_(options.dtype),
      stream_(compute),
      parameters_(parameters),
      gradients_(gradients),
      workspace_(config, table, options, /*with_head=*/true, device, compute) {
    stages_.push_back(std::make_unique<Stage>(config, table, options, 0, int(table.units().size()) - 1,
                                              /*forward_slots=*/1, /*weight_slots=*/0, device, compute, workspace_,
                                              parameters, gradients));
    if (gradients) one_ = make_program(1, true);
    forward_ = make_program(1, false);
}

Model::Model(const ModelConfig& config, const ParamTable& table, const StageOptions& options,
             const RankProgram& training, const RankProgram& evaluation, Mesh& mesh, Device device, Stream& compute,
             ParameterSource& parameters, GradientSink* gradients)
    : table_(table),
      dtype_(options.dtype),
      stream_(compute),
      parameters_(parameters),
      gradients_(gradients),
      workspace_(config, table, options, training.shape.stages.back().last_unit == training.shape.last_unit(), device,
                 compute),
      step_(std::make_unique<Executor>(training.program, training.shape, compute, &mesh)),
      evaluation_(std::make_unique<Executor>(evaluation.program, evaluation.shape, compute, &mesh)),
      boundary_bytes_(
          checked_mul(checked_mul(options.B * options.T, config.dim, "message"), size_of(options.dtype), "message")) {
    step_->keep_times();
    for (size_t s = 0; s < training.shape.stages.size(); ++s) {
        const StageUnits& held = training.shape.stages[s];
        const StageSlots& slots = training.program.slots[s];
        stage_numbers_.push_back(held.stage);
        stages_.push_back(std::make_unique<Stage>(config, table, options, held.first_unit, held.last_unit,
                                                  slots.forward, slots.weight, device, compute, workspace_, parameters,
                                                  gradients));
    }
}

// The device's buffers are taken in turn, so one is free again when as many micro-batches have begun since.
int64_t Model::batches_held() const {
    std::vector<int> begun;
    int64_t held = 1;
    if (!step_) return held;
    for (const Instr& i : step_->program().code) {
        if (!i.computes()) continue;
        auto at = std::find(begun.begin(), begun.end(), i.micro_batch);
        if (at == begun.end()) at = begun.insert(at, i.micro_batch);
        held = std::max<int64_t>(held, begun.end() - at);
    }
    return held;
}

Stage& Model::stage(int number) {
    for (size_t s = 0; s < stage_numbers_.size(); ++s)
        if (stage_numbers_[s] == number) return *stages_[s];
    fail("this rank does not hold stage %d", number);
}

void Model::compute(const Instr& i) {
    const DeviceBatch b = batch_(i.micro_batch);
    Stage& s = stage(i.stage);
    if (i.what == Do::forward)
        for (int u = i.first_unit; u <= i.last_unit; ++u) s.forward(u, i.slot, b, *goal_);
    else
        for (int u = i.last_unit; u >= i.first_unit; --u) {
            if (i.what == Do::backward) s.backward(u, i.slot, b, *goal_);
            if (i.what == Do::input_grad) s.input_grad(u, i.slot, i.w_slot, b, *goal_);
            if (i.what == Do::weight_grad) s.weight_grad(u, i.w_slot, b);
        }
}

void* Model::boundary(Boundary which, int number, int slot) {
    switch (which) {
        case Boundary::input:
            return stage(number).input(slot);
        case Boundary::output:
            return stage(number).output(slot);
        case Boundary::gradient:
            return stage(number).gradient(slot);
    }
    fail("a boundary of kind %d", int(which));
}

Program Model::make_program(int64_t micro_batches, bool trains) const {
    const StepShape shape = step_shape(table_, dtype_, parameters_, gradients_,
                                       {{0, stages_[0]->first_unit(), stages_[0]->last_unit()}}, micro_batches, trains);
    Program program = single_stage_program(shape);
    check_program(program, shape, 0);
    return program;
}

Program Model::training_program(int64_t micro_batches) const {
    if (step_) return step_->program();
    require(gradients_, "a model that was built without gradients can't train");
    return make_program(micro_batches, true);
}

void Model::execute(const Instr& i, const DeviceBatch& batch, const Goal& goal) {
    Stage& stage = *stages_[size_t(i.stage)];
    switch (i.what) {
        case Do::gather:
            return parameters_.gather(i.first_unit);
        case Do::forward:
            for (int u = i.first_unit; u <= i.last_unit; ++u) stage.forward(u, i.slot, batch, goal);
            return;
        case Do::backward:
            for (int u = i.last_unit; u >= i.first_unit; --u) stage.backward(u, i.slot, batch, goal);
            return;
        case Do::input_grad:
            for (int u = i.last_unit; u >= i.first_unit; --u) stage.input_grad(u, i.slot, i.w_slot, batch, goal);
            return;
        case Do::weight_grad:
            for (int u = i.last_unit; u >= i.first_unit; --u) stage.weight_grad(u, i.w_slot, batch);
            return;
        case Do::reduce:
            return gradients_->reduce(i.first_unit, i.last);
        case Do::release:
            return parameters_.release(i.first_unit);
        case Do::send:
        case Do::recv:
            fail("%s: the whole model is one stage, which has nobody to talk to", describe(i).c_str());
    }
}

void Model::run(const Program& program, const Goal& goal, const Batches& batch_of) {
    const std::vector<Instr>& code = program.code;
    std::vector<std::pair<int, DeviceBatch>> batches;  // of the micro-batches begun
    const auto batch = [&](int m) {
        for (const auto& [number, b] : batches)
            if (number == m) return b;
        return batches.emplace_back(m, batch_of(m)).second;
    };
    if (step_) {
        goal_ = &goal;
        batch_ = batch;
        (goal.pass == Pass::train ? step_ : evaluation_)->run(*this);
        return;
    }
    for (size_t at = 0; at < code.size();) {
        const DeviceBatch b = batch(code[at].micro_batch);
        size_t end = at + 1;
        if (whole_micro_batches_)
            while (end < code.size() && code[end].micro_batch == code[at].micro_batch) ++end;
        const auto enqueue = [&] {
            for (size_t i = at; i < end; ++i) execute(code[i], b, goal);
        };
        if (whole_micro_batches_ && goal.pass == Pass::train)  // every other pointer of a batch follows from these
            micro_batches_.run(stream_, GraphSet::key(b.tokens, b.B, b.T, b.distinct, goal.grad_scale), enqueue);
        else
            enqueue();
        at = end;
    }
}

void Model::train(const DeviceBatch& b, float grad_scale) {
    run(one_, {.pass = Pass::train, .grad_scale = grad_scale}, [&](int64_t) { return b; });
}

void Model::evaluate(const DeviceBatch& b) {
    run(forward_, {.pass = Pass::loss}, [&](int64_t) { return b; });
}

void Model::logits(const DeviceBatch& b, void* out) {
    run(forward_, {.pass = Pass::logits, .logits = out}, [&](int64_t) { return b; });
}

void Model::replay_graphs(Replay replay) {
    whole_micro_batches_ = replay == Replay::micro_batches;
    if (replay == Replay::blocks)
        for (const auto& stage : stages_) stage->replay_graphs();
}

int64_t Model::graphs_recorded() const {
    int64_t n = micro_batches_.recorded();
    for (const auto& stage : stages_) n += stage->graphs().recorded();
    return n;
}

int64_t Model::graphs_replayed() const {
    int64_t n = micro_batches_.replayed();
    for (const auto& stage : stages_) n += stage->graphs().replayed();
    return n;
}

// ---- the table's views for zero/, and what training needs once ------------------------------------------------------

std::vector<UnitLayout> unit_layouts(const ParamTable& table) { return table.held_units(); }

DecaySegments decay_segments(const ParamTable& table) {
    DecaySegments out;
    for (const auto& s : table.decay_segments()) {
        out.end.push_back(s.end);
        out.decays.push_back(s.decay);
    }
    return out;
}

void initialise_weights(const ParamTable& table, uint64_t seed, Stream& stream, Zero& zero) {
    const DType dtype = zero.options.master_dtype;
    for (const OwnedRange& own : zero.optimizer.owned())
        table.for_each_run(own.local, own.local + own.elements.size(), INT64_MAX, [&](const TensorRun& run) {
            const Tensor& t = table.tensors()[size_t(run.tensor)];
            random_normal(stream, {.x = static_cast<char*>(own.master) + (run.local - own.local) * size_of(dtype),
                                   .n = run.count,
                                   .first = run.first,
                                   .seed = seed,
                                   .stream = uint64_t(run.tensor),
                                   .mean = t.init == Init::kOnes ? 1.0f : 0.0f,
                                   .std = t.init == Init::kOnes ? 0.0f : float(t.init_std),
                                   .dtype = dtype});
        });
    zero.optimizer.publish();
}

double training_flops_per_token(const ModelConfig& c, int64_t T) {
    return 6.0 * double(c.matmul_parameters()) + 6.0 * double(c.layers) * double(c.q_rows()) * double(T);
}

}  // namespace rz
