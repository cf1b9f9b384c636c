#include "llama/train/coordinates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/json.h"
#include "llama/base/text.h"
#include "llama/model/presets.h"
#include "llama/report/plot.h"

namespace rz {

static std::optional<std::vector<int64_t>> parse_widths(const std::string& text) {
    std::vector<int64_t> widths;
    for (const std::string& one : split(text, ',')) {
        if (!wrong_whole_number(one, 8, 1 << 20).empty()) return std::nullopt;
        widths.push_back(std::stoll(one));
        if (widths.size() > 1 && widths.back() <= widths[widths.size() - 2]) return std::nullopt;
    }
    return widths.size() > 1 ? std::optional(widths) : std::nullopt;
}

CommandTable own_command_table(CoordinatesOptions& o) {
    CommandTable table{"coordinates",
                       "Train a model for some steps at several widths, and draw the size of its activations: the "
                       "coordinate check of muP. Takes every flag of training, too",
                       {}};
    OptionGroup g(table.rows, "Coordinates");
    g.parsed("--widths", ResumeClass::no, "W,W,...", "Values of --dim, ascending; heads and ffn grow with it.",
             "must be two or more widths that ascend: 64,128,256", parse_widths,
             [&o](const auto& widths) { o.widths = widths; })
        .default_text = joined(o.widths, ",");
    return table;
}

CommandTable command_table(CoordinatesOptions& o) {
    o.train.steps = 10;
    CommandTable table = own_command_table(o);
    table.name.clear();
    table.program = "train_llama coordinates";
    table.about =
        "Draws the coordinate check of muP into --out. Example:\n"
        "  train_llama coordinates --widths 64,128,256 --data data/stdlib --mup-base-width 64 --out runs/check";
    for (OptionRow& row : command_table(o.train).rows) table.rows.push_back(std::move(row));
    return table;
}

std::vector<TrainOptions> coordinate_runs(const CoordinatesOptions& o) {
    require_request(!o.train.out.empty(), "coordinates: the runs lie in --out, which is not given: name a folder");
    require_request(o.train.init_from.empty() && !o.train.resume.asked() && o.train.steps > 0,
                    "coordinates: every width begins with weights that are drawn, and takes steps\n"
                    "  leave --init-from and --resume out");
    ModelConfig base = find_preset(o.train.preset).config;
    override_fields(o.train, base);
    std::vector<TrainOptions> runs;
    for (const int64_t width : o.widths) {
        TrainOptions run = o.train;
        const auto grown = [&](const char* flag, int64_t n) {
            require_request(n * width % base.dim == 0 && n * width >= base.dim,
                            "coordinates: --%s %ld of --dim %ld is no whole number at a width of %ld\n"
                            "  nearest: widths that are multiples of %ld",
                            flag, n, base.dim, width, base.dim);
            run.fields[flag] = n * width / base.dim;
        };
        run.fields["dim"] = width;
        run.fields["head-dim"] = base.head_dim;
        grown("heads", base.heads);
        grown("kv-heads", base.kv_heads);
        grown("ffn", base.ffn);
        run.out = o.train.out + "/width_" + std::to_string(width);
        run.overwrite = true;
        run.stats_every = 1, run.val_every = 0, run.save_every = 0;
        runs.push_back(run);
    }
    return runs;
}

namespace {

struct Coordinate {
    const char* name;
    double (*of)(const Json& blocks);
};
double number_of(const Json& block, const char* key) { return block[key].is_number() ? block[key].get<double>() : NAN; }
const Coordinate kCoordinates[] = {{"residual stream into the last block, rms",
                                    [](const Json& blocks) { return number_of(blocks.back(), "residual_rms"); }},
                                   {"largest logit of attention", [](const Json& blocks) {
                                        double most = 0;
                                        for (const Json& b : blocks)
                                            most = std::max(most, number_of(b, "largest_logit"));
                                        return most;
                                    }}};

std::vector<Json> blocks_by_step(const std::string& file) {
    std::vector<Json> steps;
    std::istringstream in(read_file(file));
    for (std::string line; std::getline(in, line);) steps.push_back(parse_json(line, file)["blocks"]);
    return steps;
}

// Slope of log y by log x, least squares.
double slope(const std::vector<std::pair<double, double>>& points) {
    double x = 0, y = 0, xx = 0, xy = 0;
    for (const auto& [a, b] : points) x += a, y += b, xx += a * a, xy += a * b;
    const double n = double(points.size());
    return (n * xy - x * y) / (n * xx - x * x);
}

}  // namespace

int draw_coordinates(const CoordinatesOptions& o) {
    const std::vector<int64_t>& widths = o.widths;
    std::vector<std::vector<Json>> runs;
    for (const TrainOptions& run : coordinate_runs(o)) runs.push_back(blocks_by_step(run.out + "/stats.jsonl"));
    const size_t steps = size_t(o.train.steps);
    std::vector<Curve> curves;
    std::printf("\n%-44s %5s", "", "step");
    for (const int64_t w : widths) std::printf(" %10ld", w);
    std::printf(" %8s\n", "slope");
    for (const Coordinate& c : kCoordinates)
        for (const size_t step : {size_t(1), (steps + 1) / 2, steps}) {
            std::printf("%-44s %5zu", c.name, step);
            std::vector<std::pair<double, double>> points;
            for (size_t w = 0; w < widths.size(); ++w) {
                require(runs[w].size() >= steps,
                        "coordinates: the run at width %ld has statistics of %zu steps, not %zu", widths[w],
                        runs[w].size(), steps);
                const double value = c.of(runs[w][step - 1]);
                std::printf(" %10.4g", value);
                points.emplace_back(std::log2(double(widths[w])), std::log2(value));
            }
            std::printf(" %8.2f\n", slope(points));
            if (&c == kCoordinates)
                curves.push_back({.name = format("step %zu", step), .points = points, .marks = true});
        }
    const std::string file = o.train.out + "/coordinates.svg";
    write_file_atomically(
        file,
        plot_svg({.title = "coordinate check",
                  .x_label = "log2 of the width",
                  .y_label = format("log2 of the %s", kCoordinates[0].name),
                  .note = o.train.mup.on() ? format("muP, base width %ld", o.train.mup.base_width) : "without muP"},
                 curves));
    std::printf("a slope of 0: the size does not depend on the width\ndrawn    %s\n", file.c_str());
    return 0;
}

}  // namespace rz
