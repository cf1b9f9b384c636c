#include "llama/parallel/draw.h"

#include <algorithm>
#include <cmath>

#include "kernels/runtime/check.h"

namespace rz {
namespace {

// One task of a cell; a fused cell is its two tasks side by side, as long as they cost.
struct Piece {
    Task task;
    double start, end;  // in ticks
};

std::vector<Piece> pieces_of(const Cell& cell, const PipelineRun::Span& span) {
    if (!cell.with) return {{cell.a, double(span.start), double(span.end)}};
    return {{cell.a, double(span.start), double(span.cut)}, {*cell.with, double(span.cut), double(span.end)}};
}

bool upper_stage(const PipelineSchedule& s, const Task& t, int rank) {
    const std::vector<int> held = s.stages_of(rank);
    return held.size() > 1 && t.stage >= held[held.size() / 2];
}

struct Look {
    const char *fill, *terminal, *name;
};

// By op. The colours of plot.cpp, which read well on white and on black, and as near as a terminal has them.
constexpr Look kLooks[] = {{"#3b82f6", "\x1b[44;97m", "forward"},
                           {"#10a37f", "\x1b[42;30m", "input gradient"},
                           {"#e8a10a", "\x1b[43;30m", "weight gradient"},
                           {"#c026d3", "\x1b[45;97m", "backward"}};
const Look& look_of(Op op) { return kLooks[size_t(op)]; }

constexpr Op kOps[] = {Op::F, Op::I, Op::W, Op::B};

bool uses(const PipelineSchedule& s, Op op) {
    for (int r = 0; r < s.ranks; ++r)
        for (const Cell& c : s.order[size_t(r)])
            if (c.a.op == op || (c.with && c.with->op == op)) return true;
    return false;
}

bool has_two_stages(const PipelineSchedule& s) {
    for (int r = 0; r < s.ranks; ++r)
        if (s.stages_of(r).size() > 1) return true;
    return false;
}

}  // namespace

std::string draw_text(const PipelineSchedule& s, const PipelineRun& run, int columns, bool colours) {
    require(columns >= 10, "a picture of %d columns: it needs at least 10", columns);
    const double scale = run.makespan > 0 ? double(columns) / double(run.makespan) : 1;
    std::string out;
    for (int r = 0; r < s.ranks; ++r) {
        std::string row = format("%4d ", r);
        int at = 0;
        for (size_t i = 0; i < s.order[size_t(r)].size(); ++i)
            for (const Piece& p : pieces_of(s.order[size_t(r)][i], run.spans[size_t(r)][i])) {
                const int from = int(std::lround(p.start * scale)), to = int(std::lround(p.end * scale));
                row.append(size_t(std::max(0, from - at)), '.');
                at = std::max(at, from);
                if (to <= at) continue;
                std::string label = text_of(p.task.op);
                if (upper_stage(s, p.task, r)) label[0] = char(label[0] - 'A' + 'a');
                const std::string number = std::to_string(p.task.micro_batch);
                const size_t room = size_t(to - at);
                if (label.size() + number.size() <= room) label += number;
                label.resize(room, ' ');
                row += colours ? look_of(p.task.op).terminal + label + "\x1b[0m" : label;
                at = to;
            }
        row.append(size_t(std::max(0, columns - at)), '.');
        out += row + "\n";
    }
    return out;
}

std::string legend_text(const PipelineSchedule& s, bool colours) {
    std::string out = "     ";
    for (const Op op : kOps)
        if (uses(s, op))
            out += (colours ? look_of(op).terminal + text_of(op) + "\x1b[0m" : text_of(op)) + " " + look_of(op).name +
                   "   ";
    if (has_two_stages(s)) out += "small letter: the rank's upper stages   ";
    return out + "number: micro-batch   .: idle\n";
}

namespace {

constexpr double kWidth = 1200, kLeft = 56, kRight = 16, kTop = 76, kRow = 34, kGap = 8, kBottom = 60;

std::string svg_text(double x, double y, const char* anchor, int size, const std::string& text, const char* fill) {
    std::string safe;
    for (const char c : text) safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
    return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\">%s</text>\n", x, y,
                  anchor, size, fill, safe.c_str());
}

// Round steps of the axis: about ten of them.
double axis_step(double length) {
    const double rough = std::max(length, 1e-9) / 10, base = std::pow(10, std::floor(std::log10(rough)));
    for (const double m : {1.0, 2.0, 5.0})
        if (m * base >= rough) return m * base;
    return 10 * base;
}

class Svg {
   public:
    Svg(const PipelineSchedule& s, const PipelineRun& run, const DrawText& text)
        : s_(s), run_(run), text_(text), bottom_(kTop + s.ranks * (kRow + kGap)) {}

    std::string draw() {
        const double height = bottom_ + kBottom;
        out_ =
            format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\">\n",
                   kWidth, height);
        out_ += svg_text(kLeft, 26, "start", 18, text_.title, kInk);
        out_ += svg_text(kLeft, 46, "start", 12, text_.note, kInk);
        legend();
        axis();
        for (int r = 0; r < s_.ranks; ++r) rank(r);
        if (run_.messages.size() <= 400) messages();
        return out_ + "</svg>\n";
    }

   private:
    static constexpr const char* kInk = "#7a7f87";

    double x(double tick) const {
        return kLeft + tick / double(std::max<int64_t>(1, run_.makespan)) * (kWidth - kLeft - kRight);
    }
    double y(int rank) const { return kTop + rank * (kRow + kGap); }

    void legend() {
        double at = kLeft;
        for (const Op op : kOps) {
            if (!uses(s_, op)) continue;
            const Look& look = look_of(op);
            out_ +=
                format("<rect x=\"%.1f\" y=\"56\" width=\"11\" height=\"11\" rx=\"2\" fill=\"%s\"/>\n", at, look.fill);
            out_ += svg_text(at + 16, 66, "start", 12, look.name, kInk);
            at += 34 + 7.0 * double(std::string(look.name).size());
        }
        if (has_two_stages(s_)) out_ += svg_text(at, 66, "start", 12, "paler: the rank's upper stages", kInk);
    }

    void axis() {
        const double units = double(run_.makespan) / text_.ticks_per_unit, step = axis_step(units);
        for (int i = 0; i * step <= units * (1 + 1e-12); ++i) {
            const double at = x(i * step * text_.ticks_per_unit);
            out_ += format(
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-opacity=\"0.25\"/>\n", at,
                kTop - 4, at, bottom_, kInk);
            out_ += svg_text(at, bottom_ + 16, "middle", 11, format("%g", i * step), kInk);
        }
        out_ += svg_text((kLeft + kWidth - kRight) / 2, bottom_ + 36, "middle", 12,
                         "time, in forwards of 1/P of the model", kInk);
    }

    void rank(int r) {
        out_ += svg_text(kLeft - 8, y(r) + kRow / 2 + 4, "end", 12, format("rank %d", r), kInk);
        for (size_t i = 0; i < s_.order[size_t(r)].size(); ++i)
            for (const Piece& p : pieces_of(s_.order[size_t(r)][i], run_.spans[size_t(r)][i])) task(p, r);
    }

    void task(const Piece& p, int r) {
        const double from = x(p.start), width = std::max(0.5, x(p.end) - from);
        out_ += format(
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" rx=\"2\" fill=\"%s\" fill-opacity=\"%s\""
            " stroke=\"%s\" stroke-width=\"0.5\"><title>%s</title></rect>\n",
            from, y(r), width, kRow, look_of(p.task.op).fill, upper_stage(s_, p.task, r) ? "0.55" : "1", kInk,
            text_of(p.task).c_str());
        const std::string number = std::to_string(p.task.micro_batch);
        if (width > 6.5 * double(number.size()))
            out_ += svg_text(from + width / 2, y(r) + kRow / 2 + 4, "middle", 11, number, "#ffffff");
    }

    void messages() {
        for (const auto& m : run_.messages) {
            const bool down = m.to > m.from;
            const double y1 = y(m.from) + (down ? kRow : 0), y2 = y(m.to) + (down ? 0 : kRow);
            out_ += format(
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-opacity=\"0.8\""
                " stroke-width=\"1\"/>\n",
                x(double(m.sent)), y1, x(double(m.arrived)), y2, kInk);
        }
    }

    const PipelineSchedule& s_;
    const PipelineRun& run_;
    const DrawText& text_;
    double bottom_;
    std::string out_;
};

}  // namespace

std::string draw_svg(const PipelineSchedule& s, const PipelineRun& run, const DrawText& text) {
    return Svg(s, run, text).draw();
}

}  // namespace rz
