#include "llama/model/pipeline_plan.h"

#include <algorithm>

#include "kernels/runtime/request.h"
#include "llama/parallel/schedule_command.h"

namespace rz {
namespace {

ScheduleChoice default_schedule(const PipelineOptions& o, int64_t blocks) {
    const bool fits = 2 * o.pp <= blocks && o.stages_per_rank != 1;
    return {.kind = fits && o.recompute == Recompute::none ? PipelineKind::zb_v : PipelineKind::f1b1};
}

PipelineSchedule schedule_for(const PipelineOptions& o, const ScheduleChoice& choice, int64_t blocks,
                              int micro_batches) {
    if (!choice.kind) return load_pipeline(choice.file, o.pp, micro_batches);
    const int v = o.stages_per_rank ? o.stages_per_rank : default_stages_per_rank(*choice.kind);
    require_request(int64_t(o.pp) * v <= blocks,
                    "pp %d and schedule %s make %d stages of %ld blocks\n  nearest: pp %ld", o.pp,
                    choice.name().c_str(), o.pp * v, blocks, std::max<int64_t>(1, blocks / v));
    return make_pipeline(*choice.kind, {o.pp, micro_batches, o.stages_per_rank});
}

// Forward only, one micro-batch through the stages from the first to the last.
std::vector<RankProgram> evaluation_programs(const PipelineSchedule& s, const PipelineProgramOptions& o,
                                             bool one_lane) {
    std::vector<RankProgram> out(static_cast<size_t>(s.ranks));
    for (auto& rank : out) {
        rank.shape.unit_bytes = o.unit_bytes;
        rank.shape.tied = o.tied;
        rank.shape.trains = false;
        rank.shape.shard = o.shard;
    }
    const auto home = [&](int stage) { return s.rank_of[size_t(stage)][0]; };
    for (int stage = 0; stage < s.stages; ++stage) {
        RankProgram& rank = out[size_t(home(stage))];
        const StageUnits& held = o.cut[size_t(stage)];
        rank.shape.stages.push_back(held);
        rank.program.slots.push_back({stage, 1, 0});
        auto& code = rank.program.code;
        if (stage > 0 && home(stage - 1) != home(stage))
            code.push_back({.what = Do::recv,
                            .stage = stage,
                            .first_unit = held.first_unit - 1,
                            .last_unit = held.first_unit,
                            .slot = 0,
                            .lane = home(stage - 1)});
        for (int u = held.first_unit; u <= held.last_unit; ++u)
            code.push_back({.what = Do::forward, .stage = stage, .first_unit = u, .last_unit = u, .slot = 0});
        if (stage + 1 < s.stages && home(stage + 1) != home(stage))
            code.push_back({.what = Do::send,
                            .stage = stage,
                            .first_unit = held.last_unit,
                            .last_unit = held.last_unit + 1,
                            .slot = 0,
                            .lane = home(stage + 1)});
    }
    for (int r = 0; r < s.ranks; ++r) {
        RankProgram& rank = out[size_t(r)];
        rank.program.code = place_gathers(rank.program.code, rank.shape);
        check_program(rank.program, rank.shape, r);
    }
    const std::string why = find_rendezvous_error(out, one_lane);
    require(why.empty(), "%s", why.c_str());
    return out;
}

std::vector<UnitCopies> find_copies(const PipelineSchedule& s, const std::vector<StageUnits>& cut, bool tied) {
    std::vector<UnitCopies> out(static_cast<size_t>(s.ranks));
    const int first = s.rank_of.front()[0], last = s.rank_of.back()[0];
    if (tied && first != last) {
        out[size_t(first)] = {last, {0}, {}};
        out[size_t(last)] = {first, {0}, {0}};
    }
    for (int stage = 0; stage < s.stages; ++stage) {
        const auto& home = s.rank_of[size_t(stage)];  // DualPipe: of the first half of the micro-batches, of the second
        if (home.front() == home.back()) continue;
        for (const auto& [rank, peer] : {std::pair(home.front(), home.back()), {home.back(), home.front()}}) {
            UnitCopies& c = out[size_t(rank)];
            c.peer = peer;
            for (int u = cut[size_t(stage)].first_unit; u <= cut[size_t(stage)].last_unit; ++u) {
                c.units.push_back(u);
                if (rank != home.front()) c.copies.push_back(u);
            }
        }
    }
    return out;
}

bool are_shared(const std::vector<UnitCopies>& copies) {
    return std::any_of(copies.begin(), copies.end(), [](const UnitCopies& c) { return c.peer >= 0; });
}

void check_copies(const std::vector<UnitCopies>& copies, const std::string& name, const ShardPolicy& shard) {
    for (size_t r = 0; r < copies.size(); ++r)
        require_request(
            copies[r].peer < 0 || !shard.reduce_each,
            "schedule %s: ranks %zu and %d of the pipeline hold the same parameters and add their gradients once a "
            "step, and they are to be reduced at every weight gradient\n  nearest: accumulate locally",
            name.c_str(), r, copies[r].peer);
}

}  // namespace

PipelinePlan plan_pipeline(const PipelineOptions& o, const ModelConfig& config, const ParamTable& table,
                           DType param_dtype, int64_t micro_batches, const ShardPolicy& shard) {
    PipelinePlan plan;
    const bool chosen = o.schedule.kind || !o.schedule.file.empty();
    plan.choice = chosen ? o.schedule : default_schedule(o, config.layers);
    const std::string name = plan.choice.name();
    require_request(!config.tied || plan.choice.kind != PipelineKind::dualpipe,
                    "schedule dualpipe with a tied head: both ends of the pipeline would hold both of its uses\n"
                    "  nearest: schedule dualpipev");
    plan.schedule = schedule_for(o, plan.choice, config.layers, int(micro_batches));
    if (o.window > 0) plan.schedule = limit_in_flight(plan.schedule, o.window);
    const PipelineSchedule& s = plan.schedule;
    const std::vector<UnitFlops> flops = unit_flops(config, o.T, o.recompute);
    plan.cut = o.cut.empty() ? cut_stages(flops, s.stages) : cut_stages(o.cut, config.layers, s.stages);
    plan.costs = costs_of(plan.cut, flops);
    plan.costs.one_lane = o.one_lane;
    plan.copies = find_copies(s, plan.cut, config.tied);
    plan.predicted = simulate(unfused(s), plan.costs);

    PipelineProgramOptions how;
    how.cut = plan.cut;
    for (int u = 0; u < int(table.units().size()); ++u)
        how.unit_bytes.push_back(checked_mul(table.part_padded(u), size_of(param_dtype), "unit"));
    how.tied = config.tied;
    for (const UnitCopies& c : plan.copies) how.shared.push_back(c.units);
    how.shard = shard;
    how.shard.reduce_each &= !(o.may_accumulate && are_shared(plan.copies));
    check_copies(plan.copies, name, how.shard);
    how.shard.prefetch_next_micro_batch = true;
    how.gather = o.gather;
    how.window = o.gather_window;
    plan.training = pipeline_programs(s, plan.costs, how);
    plan.evaluation = evaluation_programs(s, how, o.one_lane);
    return plan;
}

std::vector<std::string> PipelinePlan::text(int64_t blocks) const {
    // The same work, spread evenly.
    const auto work = [&](size_t s) { return costs.forward[s] + costs.input[s] + costs.weight[s]; };
    int64_t total = 0;
    for (size_t s = 0; s < cut.size(); ++s) total += work(s);
    PipelineCosts balanced = costs;
    const int64_t each = total / int64_t(cut.size());
    for (size_t s = 0; s < cut.size(); ++s) {
        balanced.forward[s] = each / 3;
        balanced.input[s] = each / 3;
        balanced.weight[s] = each - 2 * (each / 3);
    }
    const double even = simulate(unfused(schedule), balanced).util_step();
    std::vector<std::string> lines;
    lines.push_back(format("pipeline %s: %d stages on %d ranks, blocks %s, %d micro-batches", choice.name().c_str(),
                           schedule.stages, schedule.ranks, text_of(cut, blocks).c_str(), schedule.micro_batches));
    std::string line =
        format("         predicted by FLOPs: ranks busy for %.1f %% of the step", 100 * predicted.util_step());
    if (even > predicted.util_step()) line += format("; a cut into equal stages would give %.1f %%", 100 * even);
    lines.push_back(line);
    line = "         work of the stages:";
    for (size_t s = 0; s < cut.size(); ++s)
        line += format("%s %.1f", s ? "," : "", 100 * double(work(s)) / double(total));
    if (even > predicted.util_step()) lines.push_back(line + " %");
    if (predicted.util_step() < 0.9 && choice.kind) {
        const int enough =
            micro_batches_for(*choice.kind, schedule.ranks,
                              choice.kind == PipelineKind::interleaved ? schedule.stages_per_rank() : 0, 0.9);
        if (enough > schedule.micro_batches)
            lines.push_back(format("         %d micro-batches would give 90 %% with equal stages", enough));
    }
    return lines;
}

}  // namespace rz
