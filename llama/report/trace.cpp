#include "llama/report/trace.h"

#include <chrono>
#include <filesystem>
#include <set>

#include "comm/grid.h"
#include "kernels/runtime/context.h"
#include "llama/base/atomic_file.h"
#include "llama/base/text.h"

namespace rz {

enum Row : int { kSteps = 0, kCompute = 1, kCommunication = 2, kTasks = 3, kMemory = 4, kTp = 5, kCp = 6 };

void Trace::begin_step(int64_t step) {
    if (!covers(step)) return;
    if (step == first_) {
        compute_.synchronize();
        process_.barrier();  // the clocks of all ranks begin here
        origin_ = compute_.record(/*timing=*/true);
        compute_.set_op_timer(&timer_);
        meter_.begin_trace();
    }
    steps_.emplace_back(step, compute_.record(/*timing=*/true));
}

bool Trace::end_step(int64_t step, const std::string& path) {
    if (step != last_ || steps_.empty()) return false;
    compute_.set_op_timer(nullptr);
    steps_.emplace_back(step + 1, compute_.record(/*timing=*/true));
    memory_ = take_changes(compute_.context().memory);
    steps_.back().second.synchronize();
    // When the trace began, on the host's clock, which the ledger's changes have.
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    const double began = now.count() - steps_.back().second.seconds_since(origin_);
    const std::string own = events() + memory_events(memory_, began, process_.rank(), kMemory);
    const std::string text = joined(process_.gather_text(own), ",\n");
    if (!process_.is_root()) return true;
    write_file_atomically(path, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + text + "\n]}\n");
    for (const auto& [number, begin] : steps_)
        times_.emplace_back(number > last_ ? "" : format("step %ld", number), began + begin.seconds_since(origin_));
    memory_file_ = std::filesystem::path(path).replace_filename("memory.svg").string();
    write_memory();
    return true;
}

void Trace::write_memory() const {
    if (memory_file_.empty()) return;
    const DeviceKind kind = compute_.device().kind;
    write_file_atomically(memory_file_, memory_svg("Memory of rank 0, allocation by allocation", memory_, kind,
                                                   compute_.context().memory.peak(kind), times_));
}

std::string Trace::events() {
    const int rank = process_.rank();
    std::string text =
        format("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}", rank, rank);
    const auto row = [&](Row r, const char* name) {
        text += format(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                       rank, r, name);
    };
    row(kSteps, "steps"), row(kCompute, "compute"), row(kCommunication, "communication");
    const auto span = [&](Row r, const std::string& name, const Event& begin, const Event& end,
                          const std::string& args) {
        const double at = begin.seconds_since(origin_), seconds = end.seconds_since(begin);
        text += format(",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f%s}",
                       name.c_str(), rank, r, 1e6 * at, 1e6 * seconds, args.c_str());
    };
    steps_.back().second.synchronize();
    for (size_t i = 0; i + 1 < steps_.size(); ++i)
        span(kSteps, format("step %ld", steps_[i].first), steps_[i].second, steps_[i + 1].second, "");
    for (const OpTimer::Span& s : timer_.take_spans()) span(kCompute, s.name, s.start, s.stop, "");
    std::set<Row> axes;  // tp and cp have streams of their own
    for (const CommMeter::Span& s : meter_.take_trace()) {
        const bool wait = s.op == "wait";
        const Row where = s.axis == name_of(Axis::tp) ? kTp : s.axis == name_of(Axis::cp) ? kCp : kCommunication;
        if (!wait && where != kCommunication && axes.insert(where).second)
            row(where, format("communication of %s", s.axis.c_str()).c_str());
        span(wait ? kCompute : where, wait ? "wait for communication" : s.op, s.began, s.ended,
             wait ? "" : format(",\"args\":{\"bytes_sent\":%ld}", s.bytes_sent));
    }
    if (!tasks_.empty()) row(kTasks, "pipeline tasks");
    for (const Task& t : tasks_) {
        span(kTasks, t.name, t.start, t.end, "");
        const double at = t.start.seconds_since(origin_), seconds = t.end.seconds_since(t.start);
        // An arrow's ends are bound to the slice that encloses them.
        const auto arrow = [&](const char* phase, double when, int64_t message) {
            text += format(
                ",\n{\"ph\":%s,\"cat\":\"message\",\"name\":\"tensor\",\"id\":%ld,\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
                phase, message, rank, kTasks, 1e6 * when);
        };
        for (const int64_t m : t.made) arrow("\"s\"", at + 0.99 * seconds, m);
        for (const int64_t m : t.read) arrow("\"f\",\"bp\":\"e\"", at + 0.01 * seconds, m);
    }
    return text;
}

}  // namespace rz
