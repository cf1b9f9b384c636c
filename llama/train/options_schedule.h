#pragma once
// What `train_llama schedule` can be asked for: ScheduleStudy.

#include "llama/parallel/study.h"
#include "llama/train/option_table.h"

namespace rz {

CommandTable command_table(ScheduleStudy&);

}  // namespace rz
