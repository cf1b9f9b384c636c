// The harness's results as tables and as a page.

#include <algorithm>
#include <cmath>

#include "kernels/runtime/check.h"
#include "kernels/runtime/memory.h"
#include "dev/common/bench_result.h"
#include "llama/report/html.h"

namespace rz {

namespace {

// A predicted ratio that a measurement has to show.
constexpr double kClearlyFaster = 0.95;

using Rows = std::vector<std::vector<std::string>>;

std::string text_of(double x, const char* form) { return std::isfinite(x) ? format(form, x) : ""; }
std::string bytes_text(int64_t bytes) { return bytes > 0 ? human_bytes(bytes) : ""; }
std::string percent(double x) { return text_of(100 * x, "%.0f%%"); }

std::string time_text(double seconds) {
    return seconds >= 1      ? format("%.3f s", seconds)
           : seconds >= 1e-3 ? format("%.2f ms", 1e3 * seconds)
                             : format("%.2f us", 1e6 * seconds);
}

std::string spread_text(const Spread& s) { return format("%.1f%%", 100 * (s.high - s.low) / s.median); }

std::string ratio_text(const Ratio& r) {
    return format("%.3f (%.3f to %.3f)%s", r.median, r.low, r.high,
                  !r.differs()   ? ", no difference"
                  : r.median < 1 ? ", faster"
                                 : ", slower");
}

// Columns that no row has something in are left out.
Rows without_empty(Rows rows) {
    for (size_t column = rows[0].size(); column-- > 0;)
        if (std::all_of(rows.begin() + 1, rows.end(), [&](const auto& row) { return row[column].empty(); }))
            for (auto& row : rows) row.erase(row.begin() + int64_t(column));
    return rows;
}

std::string aligned(const Rows& rows) {
    std::vector<size_t> width(rows[0].size());
    for (const auto& row : rows)
        for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i)
            line += format(i == 0 ? "%-*s" : "  %*s", int(width[i]), row[i].c_str());
        text += line + "\n";
    }
    return text;
}

Rows result_rows(const std::vector<const BenchResult*>& results) {
    Rows rows{{"target", "ranks", "step or op", "middle half", "steps/s", "tokens/s", "TFLOP/s", "a rank", "rate",
               "of peak", "peak memory", "reserved", "overlap", "exposed", "stages busy", "queue", "loss"}};
    for (const BenchResult* r : results) {
        if (!r->good()) {
            rows.push_back({r->target, std::to_string(r->ranks), "failed"});
            rows.back().resize(rows[0].size());
            continue;
        }
        const Spread s = spread_of(r->seconds());
        rows.push_back({r->target, std::to_string(r->ranks), time_text(s.median), spread_text(s),
                        text_of(r->number("steps_per_second"), "%.2f"), text_of(r->number("tokens_per_second"), "%.0f"),
                        text_of(r->number("tflops"), "%.4g"), text_of(r->number("tflops_per_rank"), "%.4g"),
                        text_of(r->number("rate"), "%.4g"), percent(r->number("of_peak")), bytes_text(r->used()),
                        bytes_text(r->reserved()), percent(r->number("overlap")), percent(r->number("exposed_share")),
                        percent(r->number("utilisation")), text_of(r->number("queue"), "%.0f"),
                        text_of(r->number("loss"), "%.4f")});
    }
    return without_empty(std::move(rows));
}

std::vector<const BenchResult*> pointers(const BenchReport& report) {
    std::vector<const BenchResult*> all;
    for (const BenchResult& r : report.results) all.push_back(&r);
    return all;
}

Rows summary_rows(const BenchReport& report, const std::string& group) {
    Rows rows{{"target", "ranks", "against", "predicted", "time, of the baseline's (95 of 100 resamplings)", "shown",
               "memory, of the baseline's"}};
    for (const BenchResult& r : report.results) {
        const BenchResult* base = report.baseline_of(r);
        if (!base || (!group.empty() && r.group() != group)) continue;
        const Ratio found = time_ratio(r, *base);
        const double predicted = r.number("predicted") / base->number("predicted");
        rows.push_back({r.target, std::to_string(r.ranks), base->target, text_of(predicted, "%.3f"), ratio_text(found),
                        !(predicted <= kClearlyFaster) ? ""
                        : found.high < 1               ? "yes"
                                                       : "NO",
                        base->used() > 0 ? percent(double(r.used()) / double(base->used())) : ""});
    }
    return rows;
}

Rows comparison_rows(const BenchReport& a, const BenchReport& b) {
    Rows rows{{"target", "ranks", "A", "B", "B / A (95 of 100 resamplings)", "memory A", "memory B"}};
    for (const BenchResult& to : b.results) {
        const BenchResult* from = a.find(to.target, to.ranks);
        if (!from || !from->good() || !to.good()) continue;
        rows.push_back({to.target, std::to_string(to.ranks), time_text(spread_of(from->seconds()).median),
                        time_text(spread_of(to.seconds()).median), ratio_text(time_ratio(to, *from)),
                        bytes_text(from->used()), bytes_text(to.used())});
    }
    return rows;
}

// Rows that differ between the sides; those that only one has too.
Rows differing_rows(const BenchReport& a, const BenchReport& b) {
    Rows rows{{"environment", "A", "B"}};
    std::map<std::string, std::pair<std::string, std::string>> all;
    for (const auto& [key, value] : a.environment) all[key].first = value;
    for (const auto& [key, value] : b.environment) all[key].second = value;
    for (const auto& [key, both] : all)
        if (both.first != both.second) rows.push_back({key, both.first, both.second});
    for (const BenchResult& to : b.results)
        if (const BenchResult* from = a.find(to.target, to.ranks); from && from->command != to.command)
            rows.push_back({"command of " + to.target, from->command, to.command});
    return rows;
}

// ---- bars -----------------------------------------------------------------------------------------------------------

// One bar for each result, from 0 to its median, with the middle half of its steps as a line over its end.
std::string bars_svg(const std::string& title, const std::vector<const BenchResult*>& results) {
    constexpr double kWidth = 800, kLeft = 300, kRight = 100, kTop = 44, kRow = 24;
    const double height = kTop + kRow * double(results.size()) + 12;
    double most = 0;
    for (const BenchResult* r : results) most = std::max(most, spread_of(r->seconds()).high);
    std::string svg = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
        "font-size=\"13\"><title>%s</title><text x=\"12\" y=\"24\" font-size=\"16\" fill=\"#64748b\">%s</text>\n",
        kWidth, height, escape_html(title).c_str(), escape_html(title).c_str());
    const auto x = [&](double seconds) { return kLeft + (kWidth - kLeft - kRight) * seconds / most; };
    for (size_t i = 0; i < results.size(); ++i) {
        const BenchResult& r = *results[i];
        const Spread s = spread_of(r.seconds());
        const double y = kTop + kRow * double(i), middle = y + kRow / 2;
        const bool is_baseline = r.baseline.empty();
        svg += format("<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#64748b\">%s, %d rank%s</text>",
                      kLeft - 8, middle + 4, escape_html(r.target).c_str(), r.ranks, r.ranks == 1 ? "" : "s");
        svg += format("<rect x=\"%.0f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\"/>", kLeft, y + 4,
                      x(s.median) - kLeft, kRow - 8, is_baseline ? "#64748b" : "#3b82f6");
        svg +=
            format("<path d=\"M%.2f %.1fH%.2f\" stroke=\"#e8710a\" stroke-width=\"3\"/>", x(s.low), middle, x(s.high));
        svg += format("<text x=\"%.2f\" y=\"%.1f\" fill=\"#64748b\">%s</text>\n", x(std::max(s.median, s.high)) + 6,
                      middle + 4, time_text(s.median).c_str());
    }
    return svg + "</svg>";
}

void add_group(HtmlPage& page, const BenchReport& report, const std::string& group) {
    page.heading(group);
    std::vector<const BenchResult*> all, good;
    for (const BenchResult& r : report.results)
        if (r.group() == group) all.push_back(&r);
    for (const BenchResult* r : all)
        if (r->good()) good.push_back(r);
    page.table(result_rows(all));
    if (const Rows rows = summary_rows(report, group); rows.size() > 1) page.table(without_empty(rows));
    for (const BenchResult* r : all)
        if (const std::string* problem = r->problem()) page.block(r->target + ": a repeat failed", *problem);
    constexpr size_t kMostBars = 60;
    if (!good.empty() && good.size() <= kMostBars) page.plots({bars_svg(group + ": seconds", good)});
    Rows commands{{"target", "what", "command"}};
    for (const BenchResult* r : all) commands.push_back({r->target, r->about, r->command});
    page.table(commands);
}

}  // namespace

std::string bench_table(const BenchReport& report) { return aligned(result_rows(pointers(report))); }

std::string bench_summary(const BenchReport& report) { return aligned(without_empty(summary_rows(report, ""))); }

std::string bench_markdown(const BenchReport& report) {
    Rows rows{{"method", "ranks", "tokens/s", "a rank", "efficiency", "step", "middle half", "memory of a rank",
               "reserved", "exposed"}};
    for (const BenchResult& r : report.results) {
        const double rate = r.number("tokens_per_second");
        if (!r.good() || !std::isfinite(rate)) continue;
        // Scaling: against the same target at the fewest ranks.
        const BenchResult* least = &r;
        for (const BenchResult& other : report.results)
            if (other.target == r.target && other.good() && other.ranks < least->ranks) least = &other;
        const double alone = least->number("tokens_per_second") / least->ranks;
        const Spread s = spread_of(r.seconds());
        rows.push_back({r.target, std::to_string(r.ranks), text_of(rate, "%.0f"), text_of(rate / r.ranks, "%.0f"),
                        least == &r ? "" : percent(rate / r.ranks / alone), time_text(s.median), spread_text(s),
                        bytes_text(r.used()), bytes_text(r.reserved()), percent(r.number("exposed_share"))});
    }
    rows = without_empty(std::move(rows));
    std::string text;
    for (size_t i = 0; i < rows.size(); ++i) {
        for (const std::string& cell : rows[i]) text += "| " + cell + " ";
        text += "|\n";
        if (i > 0) continue;
        for (size_t k = 0; k < rows[0].size(); ++k) text += k == 0 ? "|---" : "|---:";
        text += "|\n";
    }
    return text;
}

std::string compare_text(const BenchReport& a, const BenchReport& b) {
    const Rows rows = comparison_rows(a, b), differences = differing_rows(a, b);
    std::string text = rows.size() > 1 ? aligned(without_empty(rows)) : "no target is in both\n";
    text += "\nwhat differs besides:\n";
    for (size_t i = 1; i < differences.size(); ++i)
        text += format("  %s\n    A: %s\n    B: %s\n", differences[i][0].c_str(), differences[i][1].c_str(),
                       differences[i][2].c_str());
    return text + (differences.size() == 1 ? "  nothing that is known\n" : "");
}

std::string bench_page(const BenchReport& report, const BenchReport* before) {
    const auto at = [&](const char* key) {
        const auto found = report.environment.find(key);
        return found == report.environment.end() ? std::string() : found->second;
    };
    HtmlPage page("ringzero: benchmarks", at("cpu") + (at("gpu").empty() ? "" : ", " + at("gpu")) + "; commit " +
                                              at("commit") + "; " + at("date"));
    if (before) {
        page.heading("Compared: A is the earlier report, B this one");
        if (const Rows rows = comparison_rows(*before, report); rows.size() > 1) page.table(without_empty(rows));
        page.table(differing_rows(*before, report));
    }
    std::vector<std::string> groups;
    for (const BenchResult& r : report.results)
        if (std::find(groups.begin(), groups.end(), r.group()) == groups.end()) groups.push_back(r.group());
    for (const std::string& group : groups) add_group(page, report, group);
    page.heading("Environment");
    Rows rows{{"what", "value"}};
    for (const auto& [key, value] : report.environment) rows.push_back({key, value});
    page.table(rows);
    page.paragraph(
        "Times: medians of the steps after the warm-up over all repeats; bars end there, the orange line is the middle "
        "half. A ratio is of medians; its range is where 95 of 100 resamplings of repeats and steps put it.");
    page.data("results", to_json(report));
    return page.html();
}

}  // namespace rz
