#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/runtime/context.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/report/memory_timeline.h"
#include "llama/report/plot.h"
#include "test/checks.h"

namespace rz {
namespace {

int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

// Every opened element is closed, in order, and attributes are quoted.
void expect_well_formed(const std::string& svg) {
    std::vector<std::string> open;
    for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
        const size_t end = svg.find('>', at);
        ASSERT_NE(end, std::string::npos);
        const std::string tag = svg.substr(at + 1, end - at - 1);
        EXPECT_EQ(count(tag, "\"") % 2, 0) << tag;
        const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
        if (tag[0] == '/') {
            ASSERT_FALSE(open.empty());
            EXPECT_EQ("/" + open.back(), tag);
            open.pop_back();
        } else if (tag.back() != '/') {
            open.push_back(name);
        }
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Plot, TicksAreRoundAndCoverTheRange) {
    EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(round_ticks(1, 2000, 4), (std::vector<double>{0, 500, 1000, 1500, 2000}));
    EXPECT_EQ(round_ticks(-3, 3, 3), (std::vector<double>{-4, -2, 0, 2, 4}));
    for (const double scale : {1e-12, 1e-3, 0.7, 3.0, 1e9})
        for (int n = 1; n <= 10; ++n) {
            const std::vector<double> t = round_ticks(1.2 * scale, 6.1 * scale, n);
            EXPECT_LE(t.front(), 1.2 * scale * (1 + 1e-9));
            EXPECT_GE(t.back(), 6.1 * scale * (1 - 1e-9));
            EXPECT_LE(int(t.size()), n + 3);
        }
}

TEST(Plot, TheValidationLineBeginsWithItsFirstPoint) {
    const TempFolder folder;
    std::string metrics = "{\"step\":0,\"val_loss\":5.5}\n";
    for (int step = 1; step <= 300; ++step) {
        metrics += format("{\"step\":%d,\"loss\":%g}\n", step, 5.0 - step * 0.01);
        if (step % 100 == 0) metrics += format("{\"step\":%d,\"val_loss\":%g}\n", step, 5.1 - step * 0.01);
    }
    write_file_atomically(folder / "metrics.jsonl", metrics);
    write_loss_plot(folder / "loss.svg", folder / "metrics.jsonl", "title", "");
    const std::string svg = read_file(folder / "loss.svg");
    EXPECT_EQ(count(svg, "<circle"), 4);
    double x = 0, y = 0;
    ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("<circle"), "<circle cx=\"%lf\" cy=\"%lf\"", &x, &y), 2);
    EXPECT_EQ(count(svg, format("<path d=\"M%.1f %.1fL", x, y)), 1) << "the line starts at the first mark";
    EXPECT_LT(x, 75) << "step 0 is at the left";
}

TEST(Plot, ShowsEachCurveOnceAndNamesIt) {
    const Curve a{.name = "a <b> & \"c\"", .points = {{0, 1}, {1, 2}, {2, 1.5}}, .marks = true};
    const Curve b{.name = "second", .points = {{0, 2}, {2, 3}}, .faint = true};
    const std::string svg = plot_svg({"Title", "x axis", "y axis", "note"}, {a, b});
    expect_well_formed(svg);
    EXPECT_EQ(count(svg, "stroke-linejoin"), 2);
    EXPECT_EQ(count(svg, "<circle"), 3);
    for (const char* part : {"a &lt;b&gt; &amp; &quot;c&quot;", "second", ">Title<", ">x axis<", ">y axis<", ">note<"})
        EXPECT_EQ(count(svg, part) >= 1, true) << part;
    EXPECT_EQ(svg, plot_svg({"Title", "x axis", "y axis", "note"}, {a, b}));
}

// As in virtual_net's picture: eight names of up to 25 letters take more than one line.
TEST(Plot, ALegendStaysOnTheSheet) {
    std::vector<Curve> curves;
    for (int i = 0; i < 8; ++i)
        curves.push_back({.name = std::string(size_t(18 + i), 'm'), .points = {{0, 0}, {1, 1}}});
    const std::string svg = plot_svg({}, curves);
    expect_well_formed(svg);
    std::vector<std::pair<double, double>> begin_end;  // of names on the same line, from right to left
    double line = 0;
    for (size_t i = curves.size(); i-- > 0;) {
        const size_t name = svg.find(">" + curves[i].name + "<"), text = svg.rfind("<text", name);
        const double x = std::stod(svg.substr(text + 9)), y = std::stod(svg.substr(svg.find("y=\"", text) + 3));
        if (y != line) begin_end.clear(), line = y;
        EXPECT_GE(x - 24, 0) << curves[i].name;
        EXPECT_LE(x + 7.0 * double(curves[i].name.size()), begin_end.empty() ? 776.1 : begin_end.back().first);
        EXPECT_GT(y, 46) << "below the note";
        begin_end.emplace_back(x - 24, 0);
    }
}

TEST(Plot, LongTitlesShrinkAndThenEnd) {
    const auto size_of_title = [](const std::string& title) {
        const std::string svg = plot_svg({.title = title}, {{.name = "c", .points = {{0, 0}, {1, 1}}}});
        expect_well_formed(svg);
        const size_t text = svg.find("<text"), size = svg.find("font-size=\"", text) + 11;
        const size_t from = svg.find('>', text) + 1, to = svg.find('<', from);
        return std::pair(std::stoi(svg.substr(size)), svg.substr(from, to - from));
    };
    EXPECT_EQ(size_of_title("short"), std::pair(17, std::string("short")));
    for (const size_t n : {70u, 80u, 100u, 120u}) {
        const auto [size, shown] = size_of_title(std::string(n, 'm'));
        EXPECT_LT(size, 17);
        EXPECT_EQ(shown.size(), n);
        EXPECT_LE(double(n) * 0.62 * size, 722) << "from 70 to 792 pixels";
    }
    std::string greek;
    for (int i = 0; i < 200; ++i) greek += "\u03b1";
    const auto [size, shown] = size_of_title("a" + greek);
    EXPECT_EQ(size, 9);
    EXPECT_EQ(shown.substr(shown.size() - 3), "...");
    EXPECT_EQ(shown.size() % 2, 0u) << "a, whole letters of two bytes, three dots";
}

TEST(Plot, PointsLandWhereTheyBelong) {
    // x from 0 to 10 over [70, 776], y from 0 to 1 over [396, 84] pixels; the corners lie on ticks.
    const std::string svg = plot_svg({}, {{.name = "c", .points = {{0, 0}, {10, 1}}}});
    EXPECT_EQ(count(svg, "\"M70.0 396.0L776.0 84.0\""), 1) << svg;
}

TEST(Plot, NonFinitePointsInterruptTheLine) {
    const std::string svg = plot_svg({}, {{.name = "c", .points = {{0, 1}, {1, 2}, {2, NAN}, {3, 2}, {4, INFINITY}}}});
    expect_well_formed(svg);
    const size_t path = svg.find("stroke-linejoin");
    const size_t begin = svg.rfind("<path", path);
    EXPECT_EQ(count(svg.substr(begin, path - begin), "M"), 2);
}

TEST(Plot, DegenerateInputsStillDraw) {
    for (const std::vector<Curve>& curves : {std::vector<Curve>{}, std::vector<Curve>{{.name = "none"}},
                                             std::vector<Curve>{{.name = "x", .points = {{0, NAN}}}}}) {
        const std::string svg = plot_svg({}, curves);
        expect_well_formed(svg);
        EXPECT_EQ(count(svg, "nothing to plot yet"), 1);
    }
    for (const double v : {0.0, 5.0, -1e30, 1e-30})
        expect_well_formed(plot_svg({}, {{.name = "one", .points = {{v, v}}}}));
}

TEST(Plot, ThinningKeepsSpikes) {
    Curve c{.name = "c"};
    for (int i = 0; i < 100000; ++i) c.points.emplace_back(i, i == 54321 ? 9.0 : 1.0);
    const std::string svg = plot_svg({}, {c});
    EXPECT_LT(svg.size(), 100000u);
    EXPECT_TRUE(says(svg, " 115.2L")) << "9 on an axis from 0 to 10";
}

TEST(Plot, CurvesComeFromMetricsAndLaterLinesWin) {
    const TempFolder folder;
    const std::string metrics = folder / "metrics.jsonl";
    std::string text;
    for (int i = 1; i <= 5; ++i) text += format("{\"step\":%d,\"loss\":%d}\n", i, 10 * i);
    text += "{\"step\":3,\"val_loss\":7.5}\n{\"step\":4,\"loss\":1}\n{\"step\":5,\"loss\":null}\n{\"step\":6,\"lo";
    write_file_atomically(metrics, text);
    const Curve loss = read_curve(metrics, "loss", "train");
    EXPECT_EQ(loss.name, "train");
    EXPECT_EQ(loss.points, (std::vector<std::pair<double, double>>{{1, 10}, {2, 20}, {3, 30}, {4, 1}}));
    EXPECT_EQ(read_curve(metrics, "val_loss", "").points.size(), 1u);
    write_loss_plot(folder / "loss.svg", metrics, "t", "n");
    const std::string svg = read_file(folder / "loss.svg");
    expect_well_formed(svg);
    EXPECT_EQ(count(svg, "stroke-linejoin"), 2);
    EXPECT_EQ(count(svg, "<circle"), 4 + 1) << "the four losses are dots while they are few, and the validation";
    EXPECT_EQ(count(svg, ">train 1</text>"), 1) << "the last of each";
    EXPECT_EQ(count(svg, ">validation 7.5</text>"), 1);
    EXPECT_THROW(read_curve(folder / "absent", "loss", ""), Error);
}

TEST(Plot, SmoothingKeepsALineALine) {
    Curve c{.name = "c"};
    for (int i = 0; i < 1000; ++i) c.points.emplace_back(i, 3.0 * i + (i % 2 ? 1 : -1));
    const Curve s = smoothed(c, "s");
    ASSERT_EQ(s.points.size(), 1000u);
    for (int i = 20; i < 980; ++i) EXPECT_NEAR(s.points[size_t(i)].second, 3.0 * i, 1.0 / 21 + 1e-9);
    EXPECT_EQ(s.points[0], c.points[0]);
    EXPECT_NEAR(s.points[999].second, 3.0 * (999 - 5), 1.0 / 11 + 1e-9) << "the mean of the last eleven";
}

// ---- memory ---------------------------------------------------------------------------------------------------------

MemoryChange taken(double time, int64_t bytes, const char* name, MemKind kind = MemKind::gathered) {
    return {time, DeviceKind::cpu, kind, bytes, name};
}

struct Rect {
    double x, y, width, height;
};
std::vector<Rect> bars(const std::string& svg) {
    std::vector<Rect> all;
    for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
        Rect r{};
        if (std::sscanf(svg.c_str() + at, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &r.x, &r.y,
                        &r.width, &r.height) == 4 &&
            svg.compare(svg.find('>', at) + 1, 7, "<title>") == 0)
            all.push_back(r);
    }
    return all;
}

TEST(MemoryTimeline, BarsHaveTheAreaOfBytesTimesSecondsAndNoneLiesOnAnother) {
    constexpr int64_t kMiB = 1 << 20;
    std::vector<MemoryChange> changes = {taken(10, 4 * kMiB, "unit 1 <gathered>"),
                                         taken(11, 2 * kMiB, "masters", MemKind::optimizer),
                                         taken(12, -4 * kMiB, "unit 1 <gathered>"),
                                         taken(13, 1 * kMiB, "unit 2"),
                                         taken(13.5, -kMiB, "taken before the list began"),
                                         taken(14, 3 * kMiB, "unit 3"),
                                         taken(16, -2 * kMiB, "masters", MemKind::optimizer),
                                         taken(18, 6 * kMiB, "unit 4"),
                                         taken(20, -1 * kMiB, "unit 2")};
    const double area[] = {4 * 2.0, 2 * 5.0, 1 * 7.0, 3 * 6.0, 6 * 2.0};  // in MiB x seconds, in order
    const std::string svg = memory_svg("memory & time", changes, DeviceKind::cpu, 10 * kMiB);
    expect_well_formed(svg);
    const std::vector<Rect> all = bars(svg);
    ASSERT_EQ(all.size(), 5u);
    const double unit = all[0].width * all[0].height / area[0];
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_NEAR(all[i].width * all[i].height, area[i] * unit, 0.01 * area[i] * unit) << "bar " << i;
        for (size_t j = 0; j < i; ++j) {
            const double across =
                             std::min(all[i].x + all[i].width, all[j].x + all[j].width) - std::max(all[i].x, all[j].x),
                         up = std::min(all[i].y + all[i].height, all[j].y + all[j].height) -
                              std::max(all[i].y, all[j].y);
            EXPECT_TRUE(across < 0.1 || up < 0.1) << "bars " << i << " and " << j;
        }
    }
    EXPECT_EQ(all[2].y + all[2].height, all[0].y + all[0].height) << "unit 2 stands where unit 1 was";
    EXPECT_TRUE(says(svg, "unit 1 &lt;gathered&gt;: 4.00 MiB of gathered, from 0.000 s to 2.000 s"));
    EXPECT_TRUE(says(svg, "peak memory 10.0 MiB"));
    EXPECT_EQ(svg.find("taken before"), std::string::npos);
    expect_well_formed(memory_svg("none", {}, DeviceKind::cpu, 0));

    // Two steps from 15 to 19 show only what lived then, cut at both ends: masters to 16, unit 2 and 3, unit 4 from 18.
    const std::string steps =
        memory_svg("steps", changes, DeviceKind::cpu, 12 * kMiB, {{"step 7", 15}, {"step 8", 17}, {"", 19}});
    expect_well_formed(steps);
    const std::vector<Rect> cut = bars(steps);
    ASSERT_EQ(cut.size(), 4u);
    const double seconds[] = {1, 4, 4, 1};
    for (size_t i = 0; i < cut.size(); ++i)
        EXPECT_NEAR(cut[i].width, cut[1].width / 4 * seconds[i], 0.02) << "bar " << i;
    EXPECT_EQ(steps.find("gathered&gt;"), std::string::npos) << "given back before";
    EXPECT_TRUE(says(steps, ">step 8</text>"));
    EXPECT_TRUE(says(steps, "peak memory 12.0 MiB")) << "the run's, not these steps'";
}

TEST(MemoryTimeline, CountersAreTheRunningSumsAndNameWhatWasTaken) {
    const std::vector<MemoryChange> changes = {taken(1, 100, "before \"the\" trace"), taken(3, 30, "unit 1"),
                                               taken(4, -7, "taken before the list began"),
                                               taken(5, -100, "before \"the\" trace"), taken(6, -30, "unit 1")};
    const Json events = parse_json("[{}" + memory_events(changes, /*origin=*/2, /*rank=*/3, /*row=*/4) + "]", "events");
    std::vector<std::pair<double, int64_t>> counted;
    std::vector<std::string> names;
    for (const Json& e : events) {
        if (e.empty()) continue;
        EXPECT_EQ(e["pid"], 3);
        if (e["ph"] == "C") counted.emplace_back(e["ts"].get<double>(), e["args"]["gathered"].get<int64_t>());
        if (e["ph"] == "i") names.push_back(e["name"]);
    }
    using At = std::pair<double, int64_t>;
    EXPECT_EQ(counted, (std::vector<At>{{0, 100}, {1e6, 130}, {3e6, 30}, {4e6, 0}}));
    EXPECT_EQ(names, (std::vector<std::string>{"+ 30 B unit 1", "- 100 B before \"the\" trace", "- 30 B unit 1"}));
}

TEST(MemoryTimeline, ALedgerKeepsChangesOnlyWhenItIsAsked) {
    RankContext context;
    const Device device{DeviceKind::cpu, 0, &context};
    const Buffer before(device, 5, MemKind::data, "before");
    keep_changes(context.memory);
    { const Buffer ids(device, 7, MemKind::data, "ids"); }
    context.memory.add(DeviceKind::cpu, MemKind::gradients, 11);
    const std::vector<MemoryChange> kept = take_changes(context.memory);
    const Buffer after(device, 9, MemKind::data, "after");
    ASSERT_EQ(kept.size(), 3u);
    EXPECT_EQ(kept[0].bytes, 7);
    EXPECT_EQ(kept[1].bytes, -7);
    EXPECT_EQ(kept[1].name, "ids");
    EXPECT_LE(kept[0].time, kept[1].time);
    EXPECT_EQ(kept[2].name, "gradients") << "what has no name is named by its kind";
    EXPECT_TRUE(take_changes(context.memory).empty());
    EXPECT_EQ(context.memory.now(DeviceKind::cpu, MemKind::data), 14);
    EXPECT_EQ(context.memory.peak(DeviceKind::cpu, MemKind::data), 14);
}

}  // namespace
}  // namespace rz
