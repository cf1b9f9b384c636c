#pragma once
// The files of llama/configs are a part of the program, so that it has its recipes and machines wherever it is copied.

#include <string_view>
#include <vector>

namespace rz {

struct Builtin {
    std::string_view name, text;  // "1b-24g", "machines/h100-80g"
};

// Recipes by name, then machines by name.
const std::vector<Builtin>& builtins();

}  // namespace rz
