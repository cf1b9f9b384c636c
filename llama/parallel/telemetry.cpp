#include "llama/parallel/telemetry.h"

#include <algorithm>
#include <functional>
#include <map>

#include "kernels/runtime/check.h"

namespace rz {

static bool is_backward(Do what) { return what == Do::backward || what == Do::input_grad; }

PhaseTimes phase_times(const StepEvents& step, const Event& done) {
    PhaseTimes times;
    for (const StepEvents::Task& t : step.tasks)
        (t.instr.what == Do::forward ? times.forward : times.backward) += t.end.seconds_since(t.start);
    times.optimizer = done.seconds_since(step.tasks.back().end);
    return times;
}

std::vector<TaskTime> task_times(const StepEvents& step) {
    struct Key {
        int stage, micro_batch;
        bool forward;
        auto operator<=>(const Key&) const = default;
    };
    std::map<Key, double> arrived;
    for (const auto& a : step.arrivals)
        arrived[{a.instr.stage, a.instr.micro_batch, a.instr.last_unit > a.instr.first_unit}] =
            a.at.seconds_since(step.begin);
    std::vector<TaskTime> out;
    std::map<Key, double> taken;
    for (const auto& t : step.tasks) {
        TaskTime time{t.instr.what,
                      t.instr.stage,
                      t.instr.micro_batch,
                      0,
                      t.start.seconds_since(step.begin),
                      t.end.seconds_since(step.begin),
                      0};
        const Key key{time.stage, time.micro_batch, time.what == Do::forward};
        const bool reads = time.what == Do::forward || is_backward(time.what);
        if (const auto at = arrived.find(key); reads && at != arrived.end()) {
            time.ready = at->second;
            taken[key] = time.start;
        }
        out.push_back(time);
    }
    for (TaskTime& t : out) {
        const Key key{t.stage, t.micro_batch, t.what == Do::forward};
        if (t.ready == 0) continue;
        for (const auto& [other, at] : arrived)
            if (other.stage == key.stage && other.forward == key.forward && at <= t.start && taken[other] >= t.start)
                ++t.queue;
    }
    return out;
}

std::string json_line(const TaskTime& t, int64_t step, int rank) {
    return format(
        "{\"step\":%ld,\"rank\":%d,\"op\":\"%s\",\"stage\":%d,\"mb\":%d,\"ready\":%.6f,\"t0\":%.6f,\"t1\":%.6f,"
        "\"queue\":%d}\n",
        step, rank, name_of(t.what), t.stage, t.micro_batch, t.ready, t.start, t.end, t.queue);
}

PipelineNumbers pipeline_numbers(const std::vector<TaskTime>& tasks) {
    PipelineNumbers n;
    if (tasks.empty()) return n;
    size_t first_backward = tasks.size(), last_forward = 0;
    int held = 0, pending = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
        const Do what = tasks[i].what;
        n.busy += tasks[i].end - tasks[i].start;
        if (is_backward(what)) first_backward = std::min(first_backward, i);
        if (what == Do::forward) last_forward = i;
        held += what == Do::forward ? 1 : what == Do::input_grad ? 0 : -1;
        pending += what == Do::input_grad ? 1 : what == Do::weight_grad ? -1 : 0;
        n.in_flight = std::max(n.in_flight, held);
        n.pending_weight = std::max(n.pending_weight, pending);
        int& queue = what == Do::forward ? n.queue_forward : n.queue_backward;
        queue = std::max(queue, tasks[i].queue);
    }
    double before = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
        const double idle = std::max(0.0, tasks[i].start - before);
        (i <= first_backward ? n.warm_up : i > last_forward ? n.drain : n.steady) += idle;
        n.waiting += std::clamp(tasks[i].ready - before, 0.0, idle);
        before = tasks[i].end;
    }
    n.length = tasks.back().end;
    n.span = n.length - tasks.front().start;
    return n;
}

PipelineSummary summarise(std::vector<PipelineNumbers> ranks, const std::vector<int>& pp) {
    double busy = 0, span = 0, longest = 0;
    for (const PipelineNumbers& r : ranks) busy += r.busy, span += r.span, longest = std::max(longest, r.length);
    std::map<int, PipelineNumbers> by_place;
    for (size_t r = 0; r < ranks.size(); ++r) {
        ranks[r].drain += longest - ranks[r].length;  // until the last rank ends
        by_place.insert({pp[r], ranks[r]});
    }
    PipelineSummary out{longest > 0 ? busy / (longest * double(ranks.size())) : 1, span > 0 ? busy / span : 1, ""};
    const auto list = [&](const char* name, auto number, const char* form) {
        std::string s = format(",\"%s\":[", name);
        for (const auto& [place, n] : by_place) s += (place ? "," : "") + format(form, std::invoke(number, n));
        return s + "]";
    };
    const auto of_step = [&](const PipelineNumbers& n) { return longest > 0 ? n.busy / longest : 1; };
    const auto of_span = [&](const PipelineNumbers& n) { return n.span > 0 ? n.busy / n.span : 1; };
    out.json = format("{\"util_step\":%.4f,\"util_span\":%.4f", out.util_step, out.util_span) +
               list("util_step_by_rank", of_step, "%.4f") + list("util_span_by_rank", of_span, "%.4f") +
               list("busy", &PipelineNumbers::busy, "%.6f") + list("warm_up", &PipelineNumbers::warm_up, "%.6f") +
               list("steady", &PipelineNumbers::steady, "%.6f") + list("drain", &PipelineNumbers::drain, "%.6f") +
               list("waiting", &PipelineNumbers::waiting, "%.6f") +
               list("queue_forward", &PipelineNumbers::queue_forward, "%d") +
               list("queue_backward", &PipelineNumbers::queue_backward, "%d") +
               list("in_flight", &PipelineNumbers::in_flight, "%d") +
               list("pending_weight", &PipelineNumbers::pending_weight, "%d") + "}";
    return out;
}

std::string stages_line(const std::vector<PipelineNumbers>& ranks) {
    PipelineNumbers all;
    for (const PipelineNumbers& r : ranks) {
        for (const auto part : {&PipelineNumbers::busy, &PipelineNumbers::span, &PipelineNumbers::warm_up,
                                &PipelineNumbers::steady, &PipelineNumbers::drain, &PipelineNumbers::waiting})
            all.*part += r.*part;
        for (const auto most :
             {&PipelineNumbers::queue_forward, &PipelineNumbers::queue_backward, &PipelineNumbers::in_flight})
            all.*most = std::max(all.*most, r.*most);
        all.length = std::max(all.length, r.length);
    }
    for (const PipelineNumbers& r : ranks) all.drain += all.length - r.length;
    const double whole = all.length * double(ranks.size());
    const auto percent = [](double part, double of) { return of > 0 ? 100 * part / of : 0; };
    return format(
        "stages   busy %.1f %% of the step, %.1f %% of their spans | idle %.1f %% warm-up, %.1f %% steady, %.1f %% "
        "drain; %.1f %% waiting for messages | queues %d forward, %d backward | %d in flight",
        percent(all.busy, whole), percent(all.busy, all.span), percent(all.warm_up, whole), percent(all.steady, whole),
        percent(all.drain, whole), percent(all.waiting, whole), all.queue_forward, all.queue_backward, all.in_flight);
}

std::string stages_by_rank_line(const std::vector<PipelineNumbers>& ranks, const std::vector<int>& pp) {
    double length = 0;
    std::map<int, PipelineNumbers> by_place;
    for (const PipelineNumbers& r : ranks) length = std::max(length, r.length);
    for (size_t r = 0; r < ranks.size(); ++r) by_place.insert({pp[r], ranks[r]});
    for (auto& [place, n] : by_place) n.drain += length - n.length;
    const auto list = [&](auto number, const char* form) {
        std::string text;
        for (const auto& [place, n] : by_place) text += (text.empty() ? "" : "/") + format(form, number(n));
        return text;
    };
    const auto share = [&](double PipelineNumbers::*part) {
        return list([&](const PipelineNumbers& n) { return length > 0 ? 100 * n.*part / length : 0; }, "%.0f");
    };
    const auto depth = [&](int PipelineNumbers::*most) {
        return list([&](const PipelineNumbers& n) { return n.*most; }, "%d");
    };
    return "         by rank: busy " + share(&PipelineNumbers::busy) + " % of the step, " +
           list([](const PipelineNumbers& n) { return n.span > 0 ? 100 * n.busy / n.span : 0; }, "%.0f") +
           " % of its span | idle " + share(&PipelineNumbers::warm_up) + " % warm-up, " +
           share(&PipelineNumbers::steady) + " % steady, " + share(&PipelineNumbers::drain) + " % drain; " +
           share(&PipelineNumbers::waiting) + " % waiting | queues " + depth(&PipelineNumbers::queue_forward) +
           " forward, " + depth(&PipelineNumbers::queue_backward) + " backward | " +
           depth(&PipelineNumbers::in_flight) + " in flight";
}

}  // namespace rz
