#pragma once
// The command line: which command, and its options.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "llama/train/coordinates.h"
#include "llama/train/options_eval.h"
#include "llama/train/options_export.h"
#include "llama/train/options_generate.h"
#include "llama/train/options_plan.h"
#include "llama/train/options_schedule.h"
#include "llama/train/options_train.h"

namespace rz {

using Command = std::variant<TrainOptions, GenerateOptions, EvalOptions, ExportOptions, AverageOptions, ScheduleStudy,
                             PlanOptions, CoordinatesOptions>;

// Parses, checks each value by itself and what was given together. On --help, --presets or an error prints and returns
// the exit code: 0 or 2.
std::optional<int> parse_command_line(const std::vector<std::string>& arguments, Command&);

}  // namespace rz
