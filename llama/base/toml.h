#pragma once
// Reads the part of TOML 1.0 that settings need:  key = value  below headings of one word. A value is a text in quotes,
// a whole or real number, true or false, or a list of those. Everything else (tables, dates, dotted keys, lists in
// lists, texts of several lines) is refused by its line, so that nothing in a file is dropped.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rz {

struct TomlEntry {
    enum class Kind { text, number, boolean, list };
    std::string heading, key;
    Kind kind = Kind::text;
    std::vector<std::string> values;  // one, or the list's: texts without quotes and escapes, numbers in decimal
    int line = 0;
};

// Throws "FILE, line N: why" on what it does not read, on a heading that is not among `headings`, and on a heading or a
// key that is there twice.
std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& file,
                                  std::span<const char* const> headings = {});
// The same of a regular file of at most 1 MiB.
std::vector<TomlEntry> read_toml(const std::string& file, std::span<const char* const> headings = {});

}  // namespace rz
