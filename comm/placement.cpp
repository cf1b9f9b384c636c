#include "comm/placement.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "comm/host.h"
#include "kernels/runtime/check.h"

namespace rz {

static std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::string host_id(const std::string& proc) {
    const std::string id = first_line(proc + "/sys/kernel/random/boot_id");
    return id.empty() ? host_name() : id;
}

std::vector<int> assign_gpus(const std::vector<std::vector<std::string>>& visible) {
    const int ranks = int(visible.size());
    std::vector<int> chosen(visible.size(), -1);
    std::map<std::string, int> user;  // of each GPU
    const auto seen_from = [&](int rank, int i) {
        return int((size_t(rank) + size_t(i)) % visible[size_t(rank)].size());
    };
    // Gives the rank a GPU, moving others to another of theirs where that is needed.
    const std::function<bool(int, std::map<std::string, bool>&)> place = [&](int rank,
                                                                             std::map<std::string, bool>& tried) {
        for (int i = 0; i < int(visible[size_t(rank)].size()); ++i) {
            const int index = seen_from(rank, i);
            const std::string& gpu = visible[size_t(rank)][size_t(index)];
            if (tried[gpu]) continue;
            tried[gpu] = true;
            if (const auto it = user.find(gpu); it != user.end() && !place(it->second, tried)) continue;
            user[gpu] = rank;
            chosen[size_t(rank)] = index;
            return true;
        }
        return false;
    };
    std::vector<int> left;
    for (int r = 0; r < ranks; ++r)
        if (std::map<std::string, bool> tried; !place(r, tried)) left.push_back(r);
    std::map<std::string, int> users;
    for (const auto& [gpu, rank] : user) users[gpu] = 1;
    for (const int r : left) {
        if (visible[size_t(r)].empty()) continue;
        int best = seen_from(r, 0);
        for (int i = 1; i < int(visible[size_t(r)].size()); ++i)
            if (const int index = seen_from(r, i);
                users[visible[size_t(r)][size_t(index)]] < users[visible[size_t(r)][size_t(best)]])
                best = index;
        ++users[visible[size_t(r)][size_t(best)]];
        chosen[size_t(r)] = best;
    }
    return chosen;
}

std::vector<int> parse_cpu_list(const std::string& text) {
    std::vector<int> cores;
    size_t at = 0;
    const auto number = [&] {
        int value = 0, digits = 0;
        for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at, ++digits)
            if (digits < 6) value = 10 * value + (text[at] - '0');
        return digits > 0 && digits <= 6 ? value : -1;
    };
    while (at < text.size()) {
        const int first = number();
        int last = first;
        if (at < text.size() && text[at] == '-') ++at, last = number();
        if (first < 0 || last < first || last >= CPU_SETSIZE) return {};
        for (int core = first; core <= last; ++core) cores.push_back(core);
        if (at < text.size() && text[at++] != ',') return {};
    }
    return cores;
}

std::vector<int> cores_near(const std::string& bus_id, const std::string& sys) {
    std::string id = bus_id;  // CUDA writes 00000000:1B:00.0, the kernel 0000:1b:00.0
    std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    if (const size_t colon = id.find(':'); colon != std::string::npos && colon > 4) id = id.substr(colon - 4);
    const std::string node = first_line(sys + "/bus/pci/devices/" + id + "/numa_node");
    if (node.empty() || node[0] == '-') return {};
    const std::string nodes = first_line(sys + "/devices/system/node/online");
    if (nodes.empty() || nodes == "0") return {};
    return parse_cpu_list(first_line(sys + "/devices/system/node/node" + node + "/cpulist"));
}

std::string too_few_cores(int cores, int machine_cores, int local_ranks, bool gpu, bool slurm) {
    // With a GPU: the main thread, which launches; the watchdog and its guard; NCCL's proxy; the reader of data and the
    // writer of checkpoints.
    const int wanted = gpu ? 4 : 1;
    const int fair = std::max(1, machine_cores / std::max(1, local_ranks));
    if (cores >= wanted || cores >= fair) return "";
    return format("a rank may run on %d of %d cores%s: launches and communication wait for each other\n  %s", cores,
                  machine_cores, gpu ? ", which its main thread, watchdog, data reader and NCCL's proxies share" : "",
                  slurm ? format("srun --cpus-per-task=%d, or --cpu-bind=none", fair).c_str()
                        : "mpirun -bind-to none, or a wider taskset");
}

std::vector<int> allowed_cores() {
    cpu_set_t set;
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    return cores;
}

bool stay_on(const std::vector<int>& cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(core, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace rz
