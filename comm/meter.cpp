#include "comm/meter.h"

#include <algorithm>
#include <utility>

namespace rz {

// Intervals of time, in order and apart from each other.
using Intervals = std::vector<std::pair<double, double>>;

static Intervals joined(Intervals all) {
    std::sort(all.begin(), all.end());
    Intervals apart;
    for (const auto& [from, to] : all)
        if (!apart.empty() && from <= apart.back().second)
            apart.back().second = std::max(apart.back().second, to);
        else
            apart.emplace_back(from, to);
    return apart;
}

static double length(const Intervals& all) {
    double sum = 0;
    for (const auto& [from, to] : all) sum += to - from;
    return sum;
}

static double common_length(const Intervals& a, const Intervals& b) {
    double sum = 0;
    for (size_t i = 0, j = 0; i < a.size() && j < b.size(); a[i].second < b[j].second ? ++i : ++j)
        sum += std::max(0.0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    return sum;
}

void CommMeter::wait(Stream& compute, const Event& event, Event before) {
    if (!event.valid()) return;
    if (!before.valid()) before = compute.record(/*timing=*/true);
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
    // A collective is counted with the waits that it lies in.
    std::vector<Event> open_since;
    for (auto& wait : batch.waits) {
        const bool done = wait.second.done();
        if (!done && wait.first.done()) open_since.push_back(wait.first);
        (done ? complete : open_).waits.push_back(std::move(wait));
    }
    for (Span& span : batch.spans) {
        const bool done = span.ended.done() && std::none_of(open_since.begin(), open_since.end(), [&](const Event& e) {
                              return span.ended.seconds_since(e) > 0;
                          });
        (done ? complete : open_).spans.push_back(std::move(span));
    }
    return add_up(complete);
}

CommTotals CommMeter::add_up(const Batch& batch) {
    CommTotals totals;
    Intervals running, still;
    const Event* first = batch.spans.empty() ? nullptr : &batch.spans[0].began;
    for (const Span& span : batch.spans) {
        OpTotals& op = totals.ops[span.op];
        const double seconds = span.ended.seconds_since(span.began);
        op.calls += 1;
        op.bytes_sent += span.bytes_sent;
        op.seconds += seconds;
        totals.bytes_sent += span.bytes_sent;
        totals.total_s += seconds;
        totals.axes[span.axis] += seconds;
        running.emplace_back(span.began.seconds_since(*first), span.ended.seconds_since(*first));
    }
    for (const auto& [before, after] : batch.waits) {
        totals.exposed_s += after.seconds_since(before);
        if (first) still.emplace_back(before.seconds_since(*first), after.seconds_since(*first));
    }
    running = joined(std::move(running));
    totals.busy_s = length(running);
    totals.hidden_s = totals.busy_s - common_length(running, joined(std::move(still)));
    return totals;
}

std::string CommTotals::table() const {
    std::string text = format("  %-16s %8s %12s %12s\n", "communication", "calls", "sent", "time");
    for (const auto& [name, op] : ops)
        text += format("  %-16s %8lld %12s %9.2f ms\n", name.c_str(), (long long)op.calls,
                       human_bytes(op.bytes_sent).c_str(), 1e3 * op.seconds);
    text += format("  compute stood still for %.2f ms and went on in %.2f ms of %.2f ms: overlap efficiency %.1f %%\n",
                   1e3 * exposed_s, 1e3 * hidden_s, 1e3 * busy_s, 100 * overlap_efficiency());
    return text;
}

}  // namespace rz
