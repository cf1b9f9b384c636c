#pragma once
// What several tools need: main(), flags that are put together, a median.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace rz {

// main() of a tool: what `run` throws is said under the tool's name, and ends it with the code `failed`.
inline int run_tool(const char* name, int (*run)(int, char**), int argc, char** argv, int failed = 1) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", name, error.what());
        return failed;
    }
}

// A flag may be given once: of `base` goes what stands again in `more`.
inline std::vector<std::string> joined_flags(const std::vector<std::string>& base,
                                             const std::vector<std::string>& more) {
    std::vector<std::string> all;
    for (size_t i = 0; i < base.size(); ++i) {
        const bool again = base[i].starts_with("--") && std::find(more.begin(), more.end(), base[i]) != more.end();
        if (!again)
            all.push_back(base[i]);
        else if (i + 1 < base.size() && !base[i + 1].starts_with("--"))
            ++i;
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

// The upper of the two in the middle, where there are two; 0 of none
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::nth_element(values.begin(), values.begin() + int64_t(values.size() / 2), values.end());
    return values[values.size() / 2];
}

}  // namespace rz
