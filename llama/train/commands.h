#pragma once
// What train_llama does besides training.

#include "llama/train/options.h"

namespace rz {

int generate_command(const Options&);
int print_config_command(const Options&);
int export_command(const Options&);

}  // namespace rz
