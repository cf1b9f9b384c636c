#pragma once
// A simulated schedule as a picture: in the terminal, and as SVG that any browser, on a light or dark page, shows.

#include <string>

#include "llama/parallel/simulate.h"

namespace rz {

// One row for each rank, `columns` characters for the makespan. A task is its letter, small in the upper of two stages,
// and its micro-batch where there is room; idle is a dot. With `colours`, ANSI colours by kind.
std::string draw_text(const PipelineSchedule&, const PipelineRun&, int columns, bool colours);
// The letters of that picture, in a line.
std::string legend_text(const PipelineSchedule&, bool colours);

struct DrawText {
    std::string title, note;
    double ticks_per_unit = 1;  // of the time axis
};
// With the same arguments the same bytes. Messages are thin lines where there are at most 400.
std::string draw_svg(const PipelineSchedule&, const PipelineRun&, const DrawText&);

}  // namespace rz
