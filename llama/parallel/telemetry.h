#pragma once
// When a rank's tasks and messages of a step were, by events on the streams, and what follows from it: how long the
// rank was busy, where it was idle and whether for want of a message, how many micro-batches it held.

#include <string>
#include <vector>

#include "kernels/runtime/device.h"
#include "llama/parallel/program.h"

namespace rz {

// As it is enqueued.
struct StepEvents {
    struct Task {
        Instr instr;  // the units of a pass as one
        Event start, end;
    };
    struct Arrival {
        Instr instr;
        Event at;
    };
    Event begin;
    std::vector<Task> tasks;        // in program order
    std::vector<Arrival> arrivals;  // of what was received
};

// Seconds of this rank's compute stream in forward and backward tasks, waiting inside them included, and from the last
// of them to `done`: the rest of the gradients' communication, norm and update. Needs events that are complete and at
// least one task.
struct PhaseTimes {
    double forward = 0, backward = 0, optimizer = 0;
};
PhaseTimes phase_times(const StepEvents&, const Event& done);

// Seconds since the step began on this rank.
struct TaskTime {
    Do what;
    int stage, micro_batch;
    double ready, start, end;  // ready: when its tensor had come; 0: it needs none from another rank
    int queue;                 // messages of its kind that had come and were not taken, this one too
};
// Needs events that are complete.
std::vector<TaskTime> task_times(const StepEvents&);
std::string json_line(const TaskTime&, int64_t step, int rank);

// Trivial, so that ranks can gather it.
struct PipelineNumbers {
    double busy = 0, length = 0, span = 0;  // length: from the step's begin to the last task's end
    // Idle time before the first backward task, after the last forward task, between; and how much of it for want of
    // a message.
    double warm_up = 0, steady = 0, drain = 0, waiting = 0;
    int queue_forward = 0, queue_backward = 0;  // deepest
    int in_flight = 0, pending_weight = 0;      // most micro-batches held, weight gradients put off
};
PipelineNumbers pipeline_numbers(const std::vector<TaskTime>&);

struct PipelineSummary {
    double util_step, util_span;
    std::string json;  // one object; lists are by pp rank, of the first of the data ranks
};
// `ranks`: in the order of the job; `pp`: of each its place on the pp axis.
PipelineSummary summarise(std::vector<PipelineNumbers> ranks, const std::vector<int>& pp);

// For the console: how busy the ranks were in a step, all together and each.
// Shares are of all ranks' time until the last one ended; depths and micro-batches are the most of any rank.
std::string stages_line(const std::vector<PipelineNumbers>& ranks);
// One figure for each rank on the pp axis (the first data rank), separated by slashes; shares are of the time until the
// last one of all ended. `pp` as in summarise().
std::string stages_by_rank_line(const std::vector<PipelineNumbers>& ranks, const std::vector<int>& pp);

}  // namespace rz
