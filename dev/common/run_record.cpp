#include "dev/common/run_record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "kernels/runtime/check.h"
#include "kernels/runtime/memory.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "dev/common/tool.h"
#include "llama/report/html.h"
#include "llama/report/log.h"

namespace rz {
namespace {

constexpr int64_t kLargestLine = 1 << 24;

std::string number(double x, const char* form = "%.4f") { return std::isfinite(x) ? format(form, x) : ""; }

constexpr size_t kMostNumbers = 64;  // of a list: one for each rank or stage

// Every number in `value`, by its path; of a list by its place.
void collect(RunRecord& run, const std::string& path, const Json& value, double step) {
    if (value.is_object()) {
        for (const auto& [key, inner] : value.items()) collect(run, path.empty() ? key : path + "/" + key, inner, step);
    } else if (value.is_array()) {
        for (size_t i = 0; i < std::min(value.size(), kMostNumbers); ++i)
            collect(run, path + "/" + std::to_string(i), value[i], step);
    } else if (value.is_number()) {
        Curve& curve = run.curves[path];
        while (!curve.points.empty() && curve.points.back().first >= step) curve.points.pop_back();
        curve.points.emplace_back(step, value.get<double>());
    }
}

void read_texts(std::map<std::string, std::string>& to, const std::string& path) {
    if (!path_exists(path)) return;
    const Json json = read_json(path, kDatasetFile);
    if (!json.is_object()) return;
    for (const auto& [key, value] : json.items())
        to[key] =
            value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

enum class By { step, tokens, minutes };
constexpr const char* kAxis[] = {"step", "tokens", "minutes"};

// The curve over tokens, or minutes since the run's first line, instead of steps; false where a run has none.
bool lay_over(Curve& curve, const Curve* other, By by) {
    if (!other) return false;
    std::map<double, double> at(other->points.begin(), other->points.end());
    const double first = by == By::minutes ? other->points.front().second : 0;
    if (by == By::tokens) at[0] = 0;
    std::erase_if(curve.points, [&](const auto& p) { return !at.count(p.first); });
    for (auto& p : curve.points) p.first = (at[p.first] - first) / (by == By::minutes ? 6e4 : 1);
    return !curve.points.empty();
}

// Plots one key of all runs; smoothed over the noise where there are many points.
std::string plot(const std::vector<RunRecord>& runs, const std::string& title, const std::string& key, const char* unit,
                 By by = By::step, bool smooth = false) {
    std::vector<Curve> curves;
    for (size_t i = 0; i < runs.size(); ++i) {
        const Curve* found = runs[i].find(key);
        if (!found) continue;
        Curve curve = *found;
        curve.name = runs[i].name;
        curve.colour = int(i);
        if (by != By::step && !lay_over(curve, runs[i].find(by == By::tokens ? "tokens" : "time"), by)) continue;
        curve.marks = curve.points.size() <= 60;
        if (smooth && curve.points.size() >= 200) {
            Curve each = curve;
            curve = smoothed(curve, curve.name);
            curve.colour = int(i);
            each.name = "";
            each.faint = true;
            curves.push_back(std::move(each));
        }
        curves.push_back(std::move(curve));
    }
    if (curves.empty()) return "";
    return plot_svg({.title = title, .x_label = kAxis[int(by)], .y_label = unit}, curves);
}

// Time that each rank computed, without waiting for others: a slow one stands out.
std::string time_by_rank(const RunRecord& run) {
    std::vector<Curve> curves;
    for (size_t rank = 0; rank < kMostNumbers; ++rank) {
        const Curve* c = run.find("seconds_by_rank/" + std::to_string(rank));
        if (!c) break;
        curves.push_back(*c);
        curves.back().name = format("rank %zu", rank);
        curves.back().marks = c->points.size() <= 60;
    }
    if (curves.empty()) return "";
    return plot_svg({.title = "Time by rank, " + run.name, .x_label = "step", .y_label = "seconds of its own per step"},
                    curves);
}

void add_results(HtmlPage& page, const std::vector<RunRecord>& runs) {
    std::vector<std::vector<std::string>> rows{{"run", "state", "steps", "tokens", "last loss", "best validation loss",
                                                "bits per byte", "tokens/s (median)", "peak memory", "time in steps"}};
    for (const RunRecord& r : runs) {
        const auto state = r.status.find("state");
        double seconds = 0;
        if (const Curve* c = r.find("seconds"))
            for (const auto& p : c->points) seconds += p.second;
        const double memory = r.peak_memory, steps = r.find("loss") ? r.find("loss")->points.back().first : NAN;
        rows.push_back({r.name, state == r.status.end() ? "" : state->second, number(steps, "%.0f"),
                        number(r.last("tokens"), "%.0f"), number(r.last("loss")), number(r.least("val_loss")),
                        number(r.least("val_bits_per_byte")), number(r.median("tokens_per_second"), "%.0f"),
                        std::isfinite(memory) ? human_bytes(int64_t(memory)) : "", duration(seconds)});
    }
    page.table(rows);
}

void add_plots(HtmlPage& page, const std::vector<RunRecord>& runs) {
    std::vector<std::string> svgs;
    const auto add = [&](std::string svg) {
        if (!svg.empty()) svgs.push_back(std::move(svg));
    };
    page.heading("Curves");
    add(plot(runs, "Training loss", "loss", "nats per token", By::step, true));
    add(plot(runs, "Validation loss", "val_loss", "nats per token"));
    add(plot(runs, "Training loss by tokens", "loss", "nats per token", By::tokens, true));
    add(plot(runs, "Validation loss by time", "val_loss", "nats per token", By::minutes));
    add(plot(runs, "Gradient norm", "grad_norm", "before clipping", By::step, true));
    add(plot(runs, "Learning rate", "lr", "learning rate"));
    add(plot(runs, "Speed", "tokens_per_second", "tokens per second", By::step, true));
    add(plot(runs, "Peak memory of rank 0", "memory_bytes", "bytes"));
    add(plot(runs, "Communication that compute waited for", "exposed_seconds", "seconds per step", By::step, true));
    std::set<std::string> more;
    for (const RunRecord& r : runs)
        for (const auto& [key, curve] : r.curves)
            if ((key.starts_with("eval/") && !key.ends_with("_stderr") && !key.ends_with("/examples")) ||
                key.starts_with("val_loss_by_set/") || key.starts_with("epochs/"))
                more.insert(key);
    for (const std::string& key : more) add(plot(runs, key, key, ""));
    for (const RunRecord& r : runs) add(time_by_rank(r));
    page.plots(svgs);
}

// Settings that are not the same in all runs.
void add_differences(HtmlPage& page, const std::vector<RunRecord>& runs) {
    page.heading("Settings that differ");
    std::set<std::string> keys;
    for (const RunRecord& r : runs)
        for (const auto& [key, value] : r.settings) keys.insert(key);
    std::vector<std::vector<std::string>> rows{{"setting"}};
    for (const RunRecord& r : runs) rows[0].push_back(r.name);
    for (const std::string& key : keys) {
        std::vector<std::string> row{key};
        for (const RunRecord& r : runs) {
            const auto at = r.settings.find(key);
            row.push_back(at == r.settings.end() ? "" : at->second);
        }
        if (std::adjacent_find(row.begin() + 1, row.end(), std::not_equal_to<>()) != row.end()) rows.push_back(row);
    }
    if (keys.empty()) return page.paragraph("No folder has a run.json, which says how a run was asked for.");
    if (runs.size() == 1) return page.paragraph("There is one run; --config and the command line have its settings.");
    if (rows.size() == 1) return page.paragraph("None.");
    page.table(rows);
}

void add_texts(HtmlPage& page, const std::vector<RunRecord>& runs) {
    bool samples = false, events = false;
    for (const RunRecord& r : runs) samples |= !r.samples.empty(), events |= !r.events.empty();
    if (samples) page.heading("Last samples");
    for (const RunRecord& r : runs)
        if (!r.samples.empty())
            page.block(format("%s, step %.0f", r.name.c_str(), r.samples.back().first), r.samples.back().second);
    if (!events) return;
    page.heading("What happened");
    std::vector<std::vector<std::string>> rows{{"run", "step", "event"}};
    for (const RunRecord& r : runs)
        for (const auto& [step, text] : r.events) rows.push_back({r.name, number(step, "%.0f"), text});
    page.table(rows);
}

std::string summary_json(const std::vector<RunRecord>& runs) {
    OrderedJson all = OrderedJson::array();
    for (const RunRecord& r : runs) {
        OrderedJson one{{"name", replace_invalid_utf8(r.name)}, {"last", OrderedJson::object()}};
        for (const auto& [key, curve] : r.curves)
            if (!curve.points.empty()) one["last"][key] = curve.points.back().second;
        for (const auto& [key, value] : r.settings) one["settings"][key] = replace_invalid_utf8(value);
        all.push_back(one);
    }
    return all.dump();
}

}  // namespace

const Curve* RunRecord::find(const std::string& key) const {
    const auto at = curves.find(key);
    return at == curves.end() || at->second.points.empty() ? nullptr : &at->second;
}

double RunRecord::last(const std::string& key) const {
    const Curve* c = find(key);
    return c ? c->points.back().second : NAN;
}

double RunRecord::least(const std::string& key) const {
    const Curve* c = find(key);
    if (!c) return NAN;
    return std::min_element(c->points.begin(), c->points.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->second;
}

double RunRecord::median(const std::string& key) const {
    const Curve* c = find(key);
    if (!c) return NAN;
    std::vector<double> values;
    for (const auto& p : c->points) values.push_back(p.second);
    return rz::median(std::move(values));
}

static void read_rows(RunRecord& run, const std::string& path) {
    const std::string text = read_file(path, kRunMetrics);
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = std::string_view(text).substr(at, end - at);
        at = end + 1;
        if (int64_t(line.size()) > kLargestLine) continue;
        const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        const Json* step = row.is_object() ? json_find(row, "step") : nullptr;
        if (!step || !step->is_number()) continue;
        const double s = step->get<double>();
        for (const auto& [key, value] : row.items()) {
            if (key == "step") continue;
            if (key == "sample" && value.is_string())
                run.samples.push_back({s, value.get<std::string>()});
            else if (key == "rollback" || key == "spike" || key == "skipped")
                run.events.push_back({s, key + " " + value.dump(-1, ' ', false, Json::error_handler_t::replace)});
            else
                collect(run, key, value, s);
        }
    }
}

RunRecord read_run(const std::string& folder) {
    RunRecord run;
    run.folder = folder;
    run.name = std::filesystem::path(folder + "/").parent_path().filename();
    const std::string path = folder + "/metrics.jsonl", by_rank = folder + "/ranks.jsonl";
    require(path_exists(path), "%s: not found; a run with --out writes it into its folder", path.c_str());
    read_rows(run, path);
    if (path_exists(by_rank)) read_rows(run, by_rank);  // earlier programs wrote these numbers into metrics.jsonl
    read_texts(run.settings, folder + "/run.json");
    read_texts(run.status, folder + "/run_status.json");
    run.peak_memory = run.last("memory_bytes");
    if (const std::string ranks = folder + "/ranks.json"; path_exists(ranks)) {
        const Json all = read_json(ranks);
        require(all.is_array() && !all.empty(), "%s: no list of ranks", ranks.c_str());
        const Json& total = json_at(json_at(all[0], "memory_peak", ranks), "total", ranks);
        run.peak_memory = double(json_int(total, "total", 0, INT64_MAX, ranks));
    }
    return run;
}

std::vector<RunRecord> read_runs(const std::vector<std::string>& folders) {
    std::vector<RunRecord> runs;
    for (const std::string& folder : folders) runs.push_back(read_run(folder));
    for (RunRecord& r : runs) {
        const auto same = [&](const RunRecord& other) { return &other != &r && other.name == r.name; };
        if (std::any_of(runs.begin(), runs.end(), same)) r.name = r.folder;
    }
    return runs;
}

std::string compare_runs(const std::vector<RunRecord>& runs) {
    require(!runs.empty(), "a report of no run");
    std::string names;
    for (const RunRecord& r : runs) names += (names.empty() ? "" : ", ") + r.name;
    HtmlPage page(runs.size() == 1 ? "A run" : format("%zu runs compared", runs.size()), names);
    add_results(page, runs);
    add_plots(page, runs);
    add_differences(page, runs);
    add_texts(page, runs);
    page.data("runs", summary_json(runs));
    return page.html();
}

}  // namespace rz
