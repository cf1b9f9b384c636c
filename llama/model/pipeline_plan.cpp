#include "llama/model/pipeline_plan.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "kernels/runtime/check.h"
#include "llama/parallel/study.h"

namespace rz {
namespace {

bool known(const std::string& name) {
    const auto& kinds = pipeline_kinds();
    return std::any_of(kinds.begin(), kinds.end(), [&](PipelineKind k) { return name == name_of(k); });
}

std::string default_schedule(const PipelineOptions& o, int64_t blocks, bool tied) {
    const bool fits = 2 * o.pp <= blocks && o.stages_per_rank != 1;
    return fits && (!o.recompute || tied) ? "zb-v" : "1f1b";
}

PipelineSchedule schedule_for(const PipelineOptions& o, const std::string& name, int64_t blocks, int micro_batches) {
    if (!known(name)) {
        std::ifstream file(name);
        require(file.good(),
                "--pp-schedule %s: neither a schedule nor a file\n  schedules: gpipe, 1f1b, interleaved, zb-h1, "
                "zb-v, dualpipe, dualpipev",
                name.c_str());
        std::stringstream text;
        text << file.rdbuf();
        PipelineSchedule s = parse_pipeline_csv(text.str());
        check_pipeline(s);
        require(s.ranks == o.pp, "--pp %d, but %s has rows for %d ranks\n  nearest: --pp %d", o.pp, name.c_str(),
                s.ranks, s.ranks);
        require(s.micro_batches == micro_batches, "%d micro-batches, but %s has %d\n  nearest: a --batch-tokens of %d",
                micro_batches, name.c_str(), s.micro_batches, s.micro_batches);
        return s;
    }
    const PipelineKind kind = parse_pipeline_kind(name);
    const int v = o.stages_per_rank ? o.stages_per_rank : default_stages_per_rank(kind);
    require(int64_t(o.pp) * v <= blocks,
            "--pp %d --pp-schedule %s makes %d stages of %lld blocks\n  nearest: --pp %lld", o.pp, name.c_str(),
            o.pp * v, (long long)blocks, (long long)std::max<int64_t>(1, blocks / v));
    return make_pipeline(kind, {o.pp, micro_batches, o.stages_per_rank});
}

// How gathered parameters are kept: "step", "op" or "window:3".
std::pair<GatherFor, int> parse_gather(const std::string& text) {
    if (text == "step") return {GatherFor::step, 0};
    if (text == "op") return {GatherFor::op, 0};
    int window = 0;
    const std::string head = "window:";
    const bool is_window = text.rfind(head, 0) == 0;
    const char* end = text.data() + text.size();
    const auto [after, bad] = std::from_chars(text.data() + (is_window ? head.size() : 0), end, window);
    require(is_window && bad == std::errc() && after == end && window >= 1,
            "--pp-gather %s: it must be step, op or window:K with K at least 1\n  nearest: window:3", text.c_str());
    return {GatherFor::window, window};
}

// Forward only, one micro-batch through the stages from the first to the last.
std::vector<RankProgram> evaluation_programs(const PipelineSchedule& s, const PipelineProgramOptions& o) {
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
    const std::string why = find_rendezvous_error(out);
    require(why.empty(), "%s", why.c_str());
    return out;
}

}  // namespace

PipelinePlan plan_pipeline(const PipelineOptions& o, const ModelConfig& config, const ParamTable& table,
                           DType param_dtype, int64_t micro_batches, const ShardPolicy& shard) {
    PipelinePlan plan;
    plan.name = o.schedule.empty() ? default_schedule(o, config.layers, config.tied) : o.schedule;
    require(plan.name != "dualpipe",
            "--pp-schedule dualpipe keeps two copies of the model, whose gradients this program does not sum yet\n"
            "  nearest: --pp-schedule dualpipev");
    plan.schedule = schedule_for(o, plan.name, config.layers, int(micro_batches));
    if (o.window > 0) plan.schedule = limit_in_flight(plan.schedule, o.window);
    const PipelineSchedule& s = plan.schedule;
    const auto parts = [](const Cell& c) {
        return c.a.op == Op::I || c.a.op == Op::W || (c.with && c.with->op == Op::I);
    };
    for (const auto& cells : s.order)
        require(
            !o.recompute || std::none_of(cells.begin(), cells.end(), parts),
            "--pp-schedule %s parts the backward pass, and a pending weight gradient keeps what --recompute would have "
            "saved\n  nearest: --pp-schedule 1f1b, or --recompute none",
            plan.name.c_str());
    require(!config.tied || s.rank_of.front() == s.rank_of.back(),
            "--pp-schedule %s with a tied head: first and last stage, which share it, are on different ranks\n"
            "  nearest: --pp-schedule zb-v or dualpipev",
            plan.name.c_str());
    const std::vector<UnitFlops> flops = unit_flops(config, o.T, o.recompute);
    plan.cut = o.cut.empty() ? cut_stages(flops, s.stages) : parse_stage_cut(o.cut, config.layers, s.stages);
    plan.costs = costs_of(plan.cut, flops);
    plan.predicted = simulate(unfused(s), plan.costs);

    PipelineProgramOptions how;
    how.cut = plan.cut;
    for (const Unit& u : table.units()) how.unit_bytes.push_back(checked_mul(u.padded, size_of(param_dtype), "unit"));
    how.tied = config.tied;
    how.shard = shard;
    how.shard.prefetch_next_micro_batch = true;
    const auto [gather, window] = parse_gather(o.gather);
    how.gather = gather;
    how.window = window;
    plan.training = pipeline_programs(s, plan.costs, how);
    plan.evaluation = evaluation_programs(s, how);
    return plan;
}

std::vector<std::string> PipelinePlan::text(int64_t blocks) const {
    // The same work, spread evenly.
    int64_t total = 0;
    for (size_t s = 0; s < cut.size(); ++s) total += costs.forward[s] + costs.input[s] + costs.weight[s];
    PipelineCosts balanced = costs;
    const int64_t each = total / int64_t(cut.size());
    for (size_t s = 0; s < cut.size(); ++s) {
        balanced.forward[s] = each / 3;
        balanced.input[s] = each / 3;
        balanced.weight[s] = each - 2 * (each / 3);
    }
    const double even = simulate(unfused(schedule), balanced).util_step();
    std::vector<std::string> lines;
    lines.push_back(format("pipeline %s: %d stages on %d ranks, blocks %s, %d micro-batches", name.c_str(),
                           schedule.stages, schedule.ranks, text_of(cut, blocks).c_str(), schedule.micro_batches));
    std::string line =
        format("         predicted by FLOPs: ranks busy for %.1f %% of the step", 100 * predicted.util_step());
    if (even > predicted.util_step()) line += format("; a cut into equal stages would give %.1f %%", 100 * even);
    lines.push_back(line);
    if (predicted.util_step() < 0.9 && known(name)) {
        const int enough = micro_batches_for(parse_pipeline_kind(name), schedule.ranks,
                                             name == "interleaved" ? schedule.stages_per_rank() : 0, 0.9);
        if (enough > schedule.micro_batches)
            lines.push_back(format("         %d micro-batches would give 90 %% with equal stages", enough));
    }
    return lines;
}

}  // namespace rz
