// Other flags than those that were asked for: what would fit, and what would be faster.

#include <algorithm>
#include <functional>

#include "comm/grid.h"
#include "llama/plan/plan.h"

namespace rz {

namespace {

std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(bool on) { return on ? "on" : "off"; }
std::string shown(const AxisAlgorithms& value) { return text_of(value); }
std::string shown(const ScheduleChoice& value) { return value.kind ? name_of(*value.kind) : ""; }
std::string shown(const Fp8Options& value) { return name_of(value.recipe); }
std::string shown(const std::optional<bool>& value) { return value ? shown(*value) : ""; }
template <class E>
std::string shown(E value) {
    return name_of(value);
}
template <class E>
std::string shown(const std::optional<E>& value) {
    return value ? name_of(*value) : "";
}

// The flags that a plan changes, in the order in which they are written. "": it can't be asked for.
struct Flag {
    const char* name;
    std::string (*value)(const TrainOptions&);
    bool is_numeric;      // it says in what type numbers are kept or multiplied
    int64_t stage_above;  // of a pipeline with a higher ZeRO stage; < 0: of every run
};
template <auto Field>
Flag flag(const char* name, bool is_numeric = false, int64_t stage_above = -1) {
    return {name, [](const TrainOptions& o) { return shown(o.*Field); }, is_numeric, stage_above};
}
const Flag kFlags[] = {
    flag<&TrainOptions::tp>("tp"),
    flag<&TrainOptions::cp>("cp"),
    flag<&TrainOptions::pp>("pp"),
    flag<&TrainOptions::pp_schedule>("pp-schedule"),
    flag<&TrainOptions::batch>("batch"),
    flag<&TrainOptions::zero>("zero"),
    flag<&TrainOptions::shard_size>("shard-size"),
    flag<&TrainOptions::accumulate_locally>("accumulate-locally", false, 1),
    flag<&TrainOptions::pp_gather>("pp-gather", false, 2),
    flag<&TrainOptions::recompute>("recompute"),
    flag<&TrainOptions::logits_mib>("logits-mib"),
    flag<&TrainOptions::collectives>("collectives"),
    flag<&TrainOptions::offload_optimizer>("offload-optimizer"),
    flag<&TrainOptions::offload_activations>("offload-activations"),
    flag<&TrainOptions::offload_grads>("offload-grads"),
    flag<&TrainOptions::offload_params>("offload-params"),
    flag<&TrainOptions::dtype>("dtype", true),
    flag<&TrainOptions::grad_dtype>("grad-dtype", true),
    flag<&TrainOptions::adam_dtype>("adam-dtype", true),
    flag<&TrainOptions::master_dtype>("master-dtype", true),
    flag<&TrainOptions::fp8>("fp8", true),
};

std::optional<Plan> try_plan(const PlanCase& c, bool timed = false) {
    try {
        return make_plan(c, {.timed = timed, .one_rank = true, .if_fits = true});
    } catch (const Error&) {  // such a run is refused
        return std::nullopt;
    }
}

bool fits(const PlanCase& c) {
    const std::optional<Plan> plan = try_plan(c);
    return plan && plan->fits == Fits::yes;
}

std::optional<Change> if_it_fits(const PlanCase& from, const PlanCase& to) {
    std::optional<Plan> plan = try_plan(to);
    if (!plan || plan->fits != Fits::yes) return std::nullopt;
    return changed(from, to, std::move(*plan));
}

// Sequences that a rank may have in a micro-batch, ascending, for the same tokens of an update.
std::vector<int64_t> batches_of(const PlanCase& c) {
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

// What one flag can be. Returns false where it is so already, or can't be beside the others.
using Step = std::function<bool(TrainOptions&)>;

template <class T>
bool set_to(T& value, std::type_identity_t<T> to) {
    if (value == to) return false;
    value = to;
    return true;
}

template <class T, class V>
Step to(T TrainOptions::*field, V value) {
    return [field, value](TrainOptions& o) { return set_to(o.*field, T(value)); };
}

bool on_gpu(const TrainOptions& o) { return o.device != DeviceChoice::cpu; }

// What saves memory and changes no type of a number, from what costs least.
const Step kZero1 = [](TrainOptions& o) { return o.zero < 1 && set_to(o.zero, 1); };
const Step kZero2 = [](TrainOptions& o) { return o.zero < 2 && set_to(o.zero, 2); };
const Step kZero3 = to(&TrainOptions::zero, 3);
const Step kReduceEach = [](TrainOptions& o) {
    return o.pp > 1 && o.accumulates_locally() && set_to(o.accumulate_locally, false);
};
const Step kGatherForUse = [](TrainOptions& o) {
    return o.pp > 1 && o.zero == 3 && set_to(o.pp_gather, GatherFor::op);
};
const Step kRecomputeNorms = [](TrainOptions& o) {
    return o.recompute != Recompute::block && set_to(o.recompute, o.recompute | Recompute::norms);
};
const Step kRecomputeMlp = [](TrainOptions& o) {
    return o.recompute != Recompute::block && set_to(o.recompute, o.recompute | Recompute::mlp);
};
const Step kRecomputeBlock = to(&TrainOptions::recompute, Recompute::block);
const Step kShardByAll = to(&TrainOptions::shard_size, 0);
const Step kLogits = [](TrainOptions& o) { return o.logits_mib == 0 && set_to(o.logits_mib, 128); };
const Step kOffloadOptimizer = [](TrainOptions& o) {
    return on_gpu(o) && o.offload_optimizer == OffloadOptimizer::none &&
           set_to(o.offload_optimizer, OffloadOptimizer::stream);
};
const Step kOffloadActivations = [](TrainOptions& o) {
    return on_gpu(o) && o.recompute == Recompute::block && !o.cuda_graphs && set_to(o.offload_activations, true);
};
const Step kOffloadGrads = [](TrainOptions& o) {
    return on_gpu(o) && o.zero >= 2 && !o.accumulates_locally() && set_to(o.offload_grads, true);
};
const Step kOffloadParams = [](TrainOptions& o) { return on_gpu(o) && o.zero == 3 && set_to(o.offload_params, true); };
const Step kSaving[] = {
    kRecomputeNorms, kRecomputeMlp,  kZero1,      kZero2,  kReduceEach,       kRecomputeBlock,
    kZero3,          kGatherForUse,  kShardByAll, kLogits, kOffloadOptimizer, kOffloadActivations,
    kOffloadGrads,   kOffloadParams,
};
// All of them together: --zero 3 goes without 1 and 2, --recompute block without mlp.
const Step kSavingAll[] = {kZero3,  kReduceEach,       kGatherForUse, kRecomputeBlock, kShardByAll,
                           kLogits, kOffloadOptimizer, kOffloadGrads, kOffloadParams,  kOffloadActivations};
// What saves memory by other types.
const Step kNumerics[] = {
    to(&TrainOptions::dtype, DType::bf16),
    [](TrainOptions& o) { return o.dtype == DType::bf16 && set_to(o.grad_dtype, DType::bf16); },
    to(&TrainOptions::adam_dtype, DType::bf16),
    [](TrainOptions& o) { return o.dtype == DType::bf16 && set_to(o.master_dtype, DType::bf16); },
};

// The same changes without those that are not needed, the dearest first.
std::optional<Change> without_needless(const PlanCase& from, std::vector<Step> steps) {
    const auto with_all = [&](const std::vector<Step>& some) -> std::optional<PlanCase> {
        PlanCase with = from;
        for (const Step& s : some)
            if (!s(with.options)) return std::nullopt;
        return with;
    };
    for (size_t i = steps.size(); i-- > 0;) {
        std::vector<Step> fewer = steps;
        fewer.erase(fewer.begin() + ptrdiff_t(i));
        if (const auto with = with_all(fewer); with && fits(*with)) steps = std::move(fewer);
    }
    return if_it_fits(from, *with_all(steps));
}

// The change of fewest flags that fits, of the same numerics: the micro-batch, another flag, one of them with a smaller
// micro-batch, or as many as it takes.
std::optional<Change> near(const PlanCase& c) {
    if (auto change = largest_batch(c)) return change;
    std::vector<PlanCase> singles;
    for (const Step& step : kSaving) {
        PlanCase with = c;
        if (!step(with.options)) continue;
        if (auto change = if_it_fits(c, with)) return change;
        singles.push_back(std::move(with));
    }
    for (const PlanCase& one : singles)
        if (auto change = largest_batch(one)) return changed(c, change->to, std::move(change->plan));
    PlanCase with = c;
    std::vector<Step> steps;
    for (const Step& step : kSavingAll) {
        if (!step(with.options)) continue;
        steps.push_back(step);
        if (fits(with)) return without_needless(c, steps);
        if (const auto change = largest_batch(with)) {
            steps.push_back(to(&TrainOptions::batch, change->to.options.batch));
            return without_needless(c, steps);
        }
    }
    return std::nullopt;
}

std::optional<Change> more_ranks(const PlanCase& c) {
    for (int64_t ranks = 2 * int64_t(c.ranks); ranks <= 16384; ranks *= 2) {
        PlanCase with = c;
        with.ranks = int(ranks);
        if (auto change = if_it_fits(c, with)) return change;
    }
    return std::nullopt;
}

// The fewest types that make it fit; then as few other flags as it takes.
std::optional<Change> near_by_numerics(const PlanCase& c) {
    for (const Step& step : kNumerics) {
        PlanCase with = c;
        if (!step(with.options)) continue;
        if (auto change = if_it_fits(c, with)) return change;
    }
    std::vector<PlanCase> growing;
    PlanCase with = c;
    for (const Step& step : kNumerics) {
        if (!step(with.options)) continue;
        if (auto change = if_it_fits(c, with)) return change;
        growing.push_back(with);
    }
    for (const PlanCase& one : growing)
        if (auto change = near(one)) return changed(c, change->to, std::move(change->plan));
    return std::nullopt;
}

double speed(const PlanCase& of, const Plan& plan) { return double(tokens_per_step(of)) / plan.step_seconds; }

struct Neighbour {
    const char* flag;
    Step step;
};

// Every value that one flag may take, but offload that is not there yet: it is never faster. layouts: tp, cp, pp too.
std::vector<Neighbour> neighbours(const PlanCase& c, bool layouts = true) {
    const TrainOptions& o = c.options;
    std::vector<Neighbour> all;
    for (const auto& [name, parts] :
         {std::pair("tp", &TrainOptions::tp), {"cp", &TrainOptions::cp}, {"pp", &TrainOptions::pp}})
        for (const int64_t n : {o.*parts / 2, 2 * (o.*parts)})
            if (layouts && n >= 1 && n <= std::min<int64_t>(8, c.ranks_on_node()) && !(n > 1 && o.fp8.on()))
                all.push_back({name, to(parts, n)});
    for (const int64_t zero : {0, 1, 2, 3}) all.push_back({"zero", to(&TrainOptions::zero, zero)});
    // What a pipeline's ZeRO-2 and 3 may keep for the step.
    if (o.pp > 1 && o.zero >= 2) {
        all.push_back({"accumulate-locally", kReduceEach});
        all.push_back({"accumulate-locally", [](TrainOptions& with) {
                           return !with.accumulates_locally() && set_to(with.accumulate_locally, true);
                       }});
    }
    if (o.pp > 1 && o.zero == 3)
        for (const GatherFor gather : {GatherFor::step, GatherFor::op})
            all.push_back({"pp-gather", to(&TrainOptions::pp_gather, gather)});
    for (const Named<Recompute>& r : kNames<Recompute>)
        all.push_back({"recompute", to(&TrainOptions::recompute, r.value)});
    all.push_back({"logits-mib", kLogits});
    for (const Algorithm a : {Algorithm::ring, Algorithm::direct})
        if (c.ranks > 1)
            all.push_back({"collectives", [a](TrainOptions& with) { return set_to(with.collectives.data, a); }});
    // Copies of the state: in each node, in a few nodes, and where no more ranks than a unit has blocks share one.
    const int64_t node = c.machine.ranks_per_node;
    for (const int64_t size : {int64_t(0), node, 4 * node, 16 * node, most_owners(c)})
        if (o.zero > 0 && size < c.ranks && (size == 0 || c.ranks % size == 0))
            all.push_back({"shard-size", to(&TrainOptions::shard_size, size)});
    // The next micro-batches, and half and twice as many sequences.
    const std::vector<int64_t> batches = batches_of(c);
    const auto next = std::upper_bound(batches.begin(), batches.end(), o.batch);
    for (auto b = batches.begin(); b != batches.end(); ++b)
        if (b + 2 == next || b == next || *b == 2 * o.batch || 2 * *b == o.batch)
            all.push_back({"batch", to(&TrainOptions::batch, *b)});
    all.push_back({"offload-optimizer", to(&TrainOptions::offload_optimizer, OffloadOptimizer::none)});
    all.push_back({"offload-activations", to(&TrainOptions::offload_activations, false)});
    all.push_back({"offload-grads", to(&TrainOptions::offload_grads, false)});
    all.push_back({"offload-params", to(&TrainOptions::offload_params, false)});
    return all;
}

std::optional<Change> fastest_of(const PlanCase& c, const Plan& plan, const std::vector<Step>& steps) {
    std::optional<Change> best;
    for (const Step& step : steps) {
        PlanCase with = c;
        if (!step(with.options)) continue;
        std::optional<Plan> other = try_plan(with, /*timed=*/true);
        if (!other || other->fits != Fits::yes || speed(with, *other) <= kFaster * speed(c, plan)) continue;
        if (!best || speed(with, *other) > speed(best->to, best->plan)) best = changed(c, with, std::move(*other));
    }
    return best;
}

}  // namespace

Change changed(const PlanCase& from, const PlanCase& to, Plan plan) {
    Change change{"", to, std::move(plan)};
    const auto add = [&](const std::string& text) { change.text += (change.text.empty() ? "" : " ") + text; };
    if (from.ranks != to.ranks) add(format("%d GPUs", to.ranks));
    for (const Flag& f : kFlags) {
        const std::string value = f.value(to.options);
        const bool would_do_nothing = f.stage_above >= 0 && (to.options.pp == 1 || to.options.zero <= f.stage_above);
        if (value.empty() || value == f.value(from.options) || would_do_nothing) continue;
        add(format("--%s %s", f.name, value.c_str()));
        change.flags.emplace_back(f.name, value);
        change.same_numerics &= !f.is_numeric;
    }
    return change;
}

std::optional<Change> largest_batch(const PlanCase& c) {
    const std::vector<int64_t> batches = batches_of(c);
    std::optional<Change> best;
    const auto fits_with = [&](int64_t batch) {
        PlanCase with = c;
        with.options.batch = batch;
        if (auto change = if_it_fits(c, with)) return best = std::move(change), true;
        return false;
    };
    // More sequences take more memory.
    if (batches.empty() || !fits_with(batches[0])) return best;
    for (size_t low = 1, high = batches.size(); low < high;) {
        const size_t middle = (low + high) / 2;
        if (fits_with(batches[middle]))
            low = middle + 1;
        else
            high = middle;
    }
    return best;
}

Changes nearest_fit(const PlanCase& c) {
    Changes changes{near(c), near_by_numerics(c)};
    // Other numerics are of use where they change less.
    if (changes.same && changes.other && changes.other->flags.size() > changes.same->flags.size())
        changes.other.reset();
    // More GPUs: with the flags as they are, then with what shares, then with what takes least beside.
    PlanCase with = c;
    if (!changes.same) changes.same = more_ranks(with);
    for (const Step& step : {kZero3, kShardByAll, kRecomputeBlock, to(&TrainOptions::batch, 1), kLogits}) {
        if (changes.same) break;
        if (!step(with.options)) continue;
        if (auto more = more_ranks(with)) changes.same = changed(c, more->to, std::move(more->plan));
    }
    return changes;
}

Changes fastest_change(const PlanCase& c, const Plan& plan) {
    std::vector<Step> same, other(std::begin(kNumerics), std::end(kNumerics));
    constexpr int kLarge = 1024;  // plans of tp and pp take seconds from there on
    for (const Neighbour& n : neighbours(c, /*layouts=*/c.ranks <= kLarge)) same.push_back(n.step);
    if (c.options.dtype == DType::bf16 && c.machine.gemm_fp8 > 0 && !is_in_parts(c.options))
        other.push_back([](TrainOptions& o) { return set_to(o.fp8.recipe, Fp8Recipe::tensor); });
    return {fastest_of(c, plan, same), fastest_of(c, plan, other)};
}

Change climbed(const PlanCase& from, Change best) {
    const auto is_given = [&](const Neighbour& n) { return from.options.given.count(n.flag) > 0; };
    while (true) {
        std::vector<Step> steps;
        for (const Neighbour& n : neighbours(best.to))
            if (!is_given(n)) steps.push_back(n.step);
        std::optional<Change> faster = fastest_of(best.to, best.plan, steps);
        if (!faster) return best;
        best = changed(from, faster->to, std::move(faster->plan));
    }
}

}  // namespace rz
