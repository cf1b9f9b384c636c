#include "llama/base/machine.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "kernels/runtime/request.h"
#include "llama/base/atomic_file.h"
#include "llama/base/builtin.h"
#include "llama/base/text.h"
#include "llama/base/toml.h"

namespace rz {

namespace fs = std::filesystem;

namespace {

struct Number {
    const char* key;
    double Machine::*to;
    double min, max;
    bool required = false;
};
constexpr double kMost = 1e9;
const Number kNumbers[] = {
    {"compute-capability", &Machine::compute_capability, 7.5, 99},
    {"multiprocessors", &Machine::multiprocessors, 0, kMost},
    {"memory-gib", &Machine::memory_gib, 1e-3, kMost, true},
    {"outside-min-mib", &Machine::outside_min_mib, 0, kMost},
    {"outside-max-mib", &Machine::outside_max_mib, 0, kMost},
    {"nccl-version", &Machine::nccl_version, 2.18, 2.99},
    {"nccl-buffer-mib", &Machine::nccl_buffer_mib, 1, 1 << 10},
    {"peak-bf16-tflops", &Machine::peak_bf16, 0, kMost},
    {"peak-fp32-tflops", &Machine::peak_fp32, 0, kMost},
    {"peak-fp8-tflops", &Machine::peak_fp8, 0, kMost},
    {"gemm-bf16-tflops", &Machine::gemm_bf16, 1e-6, kMost, true},
    {"gemm-fp32-tflops", &Machine::gemm_fp32, 1e-6, kMost, true},
    {"gemm-fp8-tflops", &Machine::gemm_fp8, 0, kMost},
    {"attention-fp32-share", &Machine::attention_fp32_share, 1e-6, 10},
    {"memory-gbs", &Machine::memory_gbs, 1e-6, kMost, true},
    {"op-us", &Machine::op_us, 0, kMost},
    {"host-gbs", &Machine::host_gbs, 1e-6, kMost},
    {"host-memory-gbs", &Machine::host_memory_gbs, 1e-6, kMost},
    {"host-memory-gib", &Machine::host_memory_gib, 0, kMost},
    {"link-gbs", &Machine::link_gbs, 1e-6, kMost, true},
    {"link-us", &Machine::link_us, 0, kMost},
    {"card-gbs", &Machine::card_gbs, 1e-6, kMost, true},
    {"card-us", &Machine::card_us, 0, kMost},
    {"link-channel-gbs", &Machine::link_channel_gbs, 0, kMost},
    {"card-channel-gbs", &Machine::card_channel_gbs, 0, kMost},
    {"link-message-us", &Machine::link_message_us, 0, kMost},
    {"card-message-us", &Machine::card_message_us, 0, kMost},
    {"group-gap-us", &Machine::group_gap_us, 0, kMost},
    {"sum-gap-us", &Machine::sum_gap_us, 0, kMost},
};
struct Whole {
    const char* key;
    int64_t Machine::*to;
    double max;
};
const Whole kWholes[] = {{"ranks-per-node", &Machine::ranks_per_node, 1 << 20},
                         {"cards", &Machine::cards, 1 << 20},
                         {"link-channels", &Machine::link_channels, 64},
                         {"card-channels", &Machine::card_channels, 64}};
struct Rates {
    const char* key;
    std::vector<double> Machine::*to;
};
const Rates kRates[] = {{"attention-forward-128-tflops", &Machine::attention_forward_128},
                        {"attention-backward-128-tflops", &Machine::attention_backward_128},
                        {"attention-forward-64-tflops", &Machine::attention_forward_64},
                        {"attention-backward-64-tflops", &Machine::attention_backward_64}};

double number(const std::string& file, const TomlEntry& e, const std::string& text, double min, double max) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    require(!text.empty() && *end == '\0' && std::isfinite(value) && value >= min && value <= max,
            "%s: %s = %s: it must be a number from %g to %g", file.c_str(), e.key.c_str(), text.c_str(), min, max);
    return value;
}

const std::string& only(const std::string& file, const TomlEntry& e) {
    require(e.values.size() == 1, "%s: %s has %zu values, and takes one", file.c_str(), e.key.c_str(), e.values.size());
    return e.values[0];
}

// Takes the entry; false: the key is not one of a machine's.
bool take(Machine& m, const std::string& file, const TomlEntry& e) {
    for (const Number& n : kNumbers)
        if (e.key == n.key) return m.*n.to = number(file, e, only(file, e), n.min, n.max), true;
    for (const Whole& w : kWholes)
        if (e.key == w.key) {
            const double value = number(file, e, only(file, e), 1, w.max);
            require(value == std::floor(value), "%s: %s = %g: it must be whole", file.c_str(), e.key.c_str(), value);
            return m.*w.to = int64_t(value), true;
        }
    for (const Rates& r : kRates)
        if (e.key == r.key) {
            require(e.values.size() == 4, "%s: %s has %zu values: it needs 4, for T = 1024, 2048, 4096 and 8192",
                    file.c_str(), e.key.c_str(), e.values.size());
            for (const std::string& text : e.values) (m.*r.to).push_back(number(file, e, text, 1e-6, kMost));
            return true;
        }
    if (e.key == "about") return m.about = only(file, e), true;
    if (e.key == "match") return m.match = only(file, e), true;
    if (e.key == "link") {
        const std::string& link = only(file, e);
        require(link == "nvlink" || link == "pcie", "%s: link = %s: it must be nvlink or pcie", file.c_str(),
                link.c_str());
        return m.nvlink = link == "nvlink", true;
    }
    if (e.key != "kind") return false;
    const std::string& kind = only(file, e);
    require(kind == "gpu" || kind == "cpu", "%s: kind = %s: it must be gpu or cpu", file.c_str(), kind.c_str());
    m.cpu = kind == "cpu";
    return true;
}

std::vector<std::string> keys() {
    std::vector<std::string> all = {"about", "match", "kind", "link"};
    for (const Number& n : kNumbers) all.emplace_back(n.key);
    for (const Whole& w : kWholes) all.emplace_back(w.key);
    for (const Rates& r : kRates) all.emplace_back(r.key);
    return all;
}

Machine read_machine(const std::string& file, const std::vector<TomlEntry>& entries) {
    Machine m;
    m.file = file;
    m.name = fs::path(file).stem().string();
    std::set<std::string> found;
    for (const TomlEntry& e : entries) {
        require(!e.values.empty(), "%s: %s has no value", file.c_str(), e.key.c_str());
        found.insert(e.key);
        require(take(m, file, e), "%s: %s is no key of a machine\n  nearest: %s", file.c_str(), e.key.c_str(),
                nearest_name(e.key, keys()).c_str());
    }
    for (const Number& n : kNumbers)
        require(!n.required || found.count(n.key), "%s: %s is missing", file.c_str(), n.key);
    require(m.outside_min_mib <= m.outside_max_mib, "%s: outside-min-mib can't be above outside-max-mib", file.c_str());
    // Defaults for attention: shares of the GEMM rate that are usual with our kernels' kind.
    for (auto [to, share] : {std::pair(&Machine::attention_forward_128, 0.6),
                             {&Machine::attention_backward_128, 0.45},
                             {&Machine::attention_forward_64, 0.5},
                             {&Machine::attention_backward_64, 0.4}})
        if ((m.*to).empty()) (m.*to).assign(4, share * m.gemm_bf16);
    return m;
}

}  // namespace

NcclModel Machine::nccl() const {
    const int digits = int(std::lround(100 * nccl_version));  // 2.28: 228
    const int version_code = digits / 100 * 10000 + digits % 100 * 100;
    return {.version = version_code,
            .nvlink = nvlink,
            .buffer = int64_t(nccl_buffer_mib * double(1 << 20)),
            .ranks_per_node = ranks_per_node,
            .node_channels = int(link_channels),
            .net_channels = int(card_channels)};
}

int64_t Machine::memory_bytes(int64_t ranks_on_node) const {
    const double bytes = memory_gib * double(int64_t(1) << 30);
    return int64_t(cpu ? bytes / double(std::max<int64_t>(1, ranks_on_node)) : bytes);
}

static std::string lower(std::string name) {
    for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
    return name;
}

namespace {
// The user's own file, or a text that is a part of the program
struct MachineFile {
    std::string file;
    std::optional<std::string_view> text;
    Machine read() const { return read_machine(file, text ? parse_toml(*text, file) : read_toml(file)); }
};
}  // namespace

static std::map<std::string, MachineFile> machine_files() {
    std::map<std::string, MachineFile> files;
    const char* own = std::getenv("RINGZERO_MACHINES");
    std::error_code none;
    for (const fs::directory_entry& e : fs::directory_iterator(own ? own : "", none))
        if (e.path().extension() == ".toml") files[e.path().stem().string()] = {e.path().string(), std::nullopt};
    const std::string_view folder = "machines/";
    for (const Builtin& b : builtins())
        if (b.name.starts_with(folder))
            files.try_emplace(std::string(b.name.substr(folder.size())),
                              MachineFile{"llama/configs/" + std::string(b.name) + ".toml", b.text});
    return files;
}

std::vector<std::string> machine_names() {
    std::vector<std::string> names;
    for (const auto& [name, file] : machine_files()) names.push_back(name);
    return names;
}

Machine load_machine(const std::string& name) {
    if (name.find('/') != std::string::npos || is_file(name)) return read_machine(name, read_toml(name));
    for (const auto& [known, file] : machine_files())
        if (lower(known) == lower(name)) return file.read();
    const std::vector<std::string> names = machine_names();
    std::string near = nearest_name(lower(name), names);
    for (const std::string& n : names)
        if (!name.empty() && n.find(lower(name)) != std::string::npos) {  // "4090"
            near = n;
            break;
        }
    refuse(
        "there is no machine called %s\n  nearest: %s; there are: %s\n  or give the path of a TOML file like those of "
        "llama/configs/machines",
        name.c_str(), near.c_str(), joined(names).c_str());
}

std::optional<Machine> find_machine(const Device& device) {
    if (!device.is_cuda()) return std::nullopt;
    const std::string name = device.name();
    std::optional<Machine> best;
    for (const auto& [known, file] : machine_files()) {
        Machine m = file.read();
        if (!m.match.empty() && name.find(m.match) != std::string::npos &&
            (!best || m.match.size() > best->match.size()))
            best = std::move(m);
    }
    return best;
}

}  // namespace rz
