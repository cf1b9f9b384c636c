#include "llama/train/options_schedule.h"

namespace rz {

CommandTable command_table(ScheduleStudy& o) {
    CommandTable table{"schedule", "Draw, time and compare pipeline schedules", {}};
    OptionGroup g(table.rows, "Schedule");
    const auto whole = [&g](const char* flag, int& to, int min, int max, const char* help) {
        g.given_whole(flag, min, max, help, [&to](int64_t value) { to = int(value); });
    };
    whole("--pp", o.pp, 1, 1024, "Number of ranks of the pipeline.");
    whole("--micro-batches", o.micro_batches, 1, 65536, "Number of micro-batches in a step. [2 x pp]");
    g.text(
        "--pp-schedule", o.schedule,
        "Schedule: gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe, dualpipev, or a file of PyTorch's schedule text.",
        "NAME");
    whole("--pp-stages-per-rank", o.stages_per_rank, 1, 64, "Number of stages on each rank (interleaved). [2]");
    whole("--pp-window", o.window, 1, 65536,
          "Largest number of micro-batches in flight. [as many as the schedule has]");
    g.text("--cost", o.cost, "Times of F, I and W of 1/pp of the model.", "X,X,X");
    g.real("--comm", o.message, 0, 1e6, "Time that a tensor travels between two ranks.");
    g.turn_on("--one-lane", o.one_lane, "Give each rank one lane, as CUDA over MPI has, not one for each pair.");
    g.turn_on("--compare", o.compare, "Compare all schedules instead of showing one.");
    g.text("--csv", o.csv, "File for the schedule as PyTorch's text. - is standard output.");
    g.text("--svg", o.svg, "File for the picture as SVG. - is standard output.");
    whole("--columns", o.columns, 10, 10000, "Width of the makespan in the terminal, in characters. [what fits]");
    return table;
}

}  // namespace rz
