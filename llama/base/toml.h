#pragma once
// Small TOML files of the form  key = value  with numbers, text and lists of them, and comments.

#include <map>
#include <string>
#include <vector>

namespace rz {

struct TomlEntry {
    std::string key;
    std::vector<std::string> values;  // of a list; else one
};
// Throws naming the file if it can't be read, has a table, or is not TOML.
std::vector<TomlEntry> read_toml(const std::string& file);

// The lines  key = "text"  of a TOML text: by key the text with its escapes resolved; each stands as  key = 0  in
// `toml` afterwards. For CLI11 2.1, whose reader ends a line at a # inside quotes and keeps escapes. Throws naming
// `file` and the line.
std::map<std::string, std::string> take_strings(std::string& toml, const std::string& file);

}  // namespace rz
