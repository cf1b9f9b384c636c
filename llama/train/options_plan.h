#pragma once
// Options of `train_llama plan`: the machine and its number, and every flag of training.

#include "llama/train/options_train.h"

namespace rz {

struct PlanOptions {
    TrainOptions train;
    int64_t gpus = 0;
    std::string machine;  // name or file
    int64_t tokens = 0;   // of the whole run; 0: those of --days, or of --steps
    double days = 0;      // that the run may take; 0: not given
    double host_gib =
        0;             // memory of a host; 0: this machine's where its card is the one that is planned, else the file's
    std::string json;  // file for the plan as JSON; "-": standard output, without the text
    bool search = false;
    std::string write_config;  // file for what --search found
};

// The flags of the plan itself, then those of training.
CommandTable command_table(PlanOptions&);
// The plan's own alone, for the list of commands.
CommandTable own_command_table(PlanOptions&);

}  // namespace rz
