// `train_llama plan --search`: every sensible combination is planned; what fits and is beaten by nothing is shown.

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "llama/plan/plan.h"

namespace rz {

namespace {

struct Choice {
    std::string text;  // "": as it is
    std::function<void(TrainOptions&)> apply = [](TrainOptions&) {};
};
using Choices = std::vector<Choice>;

template <class T>
Choice choice(std::string text, T TrainOptions::*field, T value) {
    return {std::move(text), [field, value](TrainOptions& o) { o.*field = value; }};
}

// How a model may be cut: tp inside a node, cp, a pipeline with a schedule, or both tp over the node and a pipeline.
Choices cuts(const PlanCase& c) {
    const std::set<std::string>& given = c.options.given;
    Choices all = {{}};
    if (given.count("tp") || given.count("pp") || given.count("cp")) return all;
    const int64_t node = std::min<int64_t>(8, c.ranks_on_node());
    for (int64_t tp = 2; tp <= node; tp *= 2)
        all.push_back(choice(format("--tp %lld", (long long)tp), &TrainOptions::tp, tp));
    for (int64_t cp = 2; cp <= node; cp *= 2)
        all.push_back(choice(format("--cp %lld", (long long)cp), &TrainOptions::cp, cp));
    for (int64_t pp = 2; pp <= std::min<int64_t>(8, c.ranks); pp *= 2) {
        all.push_back(choice(format("--pp %lld", (long long)pp), &TrainOptions::pp, pp));
        if (node > 1 && c.ranks >= node * pp)
            all.push_back({format("--tp %lld --pp %lld", (long long)node, (long long)pp),
                           [pp, node](TrainOptions& o) { o.pp = pp, o.tp = node; }});
        if (given.count("pp-schedule")) continue;
        for (const PipelineKind kind : {PipelineKind::f1b1, PipelineKind::interleaved})
            all.push_back(
                {format("--pp %lld --pp-schedule %s", (long long)pp, name_of(kind)), [pp, kind](TrainOptions& o) {
                     o.pp = pp;
                     o.pp_schedule.kind = kind;
                 }});
    }
    return all;
}

Choices shards(const PlanCase& c) {
    const TrainOptions& o = c.options;
    Choices all;
    const auto add = [&](int64_t zero, int64_t shard) {
        std::string text = o.given.count("zero") ? "" : format("--zero %lld", (long long)zero);
        if (shard > 0) text += (text.empty() ? "" : " ") + format("--shard-size %lld", (long long)shard);
        all.push_back({text, [zero, shard](TrainOptions& to) { to.zero = zero, to.shard_size = shard; }});
    };
    const int64_t node = c.machine.ranks_per_node;
    for (int64_t zero = 0; zero <= 3; ++zero) {
        if (o.given.count("zero") && zero != o.zero) continue;
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
    Choices all = {{}};
    const auto cross = [&](const Choices& more) {
        Choices product;
        for (const Choice& a : all)
            for (const Choice& b : more)
                product.push_back(
                    {a.text + (a.text.empty() || b.text.empty() ? "" : " ") + b.text, [a, b](TrainOptions& o) {
                         a.apply(o);
                         b.apply(o);
                     }});
        all = std::move(product);
    };
    if (!given.count("recompute"))
        cross({choice("", &TrainOptions::recompute, Recompute::none),
               choice("--recompute mlp", &TrainOptions::recompute, Recompute::mlp),
               choice("--recompute block", &TrainOptions::recompute, Recompute::block)});
    if (!given.count("collectives"))
        cross({{}, choice("--collectives direct", &TrainOptions::collectives, AxisAlgorithms{Algorithm::direct})});
    if (!given.count("adam-dtype") && c.options.dtype != DType::f32)
        cross({{}, choice("--adam-dtype bf16", &TrainOptions::adam_dtype, DType::bf16)});
    if (!given.count("fp8") && c.options.dtype == DType::bf16 && c.machine.gemm_fp8 > 0)
        cross({{}, {"--fp8 tensor", [](TrainOptions& o) { o.fp8.recipe = Fp8Recipe::tensor; }}});
    return all;
}

// For what does not fit by itself: from what costs least.
Choices offloads(const PlanCase& c) {
    Choices all;
    for (const auto& flag : c.options.given)
        if (flag.rfind("offload-", 0) == 0) return all;
    if (c.machine.cpu) return all;
    const auto with = [&](const char* text, bool whole) {
        all.push_back({text, [whole](TrainOptions& o) {
                           o.offload_optimizer = OffloadOptimizer::stream;
                           o.offload_grads = o.offload_params = whole;
                       }});
    };
    with("--offload-optimizer stream", false);
    with("--offload-optimizer stream --offload-grads on --offload-params on", true);
    return all;
}

// Left out, as hardly ever best: a model in parts that shards more than the optimizer's state over fewer than all, and
// a pipeline that recomputes, or a long one with few micro-batches to fill it. Layers in fp8 with a model in parts are
// left out because no such run was made yet.
bool is_sensible(const TrainOptions& o) {
    if (o.tp == 1 && o.pp == 1 && o.cp == 1) return true;
    if (o.fp8.on() && !o.given.count("fp8")) return false;
    if (o.shard_size > 0 || o.zero == 2 || (o.pp > 1 && o.zero != 1)) return o.given.count("zero") > 0;
    return o.pp == 1 || o.recompute == Recompute::none || o.given.count("recompute") > 0;
}

double speed(const Change& c) { return double(tokens_per_step(c.to)) / c.plan.step_seconds; }
int64_t memory(const Change& c) { return c.plan.largest().memory.total; }

// Micro-batches for the same tokens of an update: powers of two.
Choices batches(const PlanCase& c) {
    if (c.options.given.count("batch") && c.options.batch > 0) return {{}};
    Choices all;
    for (int64_t b = 1; b <= 64; b *= 2)
        all.push_back(choice(format("--batch %lld", (long long)b), &TrainOptions::batch, b));
    return all;
}

// Flags but for the micro-batch.
struct Family {
    PlanCase of;
    std::string text;
};

enum class Tried { fits, too_large, refused };

Tried plan_one(const PlanCase& c, const std::string& text, SearchResult& counts, std::vector<Change>& found) {
    ++counts.tried;
    try {
        Plan plan = make_plan(c, {.timed = true, .one_rank = true, .if_fits = true});
        if (plan.fits != Fits::yes) return Tried::too_large;
        ++counts.fit;
        found.push_back({text, c, std::move(plan)});
        return Tried::fits;
    } catch (const Error&) {  // a run of these flags is refused
        return Tried::refused;
    }
}

// Micro-batches of growing size, up to the first that does not fit: larger ones do not either. That one is tried with
// less on the device.
void try_family(const Family& family, const Choices& batch, SearchResult& counts, std::vector<Change>& found) {
    const auto joined = [](const std::string& a, const std::string& b) {
        return a + (a.empty() || b.empty() ? "" : " ") + b;
    };
    for (const Choice& b : batch) {
        PlanCase with = family.of;
        b.apply(with.options);
        const std::string text = joined(family.text, b.text);
        if (plan_one(with, text, counts, found) != Tried::too_large) continue;
        for (const Choice& one : offloads(with)) {
            PlanCase on_host = with;
            one.apply(on_host.options);
            if (plan_one(on_host, joined(text, one.text), counts, found) == Tried::fits) return;
        }
        return;
    }
}

}  // namespace

SearchResult search(const PlanCase& c, const std::function<void(int64_t done, int64_t of)>& tell) {
    const Choices cut = cuts(c), shard = shards(c), other = others(c), batch = batches(c);
    std::vector<Family> families;
    for (const Choice& i : cut)
        for (const Choice& j : shard)
            for (const Choice& k : other) {
                Family f{c, ""};
                for (const Choice* one : {&i, &j, &k}) {
                    one->apply(f.of.options);
                    f.text += (f.text.empty() || one->text.empty() ? "" : " ") + one->text;
                }
                if (is_sensible(f.of.options)) families.push_back(std::move(f));
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
                try_family(families[f], batch, by_family[f].counts, by_family[f].changes);
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
    std::stable_sort(found.begin(), found.end(), [](const Change& a, const Change& b) { return speed(a) > speed(b); });
    int64_t least = INT64_MAX;
    for (Change& one : found) {
        if (memory(one) >= least) continue;
        least = memory(one);
        result.front.push_back(std::move(one));
    }
    return result;
}

}  // namespace rz
