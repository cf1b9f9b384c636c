#include "kernels/runtime/request.h"
#include "llama/train/train_state.h"

#include <omp.h>

#include <algorithm>
#include <utility>

namespace rz {

static StageOptions with_core(StageOptions stage, const Zero& zero, std::optional<TensorParallel>& tp,
                              ContextParallel* context) {
    stage.dtype = zero.options.param_dtype;
    stage.grad_dtype = zero.options.grad_dtype;
    stage.block_grad_dtype = zero.grads.block_dtype();
    stage.tp = tp ? &*tp : nullptr;
    stage.context = context;
    if (context) stage.T = context->own_rows();
    return stage;
}

static std::unique_ptr<ContextParallel> make_context(const ModelConfig& config, const ParamTable& table,
                                                     const CoreOptions& o, Device device, Mesh& mesh,
                                                     CommMeter* meter) {
    const AxisRank cp = mesh.place(Axis::cp);
    if (cp.size == 1) return nullptr;
    const int64_t grain = 2 * cp.size, below = o.stage.T / grain * grain;
    require_request(o.stage.T % grain == 0,
                    "--seq-len %ld with --cp %d: it must be a multiple of 2 x cp = %ld\n  nearest: --seq-len %s%ld",
                    o.stage.T, cp.size, grain, below > 0 ? format("%ld or ", below).c_str() : "", below + grain);
    const ModelConfig part = part_config(config, table);
    return std::make_unique<ContextParallel>(mesh, device,
                                             ContextShape{.B = o.stage.B,
                                                          .T = o.stage.T,
                                                          .heads = part.heads,
                                                          .kv_heads = part.kv_heads,
                                                          .head_dim = part.head_dim,
                                                          .dtype = o.zero.param_dtype,
                                                          .exchange = o.cp_exchange,
                                                          .window = config.window},
                                             meter);
}

// Throws where the model can't be cut into so many parts, naming the nearest numbers.
static LocalShard part_of(const ModelConfig& config, const CoreOptions& o, const Mesh& mesh) {
    const AxisRank tp = mesh.place(Axis::tp);
    check_tensor_parallel(config, tp.size);
    return {.part = tp.rank, .parts = tp.size, .sharers = shard_groups_of(o.zero, mesh).shard.size};
}

static std::optional<TensorParallel> make_tensor_parallel(const CoreOptions& o, Mesh& mesh, CommMeter* meter) {
    if (mesh.place(Axis::tp).size == 1) return std::nullopt;
    const AxisRank tp = mesh.place(Axis::tp);
    require_request(o.stage.B * o.stage.T >= tp.size,
                    "--tp %d: a micro-batch of %ld tokens has no row for each rank\n  nearest: --batch %ld, or --tp 1",
                    tp.size, o.stage.B * o.stage.T, ceil_div(int64_t(tp.size), o.stage.T));
    return std::optional<TensorParallel>(std::in_place, mesh, o.tp_wire_f32 ? DType::f32 : o.zero.param_dtype, meter,
                                         o.tp_overlap);
}

static std::optional<PipelinePlan> make_plan(const ModelConfig& config, const CoreOptions& o, const Mesh& mesh) {
    const AxisRank pp = mesh.place(Axis::pp);
    if (pp.size == 1) return std::nullopt;
    PipelineOptions how = o.pipeline;
    require_request(
        o.zero.overlap || o.zero.stage < 3 || how.gather == GatherFor::op,
        "--no-overlap holds one unit at a time, and --pp-gather %s more\n  nearest: --pp-gather op, or leave "
        "--no-overlap out",
        name_of(how.gather));
    how.pp = pp.size;
    how.one_lane = &mesh.link_to((pp.rank + 1) % pp.size).stream() == &mesh.stream();
    how.recompute = o.stage.recompute;
    how.T = o.stage.T;
    // If no other rank shares, slices are whole gradients beside those of a unit.
    const bool alone = how.may_accumulate && mesh.place(Axis::shard).size == 1;
    return plan_pipeline(how, config, ParamTable(config, part_of(config, o, mesh)), o.zero.param_dtype, o.micro_batches,
                         {.sharded_parameters = o.zero.stage == 3,
                          .reduce_each = o.zero.stage >= 2 && !o.zero.accumulate_locally && !alone,
                          .prefetch = o.zero.overlap ? o.zero.prefetch : 0});
}

static const RankProgram& own_program(const std::vector<RankProgram>& by_rank, const Mesh& mesh) {
    return by_rank[size_t(mesh.place(Axis::pp).rank)];
}

static UnitCopies copies(const std::optional<PipelinePlan>& plan, const Mesh& mesh) {
    return plan ? plan->copies[size_t(mesh.place(Axis::pp).rank)] : UnitCopies{};
}

static std::vector<int> held_units(const std::optional<PipelinePlan>& plan, const Mesh& mesh) {
    std::vector<int> held;
    if (plan) {
        for (const StageUnits& s : own_program(plan->training, mesh).shape.stages)
            for (int u = s.first_unit; u <= s.last_unit; ++u) held.push_back(u);
        for (const int u : copies(plan, mesh).units)  // a tied head
            if (std::find(held.begin(), held.end(), u) == held.end()) held.push_back(u);
        std::sort(held.begin(), held.end());
    }
    return held;
}

static LocalShard holding_of(const ModelConfig& config, const CoreOptions& o, const std::optional<PipelinePlan>& plan,
                             const Mesh& mesh) {
    LocalShard holding = part_of(config, o, mesh);
    holding.units = held_units(plan, mesh);
    holding.copies = copies(plan, mesh).copies;
    return holding;
}

// As many units as the program has whole at once, and gradients reduced where it says so. Without tp, which sums norms,
// one operation makes each element of a block's gradient.
static ZeroOptions with_plan(ZeroOptions zero, const ModelConfig& config, const ParamTable& table,
                             const std::optional<PipelinePlan>& plan, const Mesh& mesh) {
    zero.in_turn = !plan && !config.tied;
    const std::vector<int> held = held_units(plan, mesh);
    for (size_t u = 0; u < table.held_units().size(); ++u) {
        const int64_t block = (held.empty() ? int64_t(u) : int64_t(held[u])) - 1;
        zero.added_once.push_back(block >= 0 && block < config.layers && mesh.place(Axis::tp).size == 1);
    }
    if (!plan) return zero;
    const ShardPolicy& shard = own_program(plan->training, mesh).shape.shard;
    if (zero.stage == 3) zero.prefetch = std::max(zero.prefetch, shard.whole_units - 1);
    if (zero.stage >= 2) zero.accumulate_locally = !shard.reduce_each;
    return zero;
}

// Units whose layers read nothing but fp8 are gathered so.
static ZeroOptions with_fp8(ZeroOptions zero, const CoreOptions& o, const ModelConfig& config, const ParamTable& table,
                            const std::vector<int>& held) {
    // Slices would cut tiles: with them the parameters' own type is gathered.
    if (zero.stage < 3 || o.stage.fp8.recipe != Fp8Recipe::tensor || !o.fp8_gather) return zero;
    bool some = false;
    for (size_t u = 0; u < table.held_units().size(); ++u) {
        const int64_t block = (held.empty() ? int64_t(u) : int64_t(held[u])) - 1;
        const bool in_fp8 = block >= 0 && block < config.layers && o.stage.fp8.covers(block, config.layers);
        zero.fp8_matrices.push_back(in_fp8 ? block_matrices(config, table) : std::vector<ElementRange>());
        some |= in_fp8;
    }
    if (!some) zero.fp8_matrices.clear();  // a stage of a pipeline may hold none but skipped blocks
    return zero;
}

static ZeroOptions with_muon(ZeroOptions zero, const ParamTable& table) {
    if (zero.muon.on) zero.muon.matrices = muon_matrices(table, zero.muon.whole);
    return zero;
}

TrainState::TrainState(const ModelConfig& c, CoreOptions o, Device d, Mesh& m, CommMeter* meter)
    : config(c),
      options(std::move(o)),
      device(d),
      mesh(m),
      tp(make_tensor_parallel(options, mesh, meter)),
      plan(make_plan(config, options, mesh)),
      table(config, holding_of(config, options, plan, mesh)),
      context(make_context(config, table, options, device, mesh, meter)),
      compute(device, "compute"),
      zero(device, compute, unit_layouts(table),
           decay_segments(table, options.decay_embeddings, mup_table(options.mup, config, table)),
           with_muon(with_fp8(with_plan(options.zero, config, table, plan, mesh), options, config, table,
                              held_units(plan, mesh)),
                     table),
           options.adamw, mesh, meter),
      units(zero, held_units(plan, mesh), tp ? &*tp : nullptr, replicated_elements(table), copies(plan, mesh).units,
            copies(plan, mesh).peer),
      model(plan ? Model(config, table, with_core(options.stage, zero, tp, context.get()),
                         own_program(plan->training, mesh), own_program(plan->evaluation, mesh), mesh, device, compute,
                         units, &units)
                 : Model(config, table, with_core(options.stage, zero, tp, context.get()), device, compute, units,
                         &units)),
      program(model.training_program(options.micro_batches)),
      whole_graphs(options.graphs && mesh.world().size == 1 && options.zero.stage <= 1) {
    // OpenMP keeps the number per thread, and a CPU stream computes on its own.
    if (options.threads > 0 && device.kind == DeviceKind::cpu)
        compute.enqueue_host([n = int(options.threads)] { omp_set_num_threads(n); });
    if (options.graphs) model.replay_graphs(whole_graphs ? Model::Replay::micro_batches : Model::Replay::blocks);
}

}  // namespace rz
