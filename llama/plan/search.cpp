// `train_llama plan --search`: every sensible combination is planned; what fits and is beaten by nothing is shown.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <tuple>

#include "llama/plan/plan.h"

namespace rz {

namespace {

using Choice = std::function<void(TrainOptions&)>;
using Choices = std::vector<Choice>;

void as_it_is(TrainOptions&) {}

template <class T>
Choice choice(T TrainOptions::*field, T value) {
    return [field, value](TrainOptions& o) { o.*field = value; };
}

// How a model may be cut: tp inside a node, cp, a pipeline with a schedule, or both tp over the node and a pipeline.
Choices cuts(const PlanCase& c) {
    const std::set<std::string>& given = c.options.given;
    Choices all = {as_it_is};
    if (given.count("tp") || given.count("pp") || given.count("cp")) return all;
    const int64_t node = std::min<int64_t>(8, c.ranks_on_node());
    for (int64_t tp = 2; tp <= node; tp *= 2) all.push_back(choice(&TrainOptions::tp, tp));
    for (int64_t cp = 2; cp <= node; cp *= 2) all.push_back(choice(&TrainOptions::cp, cp));
    for (int64_t pp = 2; pp <= std::min<int64_t>(8, c.ranks); pp *= 2) {
        all.push_back(choice(&TrainOptions::pp, pp));
        if (node > 1 && c.ranks >= node * pp) all.push_back([pp, node](TrainOptions& o) { o.pp = pp, o.tp = node; });
        if (given.count("pp-schedule")) continue;
        for (const PipelineKind kind : {PipelineKind::f1b1, PipelineKind::interleaved, PipelineKind::zb_v})
            all.push_back([pp, kind](TrainOptions& o) { o.pp = pp, o.pp_schedule.kind = kind; });
    }
    return all;
}

Choices shards(const PlanCase& c) {
    const TrainOptions& o = c.options;
    Choices all;
    const auto add = [&](int64_t zero, int64_t shard) {
        all.push_back([zero, shard](TrainOptions& to) { to.zero = zero, to.shard_size = shard; });
    };
    const int64_t node = c.machine.ranks_per_node;
    for (int64_t zero = 0; zero <= 3; ++zero) {
        if (o.given.count("zero") && zero != o.zero) continue;
        if (c.ranks == 1 && (zero == 1 || zero == 2)) continue;  // 3 is for offload
        if (o.given.count("shard-size")) {
            add(zero, o.shard_size);
            continue;
        }
        add(zero, 0);
        if (zero > 0 && c.ranks > node) add(zero, node);
        if (zero > 0 && c.ranks > 8 * node) add(zero, 4 * node);
    }
    return all;
}

Choices others(const PlanCase& c) {
    const std::set<std::string>& given = c.options.given;
    Choices all = {as_it_is};
    const auto cross = [&](const Choices& more) {
        Choices product;
        for (const Choice& a : all)
            for (const Choice& b : more) product.push_back([a, b](TrainOptions& o) { a(o), b(o); });
        all = std::move(product);
    };
    if (!given.count("recompute"))
        cross({choice(&TrainOptions::recompute, Recompute::none), choice(&TrainOptions::recompute, Recompute::mlp),
               choice(&TrainOptions::recompute, Recompute::norms | Recompute::mlp),
               choice(&TrainOptions::recompute, Recompute::block)});
    if (!given.count("collectives") && c.ranks > 1)
        cross({as_it_is, choice(&TrainOptions::collectives, AxisAlgorithms{Algorithm::direct})});
    if (!given.count("dtype") && c.options.dtype == DType::f32 && !c.machine.cpu)
        cross({as_it_is, choice(&TrainOptions::dtype, DType::bf16)});
    if (!given.count("adam-dtype")) cross({as_it_is, choice(&TrainOptions::adam_dtype, DType::bf16)});
    if (!given.count("fp8") && c.machine.gemm_fp8 > 0)
        cross({as_it_is, [](TrainOptions& o) { o.fp8.recipe = Fp8Recipe::tensor; }});
    return all;
}

// For what does not fit by itself: from what costs least.
Choices offloads(const PlanCase& c) {
    for (const auto& flag : c.options.given)
        if (flag.rfind("offload-", 0) == 0) return {};
    if (c.machine.cpu) return {};
    Choices all;
    for (const bool whole : {false, true})
        all.push_back([whole](TrainOptions& o) {
            o.offload_optimizer = OffloadOptimizer::stream;
            o.offload_grads = o.offload_params = whole;
        });
    return all;
}

// Left out, as hardly ever best: narrow moments or fp8 beside wide weights, a model in parts that shards over fewer
// than all, a pipeline without ZeRO, tp and cp with ZeRO-2, and a pipeline that recomputes blocks, or gate_up by
// another schedule than zb-v and the default. Layers in fp8 with a model in parts are left out because no such run was
// made yet.
bool is_sensible(const TrainOptions& o) {
    const bool chosen =
        (o.adam_dtype != DType::f32 && !o.given.count("adam-dtype")) || (o.fp8.on() && !o.given.count("fp8"));
    if (o.dtype != DType::bf16 && chosen) return false;
    if (!is_in_parts(o)) return true;
    if (o.fp8.on() && !o.given.count("fp8")) return false;
    if (o.shard_size > 0 || (o.pp > 1 ? o.zero == 0 : o.zero == 2)) return o.given.count("zero") > 0;
    if (o.pp == 1 || o.given.count("recompute")) return true;
    if (o.recompute == Recompute::block) return false;
    const std::optional<PipelineKind> kind = o.pp_schedule.kind;
    return !kind || o.given.count("pp-schedule") || (kind == PipelineKind::zb_v) == (o.recompute != Recompute::none);
}

// In steps of half a percent: what is as fast comes in the order of fewer flags.
double speed(const Change& c) {
    return std::floor(std::log(double(tokens_per_step(c.to)) / c.plan.step_seconds) / std::log(1.005));
}
int64_t memory(const Change& c) { return c.plan.largest().memory.total; }

// Micro-batches for the same tokens of an update: powers of two.
Choices batches(const PlanCase& c) {
    if (c.options.given.count("batch") && c.options.batch > 0) return {as_it_is};
    Choices all;
    for (int64_t b = 1; b <= 64; b *= 2) all.push_back(choice(&TrainOptions::batch, b));
    return all;
}

enum class Tried { fits, too_large, refused };

Tried plan_one(const PlanCase& from, const PlanCase& c, SearchResult& counts, std::vector<Change>& found) {
    ++counts.tried;
    try {
        Plan plan = make_plan(c, {.timed = true, .one_rank = true, .if_fits = true});
        if (plan.fits != Fits::yes) return Tried::too_large;
        ++counts.fit;
        found.push_back(changed(from, c, std::move(plan)));
        return Tried::fits;
    } catch (const Error&) {  // a run of these flags is refused
        return Tried::refused;
    }
}

// Micro-batches of growing size, up to the first that does not fit: larger ones do not either. That one is tried with
// less on the device.
void try_family(const PlanCase& from, const PlanCase& family, const Choices& batch, SearchResult& counts,
                std::vector<Change>& found) {
    for (const Choice& b : batch) {
        PlanCase with = family;
        b(with.options);
        if (plan_one(from, with, counts, found) != Tried::too_large) continue;
        for (const Choice& one : offloads(with)) {
            PlanCase on_host = with;
            one(on_host.options);
            if (plan_one(from, on_host, counts, found) == Tried::fits) return;
        }
        return;
    }
}

// What nothing before it beats in memory; `found` is in the order of speed.
std::vector<Change> front_of(std::vector<Change> found) {
    std::vector<Change> front;
    int64_t least = INT64_MAX;
    for (Change& one : found) {
        if (memory(one) >= least) continue;
        least = memory(one);
        front.push_back(std::move(one));
    }
    return front;
}

void sort_by_speed(std::vector<Change>& found) {
    std::stable_sort(found.begin(), found.end(), [](const Change& a, const Change& b) {
        return std::tuple(-speed(a), a.flags.size(), memory(a)) < std::tuple(-speed(b), b.flags.size(), memory(b));
    });
}

}  // namespace

SearchResult search(const PlanCase& c, const std::function<void(int64_t done, int64_t of)>& tell) {
    const Choices cut = cuts(c), shard = shards(c), other = others(c), batch = batches(c);
    std::vector<PlanCase> families;  // but for the micro-batch
    for (const Choice& i : cut)
        for (const Choice& j : shard)
            for (const Choice& k : other) {
                PlanCase f = c;
                for (const Choice* one : {&i, &j, &k}) (*one)(f.options);
                if (is_sensible(f.options)) families.push_back(std::move(f));
            }
    // Plans know nothing of each other: one thread for each core. Results are put in the order of the families.
    struct Found {
        SearchResult counts;
        std::vector<Change> changes;
    };
    std::vector<Found> by_family(families.size());
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    int64_t done = 0;
    std::exception_ptr error;
    const auto work = [&] {
        for (size_t f = next++; f < families.size(); f = next++) {
            std::exception_ptr failed;
            try {
                try_family(c, families[f], batch, by_family[f].counts, by_family[f].changes);
            } catch (...) {
                failed = std::current_exception();
            }
            std::lock_guard lock(mutex);
            if (failed && !error) error = failed;
            tell(++done, int64_t(families.size()));
        }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 1; t < std::max(1u, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
    work();
    for (std::thread& t : threads) t.join();
    if (error) std::rethrow_exception(error);

    SearchResult result;
    std::vector<Change> found;
    for (Found& one : by_family) {
        result.tried += one.counts.tried, result.fit += one.counts.fit;
        for (Change& change : one.changes) found.push_back(std::move(change));
    }
    // The fastest of either kind, and what one flag more makes of it.
    std::vector<Change> climbs;
    sort_by_speed(found);
    for (const bool same : {true, false}) {
        const auto first =
            std::find_if(found.begin(), found.end(), [&](const Change& one) { return one.same_numerics == same; });
        if (first != found.end()) climbs.push_back(climbed(c, *first));
    }
    for (Change& one : climbs) found.push_back(std::move(one));
    sort_by_speed(found);
    std::vector<Change> same;
    std::copy_if(found.begin(), found.end(), std::back_inserter(same), [](const Change& a) { return a.same_numerics; });
    result.same = front_of(std::move(same));
    for (Change& one : front_of(std::move(found)))
        if (!one.same_numerics) result.other.push_back(std::move(one));
    return result;
}

}  // namespace rz
