#include "llama/base/toml.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

#include "kernels/runtime/check.h"

namespace rz {

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
        std::istringstream lines(text);
        for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(lines)) {
            require(item.parents.empty(), "%s: [%s] is a table; only  key = value  is known", file.c_str(),
                    item.parents.empty() ? "" : item.parents[0].c_str());
            require(!item.inputs.empty(), "%s: %s has no value", file.c_str(), item.name.c_str());
            entries.push_back({item.name, item.inputs});
        }
    } catch (const CLI::Error& error) {
        fail("%s: %s", file.c_str(), error.what());
    }
    return entries;
}

}  // namespace rz
