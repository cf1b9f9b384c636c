#pragma once
// Options of `train_llama schedule`: ScheduleStudy.

#include "llama/parallel/schedule_command.h"
#include "llama/train/option_table.h"

namespace rz {

CommandTable command_table(ScheduleStudy&);
// Throws on flags that contradict each other, and on what is missing.
void check_given(const ScheduleStudy&);

// The row of --pp-schedule, which training has too.
OptionRow& add_schedule_row(OptionGroup&, ResumeClass, ScheduleChoice&, const char* help);

}  // namespace rz
