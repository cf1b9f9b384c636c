#include "dev/common/bench_result.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"

namespace rz {

// ---- statistics -----------------------------------------------------------------------------------------------------

namespace {

double quantile(const std::vector<double>& sorted, double q) {
    const double at = q * double(sorted.size() - 1);
    const size_t i = std::min(size_t(at), sorted.size() - 1), next = std::min(i + 1, sorted.size() - 1);
    return sorted[i] + (at - double(i)) * (sorted[next] - sorted[i]);
}

double median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return quantile(values, 0.5);
}

// Repeats that have numbers.
std::vector<const std::vector<double>*> samples(const BenchResult& r) {
    std::vector<const std::vector<double>*> all;
    for (const BenchRepeat& one : r.repeats)
        if (!one.seconds.empty()) all.push_back(&one.seconds);
    return all;
}

double resampled_median(const std::vector<const std::vector<double>*>& repeats, std::mt19937_64& rng) {
    std::vector<double> drawn;
    for (size_t i = 0; i < repeats.size(); ++i) {
        const std::vector<double>& one = *repeats[rng() % repeats.size()];
        for (size_t k = 0; k < one.size(); ++k) drawn.push_back(one[rng() % one.size()]);
    }
    return median_of(std::move(drawn));
}

}  // namespace

Spread spread_of(std::vector<double> v) {
    require(!v.empty(), "a spread of no values");
    std::sort(v.begin(), v.end());
    return {v.front(), quantile(v, 0.25), quantile(v, 0.5), quantile(v, 0.75), v.back()};
}

Ratio time_ratio(const BenchResult& of, const BenchResult& to) {
    const auto a = samples(of), b = samples(to);
    require(!a.empty() && !b.empty(), "%s and %s: one of them has no times", of.target.c_str(), to.target.c_str());
    constexpr int kDraws = 1000;
    std::mt19937_64 rng(1);
    std::vector<double> ratios;
    for (int i = 0; i < kDraws; ++i) {
        const double top = resampled_median(a, rng);
        ratios.push_back(top / resampled_median(b, rng));
    }
    std::sort(ratios.begin(), ratios.end());
    return {median_of(of.seconds()) / median_of(to.seconds()), quantile(ratios, 0.025), quantile(ratios, 0.975)};
}

// ---- results --------------------------------------------------------------------------------------------------------

bool BenchResult::good() const { return !samples(*this).empty(); }

std::vector<double> BenchResult::seconds() const {
    std::vector<double> all;
    for (const BenchRepeat& r : repeats) all.insert(all.end(), r.seconds.begin(), r.seconds.end());
    return all;
}

double BenchResult::number(const std::string& name) const {
    std::vector<double> found;
    for (const BenchRepeat& r : repeats)
        if (const auto at = r.numbers.find(name); at != r.numbers.end()) found.push_back(at->second);
    return found.empty() ? NAN : median_of(std::move(found));
}

static int64_t most_of(const BenchResult& r, std::vector<int64_t> BenchRepeat::*of) {
    int64_t most = 0;
    for (const BenchRepeat& one : r.repeats)
        for (const int64_t bytes : one.*of) most = std::max(most, bytes);
    return most;
}
int64_t BenchResult::used() const { return most_of(*this, &BenchRepeat::used); }
int64_t BenchResult::reserved() const { return most_of(*this, &BenchRepeat::reserved); }

const std::string* BenchResult::problem() const {
    for (const BenchRepeat& r : repeats)
        if (!r.problem.empty()) return &r.problem;
    return nullptr;
}

const BenchResult* BenchReport::find(const std::string& target, int ranks) const {
    for (const BenchResult& r : results)
        if (r.target == target && r.ranks == ranks) return &r;
    return nullptr;
}

const BenchResult* BenchReport::baseline_of(const BenchResult& r) const {
    const BenchResult* found = r.baseline.empty() || r.baseline == r.target ? nullptr : find(r.baseline, r.ranks);
    return found && found->good() && r.good() ? found : nullptr;
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

constexpr int kVersion = 1;

static OrderedJson repeat_json(const BenchRepeat& r) {
    return {{"folder", r.folder},   {"problem", replace_invalid_utf8(r.problem)},
            {"load", r.load},       {"wall_seconds", r.wall_seconds},
            {"seconds", r.seconds}, {"numbers", r.numbers},
            {"used", r.used},       {"reserved", r.reserved}};
}

std::string to_json(const BenchReport& report) {
    OrderedJson results = OrderedJson::array();
    for (const BenchResult& r : report.results) {
        OrderedJson repeats = OrderedJson::array();
        for (const BenchRepeat& one : r.repeats) repeats.push_back(repeat_json(one));
        OrderedJson json{{"target", r.target},   {"baseline", r.baseline}, {"about", r.about},
                         {"command", r.command}, {"ranks", r.ranks},       {"repeats", std::move(repeats)}};
        if (r.good()) {  // for readers that do no statistics of their own
            const Spread s = spread_of(r.seconds());
            json["seconds"] = {
                {"least", s.least}, {"low", s.low}, {"median", s.median}, {"high", s.high}, {"most", s.most}};
        }
        results.push_back(std::move(json));
    }
    OrderedJson environment = OrderedJson::object();
    for (const auto& [key, value] : report.environment) environment[key] = replace_invalid_utf8(value);
    const OrderedJson all{{"version", kVersion}, {"environment", environment}, {"results", std::move(results)}};
    return all.dump(1) + "\n";
}

static const Json& list_at(const Json& object, const char* key, const std::string& where) {
    const Json& list = json_at(object, key, where);
    require(list.is_array(), "%s: %s is %s, not a list", where.c_str(), key, json_excerpt(list).c_str());
    return list;
}

static std::vector<int64_t> bytes_at(const Json& object, const char* key, const std::string& where) {
    std::vector<int64_t> all;
    for (const Json& one : list_at(object, key, where)) {
        require(one.is_number_integer() && one.get<double>() >= 0 && one.get<double>() < 9e18,
                "%s: %s has %s, which is no number of bytes", where.c_str(), key, json_excerpt(one).c_str());
        all.push_back(one.get<int64_t>());
    }
    return all;
}

static BenchRepeat read_repeat(const Json& json, const std::string& where) {
    BenchRepeat r{.folder = json_string(json_at(json, "folder", where), "folder", where),
                  .problem = json_string(json_at(json, "problem", where), "problem", where)};
    r.load = json_number(json_at(json, "load", where), "load", 0, 1e9, where);
    r.wall_seconds = json_number(json_at(json, "wall_seconds", where), "wall_seconds", 0, 1e12, where);
    for (const Json& one : list_at(json, "seconds", where)) {
        require(one.is_number() && one.get<double>() > 0 && one.get<double>() < 1e12,
                "%s: seconds has %s, which is no time", where.c_str(), json_excerpt(one).c_str());
        r.seconds.push_back(one.get<double>());
    }
    const Json& numbers = json_at(json, "numbers", where);
    require(numbers.is_object(), "%s: numbers is no object", where.c_str());
    for (const auto& [key, value] : numbers.items())
        r.numbers[key] = json_number(json_at(numbers, key.c_str(), where), key.c_str(), -1e300, 1e300, where);
    r.used = bytes_at(json, "used", where);
    r.reserved = bytes_at(json, "reserved", where);
    return r;
}

BenchReport read_bench_report(const std::string& file) {
    const Json json = read_json(file);
    json_int(json_at(json, "version", file), "version", kVersion, kVersion, file);
    BenchReport report;
    const Json& environment = json_at(json, "environment", file);
    require(environment.is_object(), "%s: environment is no object", file.c_str());
    for (const auto& [key, value] : environment.items())
        report.environment[key] = json_string(json_at(environment, key.c_str(), file), key.c_str(), file);
    for (const Json& one : list_at(json, "results", file)) {
        BenchResult r{.target = json_string(json_at(one, "target", file), "target", file),
                      .baseline = json_string(json_at(one, "baseline", file), "baseline", file),
                      .about = json_string(json_at(one, "about", file), "about", file),
                      .command = json_string(json_at(one, "command", file), "command", file),
                      .ranks = int(json_int(json_at(one, "ranks", file), "ranks", 1, 1 << 24, file)),
                      .repeats = {}};
        for (const Json& repeat : list_at(one, "repeats", file)) r.repeats.push_back(read_repeat(repeat, file));
        report.results.push_back(std::move(r));
    }
    return report;
}

}  // namespace rz
