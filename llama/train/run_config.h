#pragma once
// config.toml at the root of a run's folder: what the run is. Every flag as it was resolved, those that were given or
// differ from the default as keys, the others as comments, so that --config reads it again; and in comments the commit,
// the command, the host, the ranks, the data.

#include <string>

#include "llama/train/trainer.h"

namespace rz {

std::string run_config(const Trainer&);
// A flag's value as a --config file has it.
std::string toml_value(const std::string& value, bool is_switch);
// As a shell would read it.
std::string command_text(const std::vector<std::string>& arguments);

// A command of the user's: it may hold a token, so that no record of the run shows it.
bool may_hold_secrets(const std::string& flag);  // "after-save"

}  // namespace rz
