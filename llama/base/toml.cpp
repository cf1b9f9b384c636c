#include "llama/base/toml.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"

namespace rz {

// The text of a basic string that begins at line[at]: JSON's strings have the same form and escapes, but \U.
static std::string basic_string(const std::string& line, size_t at, const std::string& where) {
    size_t end = at + 1;
    while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
    const size_t next = line.find_first_not_of(" \t\r", std::min(end + 1, line.size()));
    require(end < line.size() && (next == std::string::npos || line[next] == '#'),
            "%s: %s is no text in quotes; write \\\" for a quote in it", where.c_str(), line.substr(at).c_str());
    const Json text = Json::parse(line.substr(at, end + 1 - at), nullptr, false);
    require(text.is_string(), "%s: %s has an escape that is not known\n  there are \\n \\t \\r \\\" \\\\ and \\u0041",
            where.c_str(), line.substr(at, end + 1 - at).c_str());
    return text.get<std::string>();
}

std::map<std::string, std::string> take_strings(std::string& toml, const std::string& file) {
    std::map<std::string, std::string> strings;
    std::istringstream lines(toml);
    std::string rest;
    int number = 0;
    for (std::string line; std::getline(lines, line); rest += line + "\n") {
        ++number;
        const size_t first = line.find_first_not_of(" \t"), equals = line.find('=');
        if (first == std::string::npos || line[first] == '#' || equals == std::string::npos) continue;
        const size_t at = line.find_first_not_of(" \t", equals + 1);
        if (at == std::string::npos || line[at] != '"' || line.compare(at, 3, "\"\"\"") == 0) continue;
        std::string key = line.substr(first, equals - first);
        key.erase(key.find_last_not_of(" \t") + 1);
        if (key.size() > 1 && key.front() == '"' && key.back() == '"') key = key.substr(1, key.size() - 2);
        strings[key] = basic_string(line, at, file + ", line " + std::to_string(number));
        line.replace(at, std::string::npos, "0");
    }
    toml = rest;
    return strings;
}

std::vector<TomlEntry> read_toml(const std::string& file) {
    constexpr size_t kMost = 1 << 20;
    std::ifstream in(file, std::ios::binary);
    std::string text(kMost + 1, '\0');
    in.read(text.data(), std::streamsize(text.size()));
    text.resize(size_t(in.gcount()));
    require(in.eof() && !in.bad(), "%s: it can't be read%s", file.c_str(),
            text.size() > kMost ? ", or has more than 1 MiB" : "");
    std::vector<TomlEntry> entries;
    try {
        const std::map<std::string, std::string> strings = take_strings(text, file);
        std::istringstream lines(text);
        for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(lines)) {
            require(item.parents.empty(), "%s: [%s] is a table; only  key = value  is known", file.c_str(),
                    item.parents.empty() ? "" : item.parents[0].c_str());
            require(!item.inputs.empty(), "%s: %s has no value", file.c_str(), item.name.c_str());
            const auto string = strings.find(item.name);
            entries.push_back({item.name, string == strings.end() ? item.inputs : std::vector{string->second}});
        }
    } catch (const CLI::Error& error) {
        fail("%s: %s", file.c_str(), error.what());
    }
    return entries;
}

}  // namespace rz
