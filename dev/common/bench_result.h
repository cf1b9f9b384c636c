#pragma once
// Results of the benchmark harness (dev/bench/harness.cpp): each repeat's numbers, their statistics, two reports
// compared, and all of it on one page.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rz {

// One start of a target.
struct BenchRepeat {
    std::string folder;   // log, metrics and trace, below the report's folder
    std::string problem;  // why there are no numbers; empty: there are
    double wall_seconds = 0;
    double load = 0;                             // load average of the host when it began
    std::vector<double> seconds = {};            // of each step after the warm-up, or of the op
    std::map<std::string, double> numbers = {};  // by name: tokens_per_second, overlap, ...
    std::vector<int64_t> used = {},
                         reserved = {};  // bytes at the peak, by rank: of the ledger; of the process or the card
};

// A target at one number of ranks.
struct BenchResult {
    std::string target;    // "zero:zero2"
    std::string baseline;  // the target that it is measured against; empty: none
    std::string about, command;
    int ranks = 1;
    std::vector<BenchRepeat> repeats;

    std::string group() const { return target.substr(0, target.find(':')); }
    bool good() const;                             // some repeat has numbers
    std::vector<double> seconds() const;           // of all repeats
    double number(const std::string& name) const;  // median over repeats; NaN: none has it
    int64_t used() const, reserved() const;        // of the rank that takes most; 0: unknown
    const std::string* problem() const;            // of the first repeat that has one
};

struct BenchReport {
    std::map<std::string, std::string> environment;  // versions, hardware, measured ceilings, the command
    std::vector<BenchResult> results;

    // The same target and number of ranks; nullptr if it is not there.
    const BenchResult* find(const std::string& target, int ranks) const;
    const BenchResult* baseline_of(const BenchResult&) const;
};

std::string to_json(const BenchReport&);
// Throws naming the file and what is wrong with it.
BenchReport read_bench_report(const std::string& file);

struct Spread {
    double least = 0, low = 0, median = 0, high = 0, most = 0;  // low, high: quartiles
};
// Spread of at least one value; quantiles between values are interpolated.
Spread spread_of(std::vector<double> values);

// Time of `of` over time of `to`: the ratio of their medians, and where 95 of 100 resamplings of repeats and, within
// them, of steps put it (a percentile bootstrap with a fixed seed: the same input, the same interval).
struct Ratio {
    double median = 1, low = 1, high = 1;
    bool differs() const { return low > 1 || high < 1; }
};
Ratio time_ratio(const BenchResult& of, const BenchResult& to);

// Tables as text: one line for each result; each beside its baseline; what the field prints, as Markdown; two reports
// beside each other, with what differs between their environments.
std::string bench_table(const BenchReport&);
std::string bench_summary(const BenchReport&);
std::string bench_markdown(const BenchReport&);
std::string compare_text(const BenchReport& a, const BenchReport& b);

// One HTML page with inline SVG. With `before`, which may be nullptr, each result beside the one there.
std::string bench_page(const BenchReport&, const BenchReport* before);

}  // namespace rz
