#include "llama/train/options_schedule.h"

#include <algorithm>
#include <sstream>

#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/text.h"

namespace rz {

static std::string wrong_schedule(const std::string& text) {
    std::vector<std::string> names;
    for (const auto& n : kNames<PipelineKind>) names.emplace_back(n.name);
    const bool known = std::find(names.begin(), names.end(), text) != names.end();
    if (text.empty() || known || is_file(text)) return "";
    return format("'%s' is neither a file nor a schedule; nearest: %s", text.c_str(),
                  nearest_name(text, names).c_str());
}

OptionRow& add_schedule_row(OptionGroup& group, ResumeClass keeps, ScheduleChoice& to, const char* help) {
    OptionRow& row =
        group.checked("--pp-schedule", keeps, "NAME|FILE", help, wrong_schedule, [&to](const std::string& text) {
            to = {};
            for (const auto& n : kNames<PipelineKind>)
                if (text == n.name) to.kind = n.value;
            if (!to.kind) to.file = text;
        });
    row.default_text = to.name();
    return row;
}

// "1,1.2,0.87": F, I and W.
static bool read_costs(const std::string& text, double (&cost)[3]) {
    std::istringstream in(text);
    char comma[3] = {};
    in >> cost[0] >> comma[0] >> cost[1] >> comma[1] >> cost[2];
    return in && comma[0] == ',' && comma[1] == ',' && !(in >> comma[2]);
}

static std::string wrong_costs(const std::string& text) {
    double cost[3];
    if (!read_costs(text, cost))
        return format("'%s' must be three numbers, of F, I and W; nearest: 1,1,1", text.c_str());
    for (const double c : cost)
        if (!(c > 0 && c <= 1e6))
            return format("%s: each must be above 0 and at most 1e6; nearest: 1,1,1", text.c_str());
    return "";
}

CommandTable command_table(ScheduleStudy& o) {
    CommandTable table{"schedule", "Draw, time and compare pipeline schedules", {}};
    OptionGroup g(table.rows, "Schedule");
    const auto whole = [&g](const char* flag, int& to, int min, int max, const char* help) {
        g.given_whole(flag, ResumeClass::no, min, max, help, [&to](int64_t value) { to = int(value); });
    };
    whole("--pp", o.pp, 1, 1024, "Number of ranks of the pipeline.");
    whole("--micro-batches", o.micro_batches, 1, 65536, "Number of micro-batches in a step. [2 x pp]");
    add_schedule_row(
        g, ResumeClass::no, o.schedule,
        "Schedule: gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe, dualpipev, or a file of PyTorch's schedule text.");
    whole("--pp-stages-per-rank", o.stages_per_rank, 1, 64, "Number of stages on each rank (interleaved). [2]");
    whole("--pp-window", o.window, 1, 65536,
          "Largest number of micro-batches in flight. [as many as the schedule has]");
    g.checked("--cost", ResumeClass::no, "X,X,X", "Times of F, I and W of 1/pp of the model.", wrong_costs,
              [&o](const std::string& text) {
                  double cost[3] = {1, 1, 1};
                  read_costs(text, cost);
                  o.forward = cost[0], o.input = cost[1], o.weight = cost[2];
              })
        .default_text = "1,1,1";
    g.real("--comm", ResumeClass::no, o.message, 0, 1e6, "Time that a tensor travels between two ranks.");
    g.on_off("--one-lane", ResumeClass::no, o.one_lane,
             "Give each rank one lane, as CUDA over MPI has, not one for each pair.");
    g.on_off("--compare", ResumeClass::no, o.compare, "Compare all schedules instead of showing one.");
    g.text("--csv", ResumeClass::no, o.csv, "File for the schedule as PyTorch's text. - is standard output.");
    g.text("--svg", ResumeClass::no, o.svg, "File for the picture as SVG. - is standard output.");
    whole("--columns", o.columns, 10, 10000, "Width of the makespan in the terminal, in characters. [what fits]");
    return table;
}

void check_given(const ScheduleStudy& o) {
    require_request(o.pp > 0 || (o.schedule.kind == std::nullopt && !o.compare),
                    "--pp is not given: how many ranks the pipeline has\n  nearest: --pp 4");
    require_request(!o.compare || (o.csv.empty() && o.svg.empty()),
                    "--compare shows all schedules; --csv and --svg write one\n  leave one out");
    require_request(o.schedule.kind || o.stages_per_rank == 0,
                    "--pp-stages-per-rank with a file, which says it itself\n  leave it out");
}

}  // namespace rz
