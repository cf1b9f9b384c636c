#include "llama/report/plot.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "kernels/runtime/check.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"

namespace rz {
namespace {

using Points = std::vector<std::pair<double, double>>;

// Pixels. The plot's inside is [kLeft, kWidth - kRight] x [kTop, kHeight - kBottom].
constexpr double kWidth = 800, kHeight = 450, kLeft = 70, kRight = 24, kTop = 84, kBottom = 54;

// Read well on white and on black; the order is that of Okabe and Ito's colours for the colour-blind, brightened.
constexpr const char* kColours[] = {"#3b82f6", "#e8710a", "#10a37f", "#c026d3", "#b58900", "#64748b"};

const char* colour_of(const std::vector<Curve>& curves, size_t i) {
    return kColours[(curves[i].colour < 0 ? i : size_t(curves[i].colour)) % std::size(kColours)];
}

struct ValueAxis {
    double low, high, from, to;  // data range, pixels
    std::vector<double> ticks;
    double operator()(double x) const { return from + (x - low) / (high - low) * (to - from); }
};

ValueAxis make_axis(double low, double high, double from, double to, int ticks) {
    if (!(low <= high)) low = 0, high = 1;
    if (low == high) low -= std::max(std::abs(low), 1.0) * 0.5, high += std::max(std::abs(high), 1.0) * 0.5;
    ValueAxis axis{low, high, from, to, round_ticks(low, high, ticks)};
    axis.low = std::min(low, axis.ticks.front());
    axis.high = std::max(high, axis.ticks.back());
    return axis;
}

// "1500", "0.25", "2.5e+06": with the digits that tell ticks `step` apart.
std::string tick_text(double value, double step) {
    if (std::abs(value) < step * 1e-6) return "0";
    if (std::abs(value) >= 1e6 || step < 1e-4) return format("%.6g", value);
    const int decimals = std::max(0, int(std::ceil(-std::log10(step) - 1e-9)));
    return format("%.*f", decimals, value);
}

// First, lowest, highest and last point of each column of pixels, in their order.
Points thinned(const Points& points, const ValueAxis& x) {
    if (points.size() < 2 * size_t(kWidth)) return points;
    Points out;
    for (size_t i = 0; i < points.size();) {
        size_t end = i, low = i, high = i;
        const double column = std::floor(x(points[i].first));
        for (; end < points.size() && std::floor(x(points[end].first)) == column; ++end) {
            if (!std::isfinite(points[end].second)) break;
            if (points[end].second < points[low].second) low = end;
            if (points[end].second > points[high].second) high = end;
        }
        if (end == i) ++end;  // a point that is not finite
        size_t keep[] = {i, low, high, end - 1};
        std::sort(std::begin(keep), std::end(keep));
        for (size_t k = 0; k < 4; ++k)
            if (k == 0 || keep[k] != keep[k - 1]) out.push_back(points[keep[k]]);
        i = end;
    }
    return out;
}

std::string curve_svg(const Curve& curve, const char* colour, const ValueAxis& x, const ValueAxis& y) {
    std::string path, dots;
    bool pen_down = false;
    for (const auto& [px, py] : thinned(curve.points, x)) {
        if (!std::isfinite(px) || !std::isfinite(py)) {
            pen_down = false;
            continue;
        }
        path += format("%s%.1f %.1f", pen_down ? "L" : "M", x(px), y(py));
        pen_down = true;
        if (curve.marks)
            dots += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.8\" fill=\"%s\"/>\n", x(px), y(py), colour);
    }
    if (path.empty()) return "";
    return format(
               "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" stroke-opacity=\"%s\" "
               "stroke-linejoin=\"round\"/>\n",
               path.c_str(), colour, curve.faint ? "1" : "2", curve.faint ? "0.4" : "1") +
           dots;
}

// A line over the plot, in smaller type where it is long. Fonts differ; 0.62 em is a wide one's bold average.
std::string heading_svg(double y, int size, const std::string& text, const char* more = "") {
    constexpr double kRoom = kWidth - kLeft - 8, kEm = 0.62;
    constexpr int kSmallest = 9;
    const auto fits = [&](int s) { return size_t(kRoom / (kEm * s)); };
    while (size > kSmallest && text.size() > fits(size)) --size;
    if (text.size() <= fits(size)) return text_svg(kLeft, y, "start", size, text, more);
    size_t end = fits(size) - 3;
    while (end > 0 && (uint8_t(text[end]) & 0xc0) == 0x80) --end;  // not inside a UTF-8 character
    return text_svg(kLeft, y, "start", size, text.substr(0, end) + "...", more);
}

std::string frame_svg(const PlotText& text, const ValueAxis& x, const ValueAxis& y) {
    const double bottom = kHeight - kBottom, right = kWidth - kRight, top = y.to;
    std::string out = heading_svg(26, 17, text.title, " class=\"strong\"");
    out += heading_svg(46, 12, text.note);
    const auto step = [](const ValueAxis& a) { return a.ticks.size() > 1 ? a.ticks[1] - a.ticks[0] : 1; };
    for (const double t : y.ticks) {
        out += format("<path d=\"M%.1f %.1fH%.1f\" class=\"grid\"/>\n", kLeft, y(t), right);
        out += text_svg(kLeft - 8, y(t) + 4, "end", 12, tick_text(t, step(y)));
    }
    for (const double t : x.ticks) {
        out += format("<path d=\"M%.1f %.1fv5\" class=\"axis\"/>\n", x(t), bottom);
        out += text_svg(x(t), bottom + 20, "middle", 12, tick_text(t, step(x)));
    }
    out += format("<path d=\"M%.1f %.1fV%.1fH%.1f\" class=\"axis\"/>\n", kLeft, top, bottom, right);
    out += text_svg((kLeft + right) / 2, kHeight - 12, "middle", 13, text.x_label);
    out += text_svg(0, 0, "middle", 13, text.y_label,
                    format(" transform=\"translate(20 %.1f) rotate(-90)\"", (top + bottom) / 2).c_str());
    return out;
}

// Right-aligned above the plot, on lines of their own: the last names on the lowest, as many as there is room for.
constexpr double kLine = 16, kSample = 24, kBetween = 18;
double legend_width(const Curve& c) { return 7.0 * double(c.name.size()) + kSample; }

std::vector<std::vector<size_t>> legend_lines(const std::vector<Curve>& curves) {
    std::vector<std::vector<size_t>> lines(1);
    double room = kWidth - kRight - 8;
    for (size_t i = curves.size(); i-- > 0;) {
        if (curves[i].name.empty()) continue;  // belongs to one that has a name
        const double width = legend_width(curves[i]);
        if (width > room && !lines.back().empty()) lines.emplace_back(), room = kWidth - kRight - 8;
        lines.back().push_back(i);
        room -= width + kBetween;
    }
    return lines;
}

std::string legend_svg(const std::vector<Curve>& curves, double top) {
    std::string out;
    double y = top - 16;
    for (const std::vector<size_t>& line : legend_lines(curves)) {
        double x = kWidth - kRight;
        for (const size_t i : line) {
            x -= legend_width(curves[i]);
            out += text_svg(x + kSample, y, "start", 12, curves[i].name);
            out += format("<path d=\"M%.1f %.1fh18\" stroke=\"%s\" stroke-width=\"%s\" stroke-opacity=\"%s\"/>\n", x,
                          y - 4, colour_of(curves, i), curves[i].faint ? "1.5" : "3", curves[i].faint ? "0.5" : "1");
            x -= kBetween;
        }
        y -= kLine;
    }
    return out;
}

}  // namespace

std::string escape_markup(std::string_view text) {
    std::string out;
    for (const char c : printable(text))
        out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
    return out;
}

std::string text_svg(double x, double y, const char* anchor, int size, const std::string& text, const char* more) {
    return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\"%s>%s</text>\n", x, y, anchor, size,
                  more, escape_markup(text).c_str());
}

std::vector<double> round_ticks(double low, double high, int count) {
    const double rough = (high - low) / count;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double s : {5.0, 2.0, 1.0})
        if (s * power >= rough * (1 - 1e-9)) step = s * power;
    std::vector<double> ticks;
    const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
    for (double i = first; i <= last; ++i) ticks.push_back(i * step);
    return ticks;
}

std::string plot_svg(const PlotText& text, const std::vector<Curve>& curves) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    double low_x = kInfinity, high_x = -kInfinity, low_y = kInfinity, high_y = -kInfinity;
    for (const Curve& c : curves)
        for (const auto& [px, py] : c.points)
            if (std::isfinite(px) && std::isfinite(py)) {
                low_x = std::min(low_x, px), high_x = std::max(high_x, px);
                low_y = std::min(low_y, py), high_y = std::max(high_y, py);
            }
    const bool empty = low_x > high_x;
    const ValueAxis x = make_axis(low_x, high_x, kLeft, kWidth - kRight, 8);
    const double top = kTop + kLine * double(legend_lines(curves).size() - 1);
    const ValueAxis y = make_axis(low_y, high_y, kHeight - kBottom, top, 6);
    std::string out = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
        "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n"
        "<title>%s</title>\n"
        "<style>text{fill:#75797f}.strong{font-weight:600}.axis{fill:none;stroke:#85898f}"
        ".grid{fill:none;stroke:#85898f;stroke-opacity:.25}</style>\n",
        kWidth, kHeight, kWidth, kHeight, escape_markup(text.title).c_str());
    out += frame_svg(text, x, y) + legend_svg(curves, top);
    for (const bool faint : {true, false})
        for (size_t i = 0; i < curves.size(); ++i)
            if (curves[i].faint == faint) out += curve_svg(curves[i], colour_of(curves, i), x, y);
    if (empty) out += text_svg(kWidth / 2, kHeight / 2, "middle", 14, "nothing to plot yet");
    return out + "</svg>\n";
}

Curve read_curve(const std::string& metrics_jsonl, std::string_view key, std::string name) {
    Curve curve;
    curve.name = std::move(name);
    std::ifstream file(metrics_jsonl);
    require(file.good(), "%s: cannot be opened", metrics_jsonl.c_str());
    for (std::string line; std::getline(file, line);) {
        const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!json.is_object()) continue;
        const Json *step = json_find(json, "step"), *value = json_find(json, std::string(key).c_str());
        if (step == nullptr || value == nullptr || !step->is_number() || !value->is_number()) continue;
        const double x = step->get<double>();
        while (!curve.points.empty() && curve.points.back().first >= x) curve.points.pop_back();
        curve.points.emplace_back(x, value->get<double>());
    }
    return curve;
}

Curve smoothed(const Curve& curve, std::string name) {
    Curve out;
    out.name = std::move(name);
    const auto n = int64_t(curve.points.size());
    const int64_t half = n / 100;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t first = i - std::min(half, i), last = std::min(i + std::min(half, i), n - 1);
        double sum = 0;
        for (int64_t j = first; j <= last; ++j) sum += curve.points[size_t(j)].second;
        out.points.emplace_back(curve.points[size_t(i)].first, sum / double(last - first + 1));
    }
    return out;
}

void write_loss_plot(const std::string& path, const std::string& metrics_jsonl, const std::string& title,
                     const std::string& note) {
    constexpr int kTrain = 0, kValidation = 1;  // colours
    Curve train = read_curve(metrics_jsonl, "loss", "train");
    Curve validation = read_curve(metrics_jsonl, "val_loss", "validation");
    train.colour = kTrain;
    validation.colour = kValidation;
    train.marks = train.points.size() <= 5;  // a line of few steps, or of one, is hardly seen
    validation.marks = validation.points.size() <= 60;
    for (Curve* c : {&train, &validation})
        if (!c->points.empty()) c->name += format(" %.4g", c->points.back().second);
    std::vector<Curve> curves = {train, validation};
    if (train.points.size() >= 200) {
        Curve each = std::move(train);
        curves[0] = smoothed(each, each.name);
        curves[0].colour = kTrain;
        each.name = "each step";
        each.faint = true;
        curves.push_back(std::move(each));
    }
    std::erase_if(curves, [](const Curve& c) { return c.points.empty(); });
    write_file_atomically(path, plot_svg({title, "step", "loss (nats per token)", note}, curves));
}

}  // namespace rz
