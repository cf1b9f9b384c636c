#pragma once
// Architectures by name, for training from scratch. Loading never uses them: a model's own config.json is the only
// truth.

#include <span>
#include <string>
#include <string_view>

#include "llama/model/config.h"

namespace rz {

struct Preset {
    const char* name;
    ModelConfig config;  // not resolved: head_dim follows dim and heads if those are overridden
    const char* about;
    const char* published = nullptr;  // name in recipe.h; none: what --auto's rules give
};
std::span<const Preset> presets();

// Throws naming the nearest preset if there is none of this name. Override fields, then call resolve().
const Preset& find_preset(std::string_view name);

// Two lines per preset: name, parameters, shape, remark; the recommended rate and batch.
std::string preset_table();

}  // namespace rz
