// The ops of a step on the planned device, in order: a line for each command line of standard input, "RANKS FLAGS...".
// Each rank that holds the model gives the number of its calls and a hash of their streams, names, shapes and bytes.
// test/baseline.py compiles this against two trees.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>

#include "llama/model/model.h"
#include "llama/plan/cost.h"
#include "llama/train/batches.h"
#include "llama/train/options.h"
#include "llama/train/plan_memory.h"

namespace rz {
namespace {

struct Trace {
    int64_t calls = 0;
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    void add(const void* data, size_t bytes) {
        for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
    }
    void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
};

void trace(const std::vector<std::string>& arguments, int ranks, DeviceKind kind) {
    Command command;
    if (parse_command_line(arguments, command)) return (void)std::printf(" not parsed");
    const TrainOptions& o = std::get<TrainOptions>(command);
    std::mutex mutex;
    std::map<const RankContext*, Trace> traces;  // ranks of a pipeline are threads
    PlannedJob job{.kind = kind, .ranks = ranks};
    job.cost = [&](const OpCall& op, const Stream& stream) {
        OpWork work;
        const bool known = find_work(op, work);
        std::lock_guard lock(mutex);
        Trace& t = traces[&stream.context()];
        ++t.calls;
        t.add(stream.name());
        t.add(op.name());
        t.add(&op.bytes, sizeof op.bytes);
        if (known) t.add(format("%a %a %lld", work.flops, work.bytes, (long long)work.T));
        return Ticks(0);
    };
    try {
        check_ranks(o, ranks);
        const ModelConfig config = model_config(o, find_data(o).vocab);
        plan_ranks(o, config, job, 0);
    } catch (const Error& error) {
        const std::string text = error.what();
        return (void)std::printf(" refused: %s", text.substr(0, text.find('\n')).c_str());
    }
    std::multimap<uint64_t, int64_t> sorted;
    for (const auto& [context, t] : traces) sorted.emplace(t.hash, t.calls);
    for (const auto& [hash, calls] : sorted) std::printf(" %lld:%016llx", (long long)calls, (unsigned long long)hash);
}

}  // namespace
}  // namespace rz

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        int ranks = 0;
        words >> ranks;
        std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
        std::printf("cpu");
        rz::trace(arguments, ranks, rz::DeviceKind::cpu);
        std::printf(" cuda");
        rz::trace(arguments, ranks, rz::DeviceKind::cuda);
        std::printf("\n");
        std::fflush(stdout);
    }
}
