#include "comm/meter.h"

#include <utility>

namespace rz {

void CommMeter::wait(Stream& compute, const Event& event) {
    if (!event.valid()) return;
    const Event before = compute.record(/*timing=*/true);
    compute.wait(event);
    const Event after = compute.record(/*timing=*/true);
    std::lock_guard lock(mutex_);
    open_.waits.emplace_back(before, after);
    if (tracing_) trace_.push_back({"wait", 0, before, after, {}});
}

void CommMeter::add(const char* op, int64_t bytes_sent, Event began, Event ended, const char* axis) {
    std::lock_guard lock(mutex_);
    open_.spans.push_back({op, bytes_sent, std::move(began), std::move(ended), axis});
    if (tracing_) trace_.push_back(open_.spans.back());
}

void CommMeter::begin_trace() {
    std::lock_guard lock(mutex_);
    tracing_ = true;
}

std::vector<CommMeter::Span> CommMeter::take_trace() {
    std::vector<Span> spans;
    {
        std::lock_guard lock(mutex_);
        tracing_ = false;
        spans.swap(trace_);
    }
    for (const Span& span : spans) span.ended.synchronize();
    return spans;
}

CommMeter::Batch CommMeter::cut() {
    std::lock_guard lock(mutex_);
    return std::exchange(open_, {});
}

CommTotals CommMeter::take() {
    const Batch batch = cut();
    for (const Span& span : batch.spans) span.ended.synchronize();
    for (const auto& [before, after] : batch.waits) after.synchronize();
    return add_up(batch);
}

CommTotals CommMeter::take_complete(Batch batch) {
    Batch complete;
    std::lock_guard lock(mutex_);
    for (Span& span : batch.spans) (span.ended.done() ? complete : open_).spans.push_back(std::move(span));
    for (auto& wait : batch.waits) (wait.second.done() ? complete : open_).waits.push_back(std::move(wait));
    return add_up(complete);
}

CommTotals CommMeter::add_up(const Batch& batch) {
    CommTotals totals;
    for (const Span& span : batch.spans) {
        OpTotals& op = totals.ops[span.op];
        const double seconds = span.ended.seconds_since(span.began);
        op.calls += 1;
        op.bytes_sent += span.bytes_sent;
        op.seconds += seconds;
        totals.bytes_sent += span.bytes_sent;
        totals.total_s += seconds;
        totals.axes[span.axis] += seconds;
    }
    for (const auto& [before, after] : batch.waits) totals.exposed_s += after.seconds_since(before);
    return totals;
}

std::string CommTotals::table() const {
    std::string text = format("  %-16s %8s %12s %12s\n", "communication", "calls", "sent", "time");
    for (const auto& [name, op] : ops)
        text += format("  %-16s %8lld %12s %9.2f ms\n", name.c_str(), (long long)op.calls,
                       human_bytes(op.bytes_sent).c_str(), 1e3 * op.seconds);
    text += format("  exposed %.2f ms of %.2f ms: overlap efficiency %.1f %%\n", 1e3 * exposed_s, 1e3 * total_s,
                   100 * overlap_efficiency());
    return text;
}

}  // namespace rz
