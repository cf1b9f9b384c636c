#pragma once
// Line plots as SVG: one self-contained file that any browser, and a README on a light or dark page, shows.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rz {

struct Curve {
    std::string name;
    std::vector<std::pair<double, double>> points = {};  // x ascending; a point that is not finite interrupts the line
    bool faint = false;                                  // thin and pale, for a noisy curve; below others
    bool marks = false;                                  // a dot at each point, for a sparse curve
    int colour = -1;                                     // which of the palette; -1: by position
};

struct PlotText {
    std::string title = {}, x_label = {}, y_label = {};
    std::string note = {};  // small, under the title
};

// Curves of thousands of points are thinned to what a screen can show; extremes are kept. Without a finite point the
// plot says so. With the same arguments the same bytes.
std::string plot_svg(const PlotText&, const std::vector<Curve>&);

// A curve from metrics.jsonl: the lines that have a "step" and a number under `key`, as (step, number). Where a resumed
// run logged steps again, the later lines count. A torn last line is skipped.
Curve read_curve(const std::string& metrics_jsonl, std::string_view key, std::string name);

// Running mean over about 1/50 of the points, to lay over the faint raw curve. Centred, and narrower at the steep
// beginning; at the end, where a narrow window would show noise again, it looks back only.
Curve smoothed(const Curve&, std::string name);

// The loss curve of a run: train (raw and smoothed) and validation loss against the step. Written whole or not at all.
void write_loss_plot(const std::string& path, const std::string& metrics_jsonl, const std::string& title,
                     const std::string& note);

// Text for SVG and HTML, in an element or an attribute; control characters and bytes that are not UTF-8 as \x1b.
std::string escape_markup(std::string_view text);

// An SVG text, escaped; `more`: further attributes.
std::string text_svg(double x, double y, const char* anchor, int size, const std::string& text, const char* more = "");

// At most about `count` + 1 round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high].
std::vector<double> round_ticks(double low, double high, int count);

}  // namespace rz
