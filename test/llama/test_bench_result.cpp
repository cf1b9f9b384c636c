// The harness's statistics, file and tables.

#include <gtest/gtest.h>

#include <random>

#include "llama/base/atomic_file.h"
#include "dev/common/bench_result.h"
#include "test/checks.h"

namespace rz {
namespace {

BenchResult result(const std::string& target, const std::string& baseline, std::vector<std::vector<double>> repeats) {
    BenchResult r{
        .target = target, .baseline = baseline, .about = "", .command = "run " + target, .ranks = 2, .repeats = {}};
    for (std::vector<double>& seconds : repeats) {
        r.repeats.push_back({.folder = "f", .problem = ""});
        r.repeats.back().seconds = std::move(seconds);
    }
    return r;
}

// Hyndman and Fan's type 7, by hand: of 1 2 3 4 the quartiles are 1.75, 2.5, 3.25.
TEST(BenchResult, QuantilesLieBetweenValues) {
    const Spread s = spread_of({4, 1, 3, 2});
    EXPECT_EQ(s.least, 1);
    EXPECT_EQ(s.low, 1.75);
    EXPECT_EQ(s.median, 2.5);
    EXPECT_EQ(s.high, 3.25);
    EXPECT_EQ(s.most, 4);
    EXPECT_EQ(spread_of({7}).high, 7);
}

// Two sets of the same distribution: 95 of 100 intervals should hold 1. With 4 repeats of 20 steps the bootstrap's are
// a little narrow; of 200 pairs at least 160 hold it (expected 180 to 190).
TEST(BenchResult, SameDistributionsMostlyDoNotDiffer) {
    std::mt19937_64 rng(3);
    std::normal_distribution<double> step(1, 0.05);
    const auto draw = [&] {
        std::vector<std::vector<double>> repeats(4);
        for (auto& one : repeats)
            for (int i = 0; i < 20; ++i) one.push_back(step(rng));
        return repeats;
    };
    int same = 0;
    for (int i = 0; i < 200; ++i) same += !time_ratio(result("g:a", "", draw()), result("g:b", "", draw())).differs();
    EXPECT_GE(same, 160);
    EXPECT_LT(same, 200) << "an interval that always holds 1 says nothing";
}

TEST(BenchResult, TwiceAsFastDiffers) {
    const Ratio r =
        time_ratio(result("g:a", "", {{1, 1.1, 0.9}, {1, 1.05}}), result("g:b", "", {{2, 2.1, 1.9}, {2, 2.2}}));
    EXPECT_EQ(r.median, 0.5);
    EXPECT_TRUE(r.differs());
    EXPECT_LE(r.low, 0.5);
    EXPECT_GE(r.high, 0.5);
}

// A repeat that was slow as a whole widens the interval: steps of one repeat are not independent.
TEST(BenchResult, SlowRepeatWidensTheInterval) {
    const BenchResult base = result("g:b", "", {{1, 1, 1}, {1, 1, 1}});
    const Ratio r = time_ratio(result("g:a", "", {{1, 1, 1}, {3, 3, 3}}), base);
    EXPECT_EQ(r.low, 1);
    EXPECT_EQ(r.high, 3);
    EXPECT_FALSE(r.differs());
}

BenchReport report() {
    BenchReport all;
    all.environment = {{"cpu", "a <cpu>"}, {"commit", "abc"}, {"date", "today"}};
    all.results = {result("g:base", "", {{2, 2}}), result("g:better", "g:base", {{1, 1}})};
    all.results[0].repeats[0].used = {100, 200};
    all.results[1].repeats[0].used = {50, 40};
    all.results[1].repeats[0].numbers["tokens_per_second"] = 1000;
    all.results[1].repeats.push_back({.folder = "x", .problem = "exit code 1: <no>"});
    return all;
}

TEST(BenchResult, ReportIsReadBackAsWritten) {
    const std::string file = testing::TempDir() + "/bench_result.json";
    write_file_atomically(file, to_json(report()));
    EXPECT_EQ(to_json(read_bench_report(file)), to_json(report()));
}

TEST(BenchResult, DamagedReportsAreRefusedByName) {
    const std::string file = testing::TempDir() + "/bench_damaged.json", good = to_json(report());
    const auto refused = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        write_file_atomically(file, text);
        return says(error_of([&] { read_bench_report(file); }), "bench_damaged.json");
    };
    EXPECT_TRUE(refused("\"version\": 1", "\"version\": 2"));
    EXPECT_TRUE(refused("\"ranks\": 2", "\"ranks\": -2"));
    EXPECT_TRUE(refused("\"ranks\": 2", "\"ranks\": \"2\""));
    EXPECT_TRUE(refused("\"target\": \"g:base\"", "\"target\": 5"));
    EXPECT_TRUE(refused("200", "-200"));
    EXPECT_TRUE(refused("1000.0", "\"many\""));
    EXPECT_TRUE(refused("{", "[{"));
}

TEST(BenchResult, SummaryShowsTheReductionAgainstTheBaseline) {
    const std::string text = bench_summary(report());
    EXPECT_TRUE(says(text, "0.500 (0.500 to 0.500), faster"));
    EXPECT_TRUE(says(text, "25%"));  // 50 of 200 bytes: of the rank that takes most
    EXPECT_EQ(text.find("\ng:base"), std::string::npos) << "a baseline is not measured against itself\n" << text;
}

TEST(BenchResult, ComparisonNamesWhatDiffers) {
    BenchReport before = report(), after = report();
    after.environment["commit"] = "def";
    after.environment["gpu"] = "some";
    after.results[1].command += " --more";
    for (BenchRepeat& r : after.results[1].repeats)
        for (double& s : r.seconds) s *= 2;
    const std::string text = compare_text(before, after);
    for (const char* part : {"2.000 (2.000 to 2.000), slower", "1.000 (1.000 to 1.000), no difference", "commit",
                             "A: abc", "B: def", "gpu", "command of g:better"})
        EXPECT_TRUE(says(text, part));
    EXPECT_EQ(text.find("a <cpu>"), std::string::npos) << "the same on both sides\n" << text;
}

TEST(BenchResult, PageEscapesTextAndShowsFailures) {
    const std::string page = bench_page(report(), nullptr);
    EXPECT_EQ(page.find("a <cpu>"), std::string::npos);
    EXPECT_TRUE(says(page, "a &lt;cpu&gt;"));
    EXPECT_TRUE(says(page, "exit code 1: &lt;no&gt;"));
    EXPECT_TRUE(says(page, "<rect"));
}

// Efficiency is that of a rank against the fewest ranks of the same target: 1500 / 2 of 1000 is 75 %.
TEST(BenchResult, TableHasTheEfficiencyOfScaling) {
    BenchReport all;
    for (const auto& [ranks, rate] : {std::pair(1, 1000.0), {2, 1500.0}}) {
        BenchResult r = result("zero:zero1", "", {{1, 1}});
        r.ranks = ranks;
        r.repeats[0].numbers["tokens_per_second"] = rate;
        all.results.push_back(r);
    }
    const std::string text = bench_markdown(all);
    EXPECT_TRUE(says(text, "| zero:zero1 | 2 | 1500 | 750 | 75% |"));
}

}  // namespace
}  // namespace rz
