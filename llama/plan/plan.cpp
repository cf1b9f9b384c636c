#include "llama/plan/plan.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <set>

#include "comm/grid.h"
#include "kernels/gemm/gemm.h"
#include "llama/model/model.h"
#include "llama/plan/cost.h"

namespace rz {

constexpr double kMiB = 1 << 20;

int64_t PlanCase::outside_min() const {
    return int64_t(kMiB * (machine.outside_min_mib + (ranks > 1 ? machine.comm_min_mib : 0)));
}

int64_t PlanCase::outside_max() const {
    return int64_t(kMiB * (machine.outside_max_mib + (ranks > 1 ? machine.comm_max_mib : 0)));
}

const PlannedRank& Plan::largest() const {
    return *std::max_element(ranks.begin(), ranks.end(), [](const PlannedRank& a, const PlannedRank& b) {
        return a.memory.total < b.memory.total;
    });
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

const PlannedRank& Plan::slowest() const {
    return *std::max_element(ranks.begin(), ranks.end(),
                             [](const PlannedRank& a, const PlannedRank& b) { return a.step < b.step; });
}

int64_t tokens_per_step(const PlanCase& c) {
    const TrainOptions& o = c.options;
    const int64_t dp = Grid(c.ranks, grid_options(o)).size(Axis::dp);
    return o.batch * o.seq_len * dp * micro_batches(o, dp);
}

double peak_flops(const PlanCase& c) {
    const TrainOptions& o = c.options;
    return o.peak_tflops > 0 ? 1e12 * o.peak_tflops : c.machine.peak_flops(o.dtype, o.fp8.on());
}

double mfu(const PlanCase& c, const Plan& plan) {
    const double flops = double(tokens_per_step(c)) * training_flops_per_token(c.config, c.options.seq_len);
    return flops / (plan.step_seconds * peak_flops(c) * double(c.ranks));
}

Plan make_plan(const PlanCase& c, const PlanHow& how) {
    check_ranks(c.options, c.ranks);
    PlannedJob job{.kind = c.kind(),
                   .ranks = c.ranks,
                   .ranks_per_node = int(c.machine.ranks_per_node),
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
        job.network = timed ? make_network(c.machine) : PlannedNetwork{};
        job.cost = timed ? make_cost(c.machine, unknown) : nullptr;
        for (const PlannedRank& one : plan_ranks(c.options, c.config, job, *open.begin())) {
            open.erase(one.rank);
            plan.ranks.push_back(one);
        }
    }
    plan.step_seconds = kSecondsPerTick * double(plan.slowest().mean_step(c.options.stats_every));
    plan.unknown_ops = std::move(unknown.names);
    std::sort(plan.ranks.begin(), plan.ranks.end(),
              [](const PlannedRank& a, const PlannedRank& b) { return a.rank < b.rank; });
    const int64_t room = c.capacity() - plan.largest().memory.total;
    plan.left = room - c.outside_max();
    plan.fits = plan.left >= 0 ? Fits::yes : room >= c.outside_min() ? Fits::tight : Fits::no;
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

// ---- other flags ----------------------------------------------------------------------------------------------------

static std::optional<Plan> try_plan(const PlanCase& c, bool timed = false) {
    try {
        return make_plan(c, {.timed = timed, .one_rank = true, .if_fits = true});
    } catch (const Error&) {  // such a run is refused
        return std::nullopt;
    }
}

// Sequences that a rank may have in a micro-batch, ascending, for the same tokens of an update.
static std::vector<int64_t> batches_of(const PlanCase& c) {
    std::vector<int64_t> found;
    const int64_t dp = Grid(c.ranks, grid_options(c.options)).size(Axis::dp);
    const int64_t tokens = c.options.batch_tokens;
    if (tokens > 0 && tokens % (c.options.seq_len * dp) == 0) {
        const int64_t samples = tokens / (c.options.seq_len * dp);
        for (int64_t b = 1; b <= samples && b <= 4096; ++b)
            if (samples % b == 0) found.push_back(b);
    } else if (tokens == 0) {
        for (int64_t b = 1; b <= 4096; b += std::max<int64_t>(1, b / 8)) found.push_back(b);
    }
    return found;
}

std::optional<Change> largest_batch(const PlanCase& c) {
    const std::vector<int64_t> batches = batches_of(c);
    std::optional<Change> best;
    // More sequences take more memory.
    for (size_t low = 0, high = batches.size(); low < high;) {
        const size_t middle = (low + high) / 2;
        PlanCase with = c;
        with.options.batch = batches[middle];
        std::optional<Plan> plan = try_plan(with);
        if (plan && plan->fits == Fits::yes) {
            best = Change{format("--batch %lld", (long long)batches[middle]), std::move(with), std::move(*plan)};
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return best;
}

namespace {

struct Step {
    const char* text;
    std::function<bool(TrainOptions&)> apply;  // false: it is so already
};

bool set_zero(TrainOptions& o, int64_t stage) {
    if (o.zero >= stage) return false;
    o.zero = stage;
    return true;
}

bool set_recompute(TrainOptions& o, Recompute what) {
    if (o.recompute >= what) return false;
    o.recompute = what;
    return true;
}

template <class T>
bool set_to(T& value, T to) {
    if (value == to) return false;
    value = to;
    return true;
}

// From what costs least to what changes the numbers.
const Step kSteps[] = {
    {"--recompute mlp", [](TrainOptions& o) { return o.pp == 1 && set_recompute(o, Recompute::mlp); }},
    {"--zero 1", [](TrainOptions& o) { return set_zero(o, 1); }},
    {"--zero 2", [](TrainOptions& o) { return set_zero(o, 2); }},
    {"--recompute block", [](TrainOptions& o) { return o.pp == 1 && set_recompute(o, Recompute::block); }},
    {"--zero 3", [](TrainOptions& o) { return set_zero(o, 3); }},
    {"--shard-size 0", [](TrainOptions& o) { return set_to<int64_t>(o.shard_size, 0); }},
    {"--logits-mib 128", [](TrainOptions& o) { return o.logits_mib == 0 && set_to<int64_t>(o.logits_mib, 128); }},
    {"--offload-optimizer stream",
     [](TrainOptions& o) {
         return o.device != DeviceChoice::cpu && o.offload_optimizer == OffloadOptimizer::none &&
                set_to(o.offload_optimizer, OffloadOptimizer::stream);
     }},
    {"--offload-activations on",
     [](TrainOptions& o) {
         return o.device != DeviceChoice::cpu && o.recompute == Recompute::block && !o.cuda_graphs &&
                set_to(o.offload_activations, true);
     }},
    {"--offload-grads on",
     [](TrainOptions& o) {
         return o.device != DeviceChoice::cpu && o.zero >= 2 && !o.accumulates_locally() &&
                set_to(o.offload_grads, true);
     }},
    {"--offload-params on",
     [](TrainOptions& o) { return o.device != DeviceChoice::cpu && o.zero == 3 && set_to(o.offload_params, true); }},
    {"--dtype bf16", [](TrainOptions& o) { return set_to(o.dtype, DType::bf16); }},
    {"--grad-dtype bf16",
     [](TrainOptions& o) {
         return o.dtype == DType::bf16 && o.gradient_dtype() != DType::bf16 && (o.grad_dtype = DType::bf16, true);
     }},
    {"--adam-dtype bf16", [](TrainOptions& o) { return set_to(o.adam_dtype, DType::bf16); }},
};

std::optional<Change> changed(const PlanCase& c, const std::vector<const Step*>& steps, bool timed = false) {
    PlanCase with = c;
    std::string text;
    for (const Step* step : steps) {
        if (!step->apply(with.options)) return std::nullopt;
        text += (text.empty() ? "" : " ") + std::string(step->text);
    }
    std::optional<Plan> plan = try_plan(with, timed);
    if (!plan) return std::nullopt;
    return Change{text, std::move(with), std::move(*plan)};
}

std::optional<Change> more_ranks(const PlanCase& c) {
    for (int64_t ranks = 2 * int64_t(c.ranks); ranks <= 16384; ranks *= 2) {
        PlanCase with = c;
        with.ranks = int(ranks);
        std::optional<Plan> plan = try_plan(with);
        if (plan && plan->fits == Fits::yes)
            return Change{format("%lld GPUs", (long long)ranks), std::move(with), std::move(*plan)};
    }
    return std::nullopt;
}

}  // namespace

std::optional<Change> fastest_change(const PlanCase& c, const Plan& plan) {
    std::vector<Step> steps(std::begin(kSteps), std::end(kSteps));
    std::erase_if(steps, [](const Step& s) { return std::string(s.text).rfind("--offload", 0) == 0; });
    const auto to = [&](const char* text, std::function<bool(TrainOptions&)> apply) { steps.push_back({text, apply}); };
    to("--recompute none", [](TrainOptions& o) { return set_to(o.recompute, Recompute::none); });
    to("--recompute mlp",
       [](TrainOptions& o) { return o.recompute == Recompute::block && set_to(o.recompute, Recompute::mlp); });
    to("--zero 0", [](TrainOptions& o) { return o.shard_size == 0 && set_to<int64_t>(o.zero, 0); });
    to("--zero 1", [](TrainOptions& o) { return o.zero > 1 && set_to<int64_t>(o.zero, 1); });
    to("--zero 2", [](TrainOptions& o) { return o.zero > 2 && set_to<int64_t>(o.zero, 2); });
    to("--collectives direct", [](TrainOptions& o) { return set_to(o.collectives.data, {Algorithm::direct}); });
    to("--collectives ring", [](TrainOptions& o) { return set_to(o.collectives.data, {Algorithm::ring}); });
    // Copies of the state: in each node, in a few nodes, and where no more ranks than a unit has blocks share one.
    std::vector<std::pair<std::string, int64_t>> shards;
    for (const int64_t size : {c.machine.ranks_per_node, 16 * c.machine.ranks_per_node, most_owners(c)})
        if (size < c.ranks && c.ranks % size == 0)
            shards.emplace_back(format("--shard-size %lld", (long long)size), size);
    for (const auto& [text, size] : shards)
        to(text.c_str(), [size = size](TrainOptions& o) { return o.zero > 0 && set_to(o.shard_size, size); });
    std::vector<std::string> batch_texts;
    for (const int64_t b : batches_of(c))
        if (b == 2 * c.options.batch || 2 * b == c.options.batch)
            batch_texts.push_back(format("--batch %lld", (long long)b));
    for (const std::string& text : batch_texts)
        to(text.c_str(),
           [b = std::strtoll(text.c_str() + 8, nullptr, 10)](TrainOptions& o) { return set_to<int64_t>(o.batch, b); });
    const auto speed = [](const PlanCase& of, const Plan& p) { return double(tokens_per_step(of)) / p.step_seconds; };
    std::optional<Change> best;
    for (const Step& one : steps) {
        auto change = changed(c, {&one}, /*timed=*/true);
        if (!change || change->plan.fits != Fits::yes) continue;
        if (speed(change->to, change->plan) > 1.01 * speed(c, plan) &&
            (!best || speed(change->to, change->plan) > speed(best->to, best->plan)))
            best = std::move(change);
    }
    return best;
}

std::optional<Change> nearest_fit(const PlanCase& c) {
    for (const Step& one : kSteps)
        if (auto change = changed(c, {&one}); change && change->plan.fits == Fits::yes) return change;
    if (auto change = largest_batch(c)) return change;
    // --zero 1 and 2 are on the way to 3, --recompute mlp to block: of a kind only the last is tried with others.
    for (const char* zero : {"--zero 3", "--zero 2", "--zero 1"})
        for (const char* recompute : {"--recompute block", "--recompute mlp"}) {
            std::vector<const Step*> two;
            for (const Step& s : kSteps)
                if (s.text == std::string(zero) || s.text == std::string(recompute)) two.push_back(&s);
            if (auto change = changed(c, two); change && change->plan.fits == Fits::yes) return change;
        }
    // All that saves memory, in order, until it fits; then with one sequence.
    PlanCase with = c;
    std::string text;
    for (const char* name : {"--zero 3", "--recompute block", "--shard-size 0", "--logits-mib 128",
                             "--offload-optimizer stream", "--offload-grads on", "--offload-params on",
                             "--offload-activations on", "--dtype bf16", "--grad-dtype bf16", "--adam-dtype bf16"})
        for (const Step& s : kSteps) {
            if (s.text != std::string(name) || !s.apply(with.options)) continue;
            text += (text.empty() ? "" : " ") + std::string(s.text);
            if (auto plan = try_plan(with); plan && plan->fits == Fits::yes) return Change{text, with, *plan};
            if (auto change = largest_batch(with)) {
                change->text = text + " " + change->text;
                return change;
            }
        }
    return more_ranks(with.options.zero > c.options.zero ? with : c);
}

}  // namespace rz
