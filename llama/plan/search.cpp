// `train_llama plan --search`: every sensible combination is planned; what fits and is beaten by nothing is shown.

#include <algorithm>
#include <functional>

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

// How a model may be cut: tp inside a node, or a pipeline with a schedule.
Choices cuts(const PlanCase& c) {
    const std::set<std::string>& given = c.options.given;
    Choices all = {{}};
    if (given.count("tp") || given.count("pp")) return all;
    for (int64_t tp = 2; tp <= std::min<int64_t>(8, c.ranks_on_node()); tp *= 2)
        all.push_back(choice(format("--tp %lld", (long long)tp), &TrainOptions::tp, tp));
    for (int64_t pp = 2; pp <= std::min<int64_t>(8, c.ranks); pp *= 2) {
        all.push_back(choice(format("--pp %lld", (long long)pp), &TrainOptions::pp, pp));
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
    return all;
}

enum class Tried { fits, too_large, refused };

Tried plan_one(const PlanCase& c, const std::string& text, std::vector<Change>& found) {
    try {
        Plan plan = make_plan(c, {.timed = true, .one_rank = true});
        if (plan.fits != Fits::yes) return Tried::too_large;
        found.push_back({text, c, std::move(plan)});
        return Tried::fits;
    } catch (const Error&) {  // a run of these flags is refused
        return Tried::refused;
    }
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
// a pipeline that recomputes, or a long one with few micro-batches to fill it.
bool is_sensible(const TrainOptions& o) {
    if (o.tp == 1 && o.pp == 1) return true;
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

}  // namespace

SearchResult search(const PlanCase& c, const std::function<void(int64_t done, int64_t of)>& tell) {
    const Choices cut = cuts(c), shard = shards(c), other = others(c), batch = batches(c);
    const int64_t all = int64_t(cut.size() * shard.size() * other.size() * batch.size());
    SearchResult result;
    std::vector<Change> found;
    for (size_t i = 0; i < cut.size(); ++i)
        for (size_t j = 0; j < shard.size(); ++j)
            for (size_t k = 0; k < other.size(); ++k)
                for (size_t b = 0; b < batch.size(); ++b) {
                    PlanCase with = c;
                    std::string text;
                    for (const Choice* one : {&cut[i], &shard[j], &other[k], &batch[b]}) {
                        one->apply(with.options);
                        text += (text.empty() || one->text.empty() ? "" : " ") + one->text;
                    }
                    tell(int64_t(((i * shard.size() + j) * other.size() + k) * batch.size() + b + 1), all);
                    if (!is_sensible(with.options)) break;
                    ++result.tried;
                    const Tried end = plan_one(with, text, found);
                    result.fit += end == Tried::fits;
                    if (end != Tried::too_large) continue;
                    for (const Choice& one : offloads(c)) {
                        PlanCase on_host = with;
                        one.apply(on_host.options);
                        ++result.tried;
                        if (plan_one(on_host, text + (text.empty() ? "" : " ") + one.text, found) != Tried::fits)
                            continue;
                        ++result.fit;
                        break;
                    }
                    break;  // more sequences are too large as well
                }
    std::sort(found.begin(), found.end(), [](const Change& a, const Change& b) { return speed(a) > speed(b); });
    int64_t least = INT64_MAX;
    for (Change& one : found) {
        if (memory(one) >= least) continue;
        least = memory(one);
        result.front.push_back(std::move(one));
    }
    return result;
}

}  // namespace rz
