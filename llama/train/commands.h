#pragma once
// The commands of train_llama besides training.

#include "comm/process.h"
#include "llama/train/options.h"

namespace rz {

// Refuses types that the device lacks, loads its kernels and tunes its products; `tells`: with notes, `note` the first.
void prepare_device(const ModelUse&, Device, std::string note, bool tells);
int generate_command(const GenerateOptions&);
int print_config_command(const TrainOptions&);
int export_command(const ExportOptions&);
int average_command(const AverageOptions&);
int eval_command(const EvalOptions&, Process&);  // collective

}  // namespace rz
