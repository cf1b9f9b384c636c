#include "llama/model/model.h"

#include <algorithm>

#include "comm/flight.h"
#include "kernels/elementwise.h"
#include "llama/data/documents.h"

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
    for (int u = 0; u < int(table.units().size()); ++u)
        shape.unit_bytes.push_back(checked_mul(table.part_padded(u), size_of(dtype), "unit"));
    return shape;
}

// Between two stages: this rank's rows.
static int64_t message_bytes(const ModelConfig& config, const StageOptions& o) {
    const int64_t rows = o.tp ? o.tp->rows(o.B * o.T) : o.B * o.T;
    return checked_mul(checked_mul(rows, config.dim, "message"), size_of(o.dtype), "message");
}

static bool has_whole_backward(const RankProgram& p) {
    return std::any_of(p.program.code.begin(), p.program.code.end(),
                       [](const Instr& i) { return i.what == Do::backward; });
}

Model::Model(const ModelConfig& config, const ParamTable& table, const StageOptions& options, Device device,
             Stream& compute, ParameterSource& parameters, GradientSink* gradients)
    : table_(table),
      dtype_(options.dtype),
      boundary_bytes_(message_bytes(config, options)),
      parameters_(parameters),
      gradients_(gradients),
      workspace_(config, table, options, /*with_head=*/true, device, compute, gradients != nullptr),
      stage_numbers_{0},
      executor_(compute) {
    stages_.push_back(std::make_unique<Stage>(config, table, options, 0, int(table.units().size()) - 1,
                                              /*forward_slots=*/1, /*weight_slots=*/0, device, compute, workspace_,
                                              parameters, gradients));
    if (gradients) training_ = make_program(1, true);
    evaluation_ = make_program(1, false);
}

Model::Model(const ModelConfig& config, const ParamTable& table, const StageOptions& options,
             const RankProgram& training, const RankProgram& evaluation, Mesh& mesh, Device device, Stream& compute,
             ParameterSource& parameters, GradientSink* gradients)
    : table_(table),
      dtype_(options.dtype),
      boundary_bytes_(message_bytes(config, options)),
      parameters_(parameters),
      gradients_(gradients),
      workspace_(config, table, options, training.shape.stages.back().last_unit == training.shape.last_unit(), device,
                 compute, has_whole_backward(training)),
      pipeline_(true),
      training_(training),
      evaluation_(evaluation),
      executor_(compute, &mesh) {
    executor_.keep_times();
    for (size_t s = 0; s < training.shape.stages.size(); ++s) {
        const StageUnits& held = training.shape.stages[s];
        const StageSlots& slots = training.program.slots[s];
        stage_numbers_.push_back(held.stage);
        stages_.push_back(std::make_unique<Stage>(config, table, options, held.first_unit, held.last_unit,
                                                  slots.forward, slots.weight, device, compute, workspace_, parameters,
                                                  gradients));
    }
}

std::vector<int64_t> Model::micro_batch_order(const RankProgram& program) const {
    std::vector<int64_t> order;
    for (const Instr& i : program.program.code)
        if (i.computes() && std::find(order.begin(), order.end(), i.micro_batch) == order.end())
            order.push_back(i.micro_batch);
    return order;
}

// The device's buffers are taken in turn, so one is free again when as many micro-batches have begun since.
int64_t Model::batches_held() const {
    std::vector<int> begun;
    int64_t held = 1;
    for (const Instr& i : training_.program.code) {
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

// Executes a program's instructions, in one run of it.
class Model::Host : public ProgramHost {
   public:
    Host(Model& model, const PassArgs& goal, Batches batch) : model_(model), goal_(goal), batch_of_(std::move(batch)) {}

    void compute(const Instr& i) override {
        const DeviceBatch b = batch(i.micro_batch);
        Stage& s = model_.stage(i.stage);
        if (i.what == Do::forward)
            for (int u = i.first_unit; u <= i.last_unit; ++u) {
                work_scope.unit = u;
                s.forward(u, i.slot, b, goal_);
            }
        else
            for (int u = i.last_unit; u >= i.first_unit; --u) {
                work_scope.unit = u;
                if (i.what == Do::backward) s.backward(u, i.slot, b, goal_);
                if (i.what == Do::input_grad) s.input_grad(u, i.slot, i.w_slot, b, goal_);
                if (i.what == Do::weight_grad) s.weight_grad(u, i.w_slot, b, u > i.first_unit);
            }
    }
    void gather(const Instr& i) override { model_.parameters_.gather(i.first_unit); }
    void release(const Instr& i) override { model_.parameters_.release(i.first_unit); }
    void reduce(const Instr& i) override { model_.gradients_->reduce(i.first_unit, i.last); }

    void* boundary(Boundary which, int number, int slot) override {
        switch (which) {
            case Boundary::input:
                return model_.stage(number).input(slot);
            case Boundary::output:
                return model_.stage(number).output(slot);
            case Boundary::gradient:
                return model_.stage(number).gradient(slot);
        }
        fail("a boundary of kind %d", int(which));
    }
    int64_t boundary_bytes(int) override { return model_.boundary_bytes_; }

    // Every other pointer of a batch follows from these. What is done once per change of the parameters is not
    // recorded.
    GraphSet::Key graph_key(int micro_batch) override {
        for (const auto& stage : model_.stages_) stage->ready_weights();
        const DeviceBatch b = batch(micro_batch);
        return GraphSet::key(b.tokens, b.B, b.T, b.distinct, goal_.grad_scale, goal_.loss_scale);
    }

   private:
    DeviceBatch batch(int micro_batch) {
        for (const auto& [number, b] : batches_)
            if (number == micro_batch) return b;
        return batches_.emplace_back(micro_batch, batch_of_(micro_batch)).second;
    }

    Model& model_;
    const PassArgs goal_;
    const Batches batch_of_;
    std::vector<std::pair<int, DeviceBatch>> batches_;  // of the micro-batches begun
};

RankProgram Model::make_program(int64_t micro_batches, bool trains) const {
    RankProgram p{.shape = step_shape(table_, dtype_, parameters_, gradients_,
                                      {{0, stages_[0]->first_unit(), stages_[0]->last_unit()}}, micro_batches, trains)};
    p.program = single_stage_program(p.shape);
    check_program(p.program, p.shape, 0);
    return p;
}

RankProgram Model::training_program(int64_t micro_batches) const {
    if (pipeline_) return training_;
    require(gradients_, "a model that was built without gradients can't train");
    return make_program(micro_batches, true);
}

ProgramRun Model::begin(const RankProgram& program, const PassArgs& goal, Batches batch) {
    return ProgramRun(executor_, program, std::make_unique<Host>(*this, goal, std::move(batch)));
}

void Model::run(const RankProgram& program, const PassArgs& goal, Batches batch) {
    Host host(*this, goal, std::move(batch));
    executor_.run(program, host);
}

void Model::train(const DeviceBatch& b, float grad_scale) {
    run(training_, {.pass = Pass::train, .grad_scale = grad_scale}, [&](int64_t) { return b; });
}

void Model::evaluate(const DeviceBatch& b) {
    run(evaluation_, {.pass = Pass::loss}, [&](int64_t) { return b; });
}

void Model::logits(const DeviceBatch& b, void* out) {
    run(evaluation_, {.pass = Pass::logits, .logits = out}, [&](int64_t) { return b; });
}

void Model::score(const DeviceBatch& b, float* losses, int32_t* best) {
    run(evaluation_, {.pass = Pass::score, .losses = losses, .best = best}, [&](int64_t) { return b; });
}

void Model::replay_graphs(Replay replay) {
    if (replay == Replay::micro_batches) return executor_.replay_micro_batches();
    for (const auto& stage : stages_) stage->replay_graphs();
}

int64_t Model::graphs_recorded() const {
    int64_t n = executor_.graphs().recorded();
    for (const auto& stage : stages_) n += stage->graphs().recorded();
    return n;
}

int64_t Model::graphs_replayed() const {
    int64_t n = executor_.graphs().replayed();
    for (const auto& stage : stages_) n += stage->graphs().replayed();
    return n;
}

// ---- the table's views for zero/, and what training needs once ------------------------------------------------------

std::vector<UnitLayout> unit_layouts(const ParamTable& table) { return table.held_units(); }

std::vector<std::vector<Replicated>> replicated_elements(const ParamTable& table) {
    std::vector<std::vector<Replicated>> out(table.held_units().size());
    size_t u = 0;
    for (const TensorShard& p : table.held()) {
        while (p.local >= table.held_units()[u].offset + table.held_units()[u].padded) ++u;
        if (p.parts > 1) out[u].push_back({p.local - table.held_units()[u].offset, p.size(), p.first_part, p.parts});
    }
    return out;
}

DecaySegments decay_segments(const ParamTable& table, bool embedding_decays, const std::vector<MupFactors>& mup) {
    DecaySegments out;
    std::vector<double> rates;
    for (const MupFactors& f : mup) rates.push_back(f.rate);
    for (const auto& s : table.decay_segments(embedding_decays, rates)) {
        out.end.push_back(s.end);
        out.decays.push_back(s.decay);
        if (!mup.empty()) out.rates.push_back(float(s.rate));
    }
    return out;
}

std::vector<std::vector<MuonMatrix>> muon_matrices(const ParamTable& table, bool whole) {
    std::vector<std::vector<MuonMatrix>> out(table.held_units().size());
    size_t unit = 0;
    for (const TensorShard& p : table.held()) {
        while (p.local >= table.held_units()[unit].offset + table.held_units()[unit].padded) ++unit;
        const Tensor& t = table.tensors()[size_t(p.tensor)];
        if (!table.is_block_matrix(t)) continue;
        const int64_t begin = p.local - table.held_units()[unit].offset;
        MuonMatrix m{{begin, begin + p.size()}, p.rows, p.cols, t.decay};
        m.held = {0, 0, p.rows, p.cols};
        const int parts = table.holding().parts;
        if (whole && parts > 1) {
            m.rows = t.shape[0], m.cols = t.shape[1];
            for (int part = 0; part < parts; ++part) {
                const TensorShard there = table.part_of(t, part);
                m.pieces.push_back(
                    {there.first / m.cols, there.first % m.cols, there.rows, there.cols, there.first_part});
            }
            m.held = m.pieces[size_t(table.holding().part)];
        }
        out[unit].push_back(std::move(m));
    }
    return out;
}

void initialise_weights(const ParamTable& table, uint64_t seed, Stream& stream, Zero& zero,
                        const std::vector<MupFactors>& mup) {
    const DType dtype = zero.options.master_dtype;
    for (const OwnedRange& own : zero.optimizer.owned())
        table.for_each_run(own.local_offset, own.local_offset + own.elements.size(), INT64_MAX,
                           [&](const TensorRun& run) {
                               const Tensor& t = table.tensors()[size_t(run.tensor)];
                               const double init = mup.empty() ? 1 : mup[size_t(run.tensor)].init;
                               random_normal(stream, {.x = at(own.master, run.local - own.local_offset, dtype),
                                                      .n = run.count,
                                                      .first = run.first,
                                                      .seed = seed,
                                                      .stream = uint64_t(run.tensor),
                                                      .mean = t.init == Init::kOnes ? float(init) : 0.0f,
                                                      .std = t.init == Init::kOnes ? 0.0f : float(init * t.init_std),
                                                      .dtype = dtype});
                           });
    zero.optimizer.all_gather_updated();
    zero.optimizer.begin_average();
}

double training_flops_per_token(const ModelConfig& c, int64_t T) {
    return 6.0 * double(c.matmul_parameters()) + attention_flops_per_token(c, T);
}
double attention_flops_per_token(const ModelConfig& c, int64_t T) {
    const double seen = double(attention_squares(T, c.window)) / double(T);
    return 6.0 * double(c.layers) * double(c.q_rows()) * seen;
}

}  // namespace rz
