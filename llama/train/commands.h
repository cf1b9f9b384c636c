#pragma once
// The commands of train_llama besides training.

#include "comm/process.h"
#include "llama/train/options.h"

namespace rz {

int generate_command(const GenerateOptions&);
int print_config_command(const TrainOptions&);
int export_command(const ExportOptions&);
int average_command(const AverageOptions&);
int eval_command(const EvalOptions&, Process&);  // collective

}  // namespace rz
