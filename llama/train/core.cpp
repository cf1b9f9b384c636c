#include "llama/train/core.h"

#include <omp.h>

#include <utility>

namespace rz {

static StageOptions with_dtypes(StageOptions stage, const ZeroOptions& zero) {
    stage.dtype = zero.param_dtype;
    stage.grad_dtype = zero.grad_dtype;
    return stage;
}

static std::optional<PipelinePlan> make_plan(const ModelConfig& config, const CoreOptions& o, const Mesh& mesh) {
    const Place pp = mesh.place(Axis::pp);
    if (pp.size == 1) return std::nullopt;
    PipelineOptions how = o.pipeline;
    require(o.zero.overlap || o.zero.stage < 3 || how.gather == GatherFor::op,
            "--no-overlap holds one unit at a time, and --pp-gather %s more\n  nearest: --pp-gather op, or leave "
            "--no-overlap out",
            name_of(how.gather));
    how.pp = pp.size;
    how.recompute = o.stage.recompute != Recompute::none;
    how.T = o.stage.T;
    return plan_pipeline(how, config, ParamTable(config), o.zero.param_dtype, o.micro_batches,
                         {.sharded_parameters = o.zero.stage == 3,
                          .reduce_each = o.zero.stage >= 2 && !o.zero.accumulate_locally,
                          .prefetch = o.zero.overlap ? o.zero.prefetch : 0});
}

static const RankProgram& own_program(const std::vector<RankProgram>& by_rank, const Mesh& mesh) {
    return by_rank[size_t(mesh.place(Axis::pp).rank)];
}

static std::vector<int> held_units(const std::optional<PipelinePlan>& plan, const Mesh& mesh) {
    std::vector<int> held;
    if (plan)
        for (const StageUnits& s : own_program(plan->training, mesh).shape.stages)
            for (int u = s.first_unit; u <= s.last_unit; ++u) held.push_back(u);
    return held;
}

// As many units as the program has whole at once.
static ZeroOptions with_gathered(ZeroOptions zero, const std::optional<PipelinePlan>& plan, const Mesh& mesh) {
    if (plan && zero.stage == 3)
        zero.prefetch = std::max(zero.prefetch, own_program(plan->training, mesh).shape.shard.whole_units - 1);
    return zero;
}

TrainingCore::TrainingCore(const ModelConfig& c, CoreOptions o, Device d, Mesh& m, CommMeter* meter)
    : config(c),
      options(std::move(o)),
      device(d),
      mesh(m),
      plan(make_plan(config, options, mesh)),
      table(config, {.units = held_units(plan, mesh)}),
      compute(device, "compute"),
      zero(device, compute, unit_layouts(table), decay_segments(table), with_gathered(options.zero, plan, mesh),
           options.adamw, mesh, meter),
      units(zero, held_units(plan, mesh)),
      model(plan ? Model(config, table, with_dtypes(options.stage, options.zero), own_program(plan->training, mesh),
                         own_program(plan->evaluation, mesh), mesh, device, compute, units, &units)
                 : Model(config, table, with_dtypes(options.stage, options.zero), device, compute, units, &units)),
      program(model.training_program(options.micro_batches)),
      whole_graphs(options.graphs && mesh.world().size == 1 && options.zero.stage <= 1) {
    // OpenMP keeps the number per thread, and a CPU stream computes on its own.
    if (options.threads > 0 && device.kind == DeviceKind::cpu)
        compute.enqueue_host([n = int(options.threads)] { omp_set_num_threads(n); });
    if (options.graphs) model.replay_graphs(whole_graphs ? Model::Replay::micro_batches : Model::Replay::blocks);
}

}  // namespace rz
