#include "kernels/runtime/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace rz {

// The number after `key` at the start of a line; -1 if there is none.
static int64_t field(const std::string& path, const char* key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        if (line.rfind(key, 0) == 0) return std::strtoll(line.c_str() + std::strlen(key), nullptr, 10);
    return -1;
}

// A file of one number; -1 if it can't be read or says "max".
static int64_t number_in(const std::string& path) {
    std::ifstream file(path);
    int64_t value = -1;
    return file >> value ? value : -1;
}

// Rest of one group: its limit less its use, without file cache. INT64_MAX if it sets no limit.
static int64_t left_by(const std::string& folder, const char* limit_name, const char* use_name, const char* cache_key) {
    const int64_t limit = number_in(folder + "/" + limit_name), use = number_in(folder + "/" + use_name);
    if (limit < 0 || use < 0 || limit > int64_t(1) << 60) return INT64_MAX;
    return std::max<int64_t>(0, limit - use + std::max<int64_t>(0, field(folder + "/memory.stat", cache_key)));
}

int64_t available_host_memory(const std::string& proc, const std::string& cgroup) {
    int64_t available = INT64_MAX;
    if (const int64_t kib = field(proc + "/meminfo", "MemAvailable:"); kib >= 0) available = kib * 1024;
    // Lines of the form 0::/path (version 2) and 7:memory:/path (version 1); a limit may stand at any level above.
    std::ifstream groups(proc + "/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool two = controllers.empty();
        if (!two && controllers != "memory") continue;
        const std::string root = two ? cgroup : cgroup + "/memory";
        for (std::string path = line.substr(second + 1);;) {
            if (path == "/") path.clear();
            available = std::min(available, two ? left_by(root + path, "memory.max", "memory.current", "inactive_file ")
                                                : left_by(root + path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                                          "total_inactive_file "));
            if (path.empty()) break;
            path.resize(std::min(path.size(), path.rfind('/')));
        }
    }
    return available;
}

int64_t resident_host_memory(const std::string& proc) {
    std::ifstream file(proc + "/self/statm");
    int64_t total = 0, resident = 0;
    return file >> total >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace rz
