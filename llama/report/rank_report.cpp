#include "llama/report/rank_report.h"

#include <sys/resource.h>

#include <vector>

#include "comm/host.h"
#include "kernels/runtime/context.h"
#include "kernels/scratch.h"
#include "llama/base/json.h"

namespace rz {

int64_t reserved_bytes(Device device) {
    if (device.is_cuda()) return device.total_bytes() - device.free_bytes();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss) * 1024;
}

static OrderedJson own_facts(const Process& process, const RankPlaces& places, Device device, int64_t steps,
                             const RankTraffic& sent) {
    const MemoryLedger& ledger = device.context->memory;
    const auto peaks = [&](DeviceKind where) {
        OrderedJson peak = OrderedJson::object();
        for (int k = 0; k < int(MemKind::count_); ++k) peak[name_of(MemKind(k))] = ledger.peak(where, MemKind(k));
        peak["total"] = ledger.peak(where);
        return peak;
    };
    OrderedJson facts = {{"rank", process.rank()}};
    for (const auto& [axis, place] : places) facts[axis] = place;
    facts["host"] = host_name();
    facts["device"] = device.name();
    facts["steps"] = steps;
    OrderedJson by_axis = OrderedJson::object();
    int64_t all = 0;
    for (const auto& [axis, bytes] : sent) by_axis[axis] = bytes, all += bytes;
    facts["bytes_sent"] = all;
    facts["bytes_sent_by_axis"] = std::move(by_axis);
    facts["memory_peak"] = peaks(device.kind);
    if (device.is_cuda()) facts["host_memory_peak"] = peaks(DeviceKind::cpu);  // pinned
    // Scratch of the CPU ops' threads, beside the ledger: of all ranks of this process.
    facts["cpu_scratch_peak"] = cpu_scratch().peak.load();
    facts["memory_reserved"] = reserved_bytes(device);
    return facts;
}

// One line: the least and the most of a number, each with the first rank that has it.
static std::string extremes(const std::string& name, const std::vector<int64_t>& values) {
    size_t least = 0, most = 0;
    for (size_t r = 1; r < values.size(); ++r) {
        if (values[r] < values[least]) least = r;
        if (values[r] > values[most]) most = r;
    }
    if (values[most] == 0) return "";
    std::string line = format("  %-12s %12s", name.c_str(), human_bytes(values[most]).c_str());
    if (values.size() > 1)
        line += format("  rank %-5zu %12s  rank %zu", most, human_bytes(values[least]).c_str(), least);
    return line + "\n";
}

RankReport gather_rank_report(Process& process, const RankPlaces& places, Device device, int64_t steps,
                              const RankTraffic& sent) {
    OrderedJson ranks = OrderedJson::array();
    for (const std::string& one : process.gather_text(own_facts(process, places, device, steps, sent).dump()))
        ranks.push_back(OrderedJson::parse(one));
    if (!process.is_root()) return {};

    RankReport report;
    report.text = ranks.size() == 1 ? format("  %-12s %12s\n", "peak memory", "bytes")
                                    : format("  %-12s %12s  %-10s %12s\n", "peak memory", "most", "on", "least");
    const auto add = [&](const std::string& name, const OrderedJson::json_pointer& fact) {
        std::vector<int64_t> values;
        for (const OrderedJson& rank : ranks) values.push_back(rank[fact].get<int64_t>());
        report.text += extremes(name, values);
    };
    const OrderedJson::json_pointer peak("/memory_peak"), sent_by_axis("/bytes_sent_by_axis");
    for (const auto& [kind, unused] : ranks[0][peak].items()) add(kind, peak / kind);
    add("cpu scratch", OrderedJson::json_pointer("/cpu_scratch_peak"));
    add("sent", OrderedJson::json_pointer("/bytes_sent"));
    for (const auto& [axis, unused] : ranks[0][sent_by_axis].items()) add("  on " + axis, sent_by_axis / axis);
    report.text.pop_back();
    report.json = "[\n";
    for (size_t r = 0; r < ranks.size(); ++r)
        report.json += " " + ranks[r].dump() + (r + 1 < ranks.size() ? ",\n" : "\n");
    report.json += "]\n";
    return report;
}

}  // namespace rz
