#include "llama/plan/plan.h"

#include <algorithm>
#include <bit>
#include <set>

#include "comm/grid.h"
#include "kernels/gemm/gemm.h"
#include "llama/model/model.h"
#include "llama/plan/cost.h"
#include "llama/train/trainer.h"

namespace rz {

constexpr double kMiB = 1 << 20;

int64_t PlanCase::outside_min() const { return int64_t(kMiB * machine.outside_min_mib); }

int64_t PlanCase::outside_max() const { return int64_t(kMiB * machine.outside_max_mib); }

const PlannedRank& Plan::largest() const {
    return *std::ranges::max_element(ranks, {}, [](const PlannedRank& r) { return r.memory.total; });
}

// Where the model lies on many ranks, one stands for its peers on tp and cp: they do the same.
static bool has_many_parts(const Grid& grid) { return grid.size(Axis::model) > 16; }

// Ranks that stand for all: of those that hold the model together every one; on the data axis the first (with the
// longest slices), the last that shares with it, and the last. A rank stands for those that hold as much.
static std::set<int> representatives(const Grid& grid) {
    constexpr int kAll = 8;
    std::set<int> chosen;
    const int data = grid.size(Axis::data), shard = grid.size(Axis::shard);
    for (int r = 0; r < grid.ranks() && grid.ranks() <= kAll; ++r) chosen.insert(r);
    if (!chosen.empty()) return chosen;
    for (int r = 0; r < grid.ranks(); ++r) {
        if (has_many_parts(grid) && grid.place(Axis::tp, r).rank + grid.place(Axis::cp, r).rank > 0) continue;
        const int at = grid.place(Axis::data, r).rank;
        if (at == 0 || at == shard - 1 || at == data - 1) chosen.insert(r);
    }
    return chosen;
}

const PlannedRank& Plan::slowest() const { return *std::ranges::max_element(ranks, {}, &PlannedRank::step); }

int64_t tokens_per_step(const PlanCase& c) {
    const TrainOptions& o = c.options;
    const int64_t dp = Grid(c.ranks, grid_options(o)).size(Axis::dp);
    return o.batch * o.seq_len * dp * micro_batches(o, dp);
}

double peak_flops(const PlanCase& c) {
    const TrainOptions& o = c.options;
    return o.peak_tflops > 0 ? 1e12 * o.peak_tflops : c.machine.peak_flops();
}

double mfu(const PlanCase& c, const Plan& plan) {
    const double flops = double(tokens_per_step(c)) * training_flops_per_token(c.config, c.options.seq_len);
    return flops / (plan.step_seconds * peak_flops(c) * double(c.ranks));
}

Grid grid_of_gpus(const PlanCase& c) {
    const TrainOptions& o = c.options;
    GridOptions how = grid_options(o);
    const int64_t per_node = o.ranks_per_node > 0 ? o.ranks_per_node : c.machine.ranks_per_node;
    for (int r = 0; r < c.ranks; ++r) how.nodes.push_back(int(r / per_node));
    how.by_columns = is_two_level(o.collectives.data_on(Grid(c.ranks, how).nodes_of_state(), /*gpus=*/true));
    return Grid(c.ranks, how);
}

// Of the planned rank that needs most; without NCCL nothing.
static NcclNeeds nccl_needs(const PlanCase& c, const Plan& plan) {
    NcclNeeds most;
    const TrainOptions& o = c.options;
    if (c.machine.cpu || c.ranks == 1 || over_host_memory(o.transport)) return most;
    const Grid grid = grid_of_gpus(c);
    for (const PlannedRank& one : plan.ranks) {
        NcclNeeds needs;
        for (const GroupPeers& group : step_peers(grid, o.collectives, step_messages(o), one.rank,
                                                  int(c.machine.multiprocessors), int(o.comm_sms)))
            needs.add(group, one.rank, c.machine.nccl());
        if (needs.bytes >= most.bytes) most = needs;
    }
    return most;
}

// Of the groups that a run over NCCL has.
static ChannelsOf channels_of(const PlanCase& c) {
    if (c.machine.cpu || over_host_memory(c.options.transport)) return nullptr;
    const auto grid = std::make_shared<Grid>(grid_of_gpus(c));
    AxisAlgorithms chosen = c.options.collectives;
    chosen.data = chosen.data_on(grid->nodes_of_state(), /*gpus=*/true);
    return [grid, chosen, sms = int(c.machine.multiprocessors),
            reserved_sms = int(c.options.comm_sms)](const GroupKind& group) -> std::optional<NcclChannels> {
        if (!sends_messages(chosen, group)) return std::nullopt;
        return nccl_channels(*grid, chosen, group, sms, reserved_sms);
    };
}

Plan make_plan(const PlanCase& c, const PlanHow& how) {
    check_ranks(c.options, c.ranks);
    PlannedJob job{.kind = c.kind(),
                   .ranks = c.ranks,
                   .ranks_per_node = int(c.machine.ranks_per_node),
                   .capability = c.capability(),
                   .multiprocessors = int(c.machine.multiprocessors),
                   .gemm_workspace = c.machine.cpu ? 0 : gemm_workspace_bytes(int(c.machine.compute_capability))};
    const Grid grid(c.ranks, grid_options(c.options));
    job.alone = how.one_rank || has_many_parts(grid);
    job.resumes = c.options.resume.asked();
    job.prompt = most_prompt_tokens(c.options);
    if (how.if_fits) job.most_bytes = std::max<int64_t>(1, c.capacity() - c.outside_max());
    Plan plan;
    std::set<int> open = {0};
    if (!how.one_rank) open = representatives(grid);
    UnknownOps unknown;
    while (!open.empty()) {
        const bool timed = how.timed && *open.begin() == 0;
        job.network = timed ? make_network(c.machine, channels_of(c)) : PlannedNetwork{};
        job.cost = timed ? make_cost(c.machine, unknown, c.config.window) : nullptr;
        for (const PlannedRank& one : plan_ranks(c.options, c.config, job, *open.begin())) {
            open.erase(one.rank);
            plan.ranks.push_back(one);
        }
    }
    plan.step_seconds = kSecondsPerTick * double(plan.slowest().mean_step(c.options.stats_every));
    plan.unknown_ops = std::move(unknown.names);
    std::ranges::sort(plan.ranks, {}, &PlannedRank::rank);
    plan.nccl = nccl_needs(c, plan);
    plan.outside_min = c.outside_min() + (c.nccl_is_taken ? 0 : plan.nccl.bytes);
    plan.outside_max = c.outside_max() + (c.nccl_is_taken ? 0 : plan.nccl.most_bytes());
    const int64_t room = c.capacity() - plan.largest().memory.total;
    plan.left = room - plan.outside_max;
    plan.fits = plan.left >= 0 ? Fits::yes : room >= plan.outside_min ? Fits::tight : Fits::no;
    for (const PlannedRank& one : plan.ranks) plan.host = std::max(plan.host, one.memory.host);
    plan.host = checked_mul(plan.host, c.ranks_on_node(), "pinned by the ranks of a node");
    plan.host_fits = c.machine.cpu || c.host_capacity() == 0 || plan.host <= c.host_capacity();
    if (!plan.host_fits) plan.fits = Fits::no;
    return plan;
}

int64_t most_owners(const PlanCase& c) {
    const int sharing = Grid(c.ranks, grid_options(c.options)).size(Axis::shard);
    const ParamTable table(c.config, {.sharers = sharing});
    int64_t most = 1;
    for (const UnitLayout& u : table.held_units()) most = std::max(most, u.grains(sharing));
    return int64_t(std::bit_ceil(uint64_t(most)));
}

}  // namespace rz
