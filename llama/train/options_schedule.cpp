#include "llama/train/options_schedule.h"

namespace rz {

CommandTable command_table(ScheduleStudy& o) {
    CommandTable table{"schedule", "Draw, time and compare pipeline schedules", {}};
    OptionGroup g(table.rows, "Schedule");
    const auto whole = [&g](const char* flag, int& to, int min, int max, const char* help) {
        g.given_whole(flag, min, max, help, [&to](int64_t value) { to = int(value); });
    };
    whole("--pp", o.pp, 1, 1024, "Ranks of the pipeline");
    whole("--micro-batches", o.micro_batches, 1, 65536, "Micro-batches of a step [2 x pp]");
    g.text("--pp-schedule", o.schedule,
           "gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe, dualpipev, or a file of PyTorch's schedule text", "NAME");
    whole("--pp-stages-per-rank", o.stages_per_rank, 1, 64, "Stages of each rank (interleaved) [2]");
    g.text("--cost", o.cost, "Time of F, I and W of 1/pp of the model", "X,X,X");
    g.real("--comm", o.message, 0, 1e6, "Time that a tensor travels between two ranks");
    g.turn_on("--one-lane", o.one_lane, "One lane for each rank, as CUDA over MPI has, not one for each pair");
    g.turn_on("--compare", o.compare, "All schedules side by side instead of one");
    g.text("--csv", o.csv, "Write the schedule as PyTorch's text to this file; - is standard output");
    g.text("--svg", o.svg, "Write the picture as SVG to this file; - is standard output");
    whole("--columns", o.columns, 10, 10000, "Characters that the makespan is wide in the terminal [what fits]");
    return table;
}

}  // namespace rz
