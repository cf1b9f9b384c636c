#pragma once
// Small TOML files of the form  key = value  with numbers, text and lists of them, and comments.

#include <string>
#include <vector>

namespace rz {

struct TomlEntry {
    std::string key;
    std::vector<std::string> values;  // of a list; else one
};
// Throws naming the file if it can't be read, has a table, or is not TOML.
std::vector<TomlEntry> read_toml(const std::string& file);

}  // namespace rz
