#include "llama/parallel/schedule_command.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "llama/base/atomic_file.h"
#include "llama/parallel/draw.h"
#include "llama/parallel/pipeline_program.h"

namespace rz {
namespace {

constexpr int64_t kTick = 1'000'000;  // ticks of a cost of 1, for each stage of a rank: six decimals are exact

struct TimedSchedule {
    PipelineSchedule schedule;
    PipelineRun run;     // fused cells as one task, as their papers count them
    double unit;         // ticks of a cost of 1
    PipelineRun parted;  // as train_llama runs it: the two tasks of a fused cell one after the other
    bool fuses() const { return run.makespan != parted.makespan; }
};

TimedSchedule timed(PipelineSchedule schedule, const ScheduleStudy& o) {
    if (o.window > 0) schedule = limit_in_flight(schedule, o.window);
    check_pipeline(schedule);
    const int64_t v = schedule.stages_per_rank();
    const auto ticks = [&](double cost) { return std::llround(cost * double(kTick)) * v; };
    PipelineCosts costs =
        PipelineCosts::even(schedule, ticks(o.forward), ticks(o.input), ticks(o.weight), ticks(o.message));
    costs.one_lane = o.one_lane;
    PipelineRun run = simulate(schedule, costs), parted = simulate(unfused(schedule), costs);
    return {std::move(schedule), std::move(run), double(kTick * v), std::move(parted)};
}

PipelineSchedule schedule_of(const ScheduleStudy& o) {
    if (o.schedule.kind)
        return make_pipeline(*o.schedule.kind, {o.pp, o.micro_batches ? o.micro_batches : 2 * o.pp, o.stages_per_rank});
    return load_pipeline(o.schedule.file, o.pp, o.micro_batches);
}

int peak(const PipelineRun& run, int PipelineRun::Rank::*what) {
    int most = 0;
    for (const auto& r : run.ranks) most = std::max(most, r.*what);
    return most;
}

// Held at most on any rank, in the memory of one forward pass of 1/pp of the model: a forward holds 13.5 values of the
// model's width for each token and block, a pending weight gradient 3.5 more.
double peak_activations(const PipelineSchedule& s) {
    constexpr int kForward = 27, kPending = 7;  // halves
    int most = 0;
    for (const auto& cells : s.order) {
        int held = 0;
        for (const Cell& c : cells)
            for (const Task& t : tasks_of(c)) {
                held += t.op == Op::F   ? kForward
                        : t.op == Op::I ? kPending
                        : t.op == Op::B ? -kForward
                                        : -kForward - kPending;
                most = std::max(most, held);
            }
    }
    return double(most) / kForward / s.stages_per_rank();
}

std::string rank_table(const TimedSchedule& t) {
    std::string out =
        "\n rank    busy    idle  of the span  warm-up  steady   drain   in flight  pending W  queue F, B\n";
    for (size_t r = 0; r < t.run.ranks.size(); ++r) {
        const auto& k = t.run.ranks[r];
        const auto in_units = [&](int64_t ticks) { return double(ticks) / t.unit; };
        out +=
            format("%5zu %7.4g %7.4g %12.4g %8.4g %7.4g %7.4g %11d %10d %8d %2d\n", r, in_units(k.busy),
                   in_units(t.run.makespan - k.busy), in_units(k.span_idle()), in_units(k.warm_up), in_units(k.steady),
                   in_units(k.drain), k.peak_forward, k.peak_weight, k.peak_queue_forward, k.peak_queue_backward);
    }
    return out;
}

std::string summary_of(const TimedSchedule& t, const ScheduleStudy& o) {
    const PipelineSchedule& s = t.schedule;
    return format("%s: %d ranks, %d stages, %d micro-batches, F, I, W = %g,%g,%g, message %g%s\n",
                  o.schedule.name().c_str(), s.ranks, s.stages, s.micro_batches, o.forward, o.input, o.weight,
                  o.message, o.one_lane ? ", one lane for each rank" : "") +
           format("makespan %.6g  utilisation %.1f %% of the step, %.1f %% of the ranks' own spans\n",
                  double(t.run.makespan) / t.unit, 100 * t.run.util_step(), 100 * t.run.util_span()) +
           (t.fuses()
                ? format("makespan %.6g  utilisation %.1f %% of the step in a run, where the tasks of a fused cell "
                         "follow each other\n",
                         double(t.parted.makespan) / t.unit, 100 * t.parted.util_step())
                : "") +
           format("peak activations %.4g forwards of 1/%d of the model, pending weight gradients included\n",
                  peak_activations(s), s.ranks) +
           format("text %016lx\n", text_hash(s));
}

std::string comparison(const ScheduleStudy& o) {
    const int M = o.micro_batches ? o.micro_batches : 2 * o.pp;
    std::string out = format("%d ranks, %d micro-batches, F, I, W = %g,%g,%g, message %g\n\n", o.pp, M, o.forward,
                             o.input, o.weight, o.message) +
                      "schedule       stages  makespan    idle  step %  span %  activations  pending W  queue  "
                      "parameters  90 % from\n";
    std::string missing, parted;
    const auto row = [&](PipelineKind kind, int v) {
        const std::string name = name_of(kind) + (kind == PipelineKind::interleaved ? format(" %d", v) : std::string());
        const PipelineShape shape{o.pp, M, v};
        if (const std::string why = find_pipeline_refusal(kind, shape); !why.empty()) {
            missing += why.substr(0, why.find('\n')) + "\n";
            return;
        }
        const TimedSchedule t = timed(make_pipeline(kind, shape), o);
        int64_t idle = 0;
        for (const auto& r : t.run.ranks) idle = std::max(idle, t.run.makespan - r.busy);
        const int enough = micro_batches_for(kind, o.pp, v, 0.9);
        if (t.fuses())
            parted += format("%s in a run, where the tasks of a fused cell follow each other: makespan %.5g, %.1f %%\n",
                             name.c_str(), double(t.parted.makespan) / t.unit, 100 * t.parted.util_step());
        out +=
            format("%-14s %6d %9.5g %7.4g %7.1f %7.1f %12.4g %10d %6d %10dx %10s\n", name.c_str(), t.schedule.stages,
                   double(t.run.makespan) / t.unit, double(idle) / t.unit, 100 * t.run.util_step(),
                   100 * t.run.util_span(), peak_activations(t.schedule), peak(t.run, &PipelineRun::Rank::peak_weight),
                   std::max(peak(t.run, &PipelineRun::Rank::peak_queue_forward),
                            peak(t.run, &PipelineRun::Rank::peak_queue_backward)),
                   kind == PipelineKind::dualpipe ? 2 : 1, enough ? format("M = %d", enough).c_str() : "-");
    };
    for (const PipelineKind kind : pipeline_kinds()) {
        row(kind, default_stages_per_rank(kind));
        if (kind == PipelineKind::interleaved) row(kind, 4);
    }
    out +=
        "\nactivations: held at most, in forwards of 1/pp of the model, pending weight gradients included\n"
        "90 % from: the fewest micro-batches that keep ranks busy for 90 % of the step at equal costs, no messages\n";
    return out + parted + (missing.empty() ? "" : "\n" + missing);
}

void write_or_print(const std::string& path, const std::string& text) {
    if (path == "-")
        std::cout << text;
    else
        write_file_atomically(path, text);
}

}  // namespace

int micro_batches_for(PipelineKind kind, int pp, int stages_per_rank, double utilisation) {
    // The bubble does not grow with M, so utilisation does: the first M by bisection among those that exist.
    std::vector<int> counts;
    for (int m = 1; m <= 64 * pp; ++m)
        if (find_pipeline_refusal(kind, {pp, m, stages_per_rank}).empty()) counts.push_back(m);
    const auto reaches = [&](int m) {
        const PipelineSchedule s = make_pipeline(kind, {pp, m, stages_per_rank});
        const int64_t one = s.stages_per_rank();
        return simulate(s, PipelineCosts::even(s, one, one, one)).util_step() >= utilisation - 1e-12;
    };
    const auto first = std::partition_point(counts.begin(), counts.end(), [&](int m) { return !reaches(m); });
    return first == counts.end() ? 0 : *first;
}

int schedule_command(const ScheduleStudy& o) {
    if (o.compare) {
        std::cout << comparison(o);
        return 0;
    }
    const TimedSchedule t = timed(schedule_of(o), o);
    if (!o.csv.empty()) write_or_print(o.csv, csv_of(t.schedule));
    const std::string summary = summary_of(t, o);
    if (!o.svg.empty()) {
        const size_t first = summary.find('\n'), second = summary.find('\n', first + 1);
        write_or_print(o.svg, draw_svg(t.schedule, t.run,
                                       {.title = summary.substr(0, first),
                                        .note = summary.substr(first + 1, second - first - 1),
                                        .ticks_per_unit = t.unit}));
    }
    if (o.csv == "-" || o.svg == "-") return 0;
    // Four characters for a full stage's F where that is not too wide.
    const int wide = int(std::clamp(4 * double(t.run.makespan) / t.unit, 40.0, 150.0));
    const bool colours = isatty(STDOUT_FILENO) == 1;
    std::cout << summary << "\n"
              << draw_text(t.schedule, t.run, o.columns ? o.columns : wide, colours) << legend_text(t.schedule, colours)
              << rank_table(t);
    return 0;
}

}  // namespace rz
