#pragma once
// How long a schedule takes, to the last tick. Time is integer, so that equality can be demanded: of the formulas in
// the papers, of other simulators, and of the executor on a virtual clock.
//
// A rank runs its cells in order; a cell starts when the rank is free and its inputs are there, and takes the sum of
// its tasks. A tensor for another rank leaves when the cell that made it ends and travels `message` ticks on a lane,
// which carries one at a time, in the order in which they were made.
//
//   lanes     one lane for each directed pair of ranks
//   one_lane  one lane for each rank, used by all that it sends and receives. All ranks keep one order, that in which
//             messages are made where there are lanes (then by rank), so a message waits for those before it.

#include "llama/parallel/pipeline.h"

namespace rz {

struct PipelineCosts {
    std::vector<int64_t> forward, input, weight;  // ticks of one task, by stage
    int64_t message = 0;                          // ticks a tensor travels between two ranks
    bool one_lane = false;

    // The same for every stage; `full_stage` costs are those of 1 / ranks of the model, and divided among its stages.
    static PipelineCosts even(const PipelineSchedule&, int64_t full_stage_forward, int64_t full_stage_input,
                              int64_t full_stage_weight, int64_t message = 0);
    int64_t of(const Task&) const;
};

struct PipelineRun {
    struct Span {
        int64_t start, end;
        int64_t cut;   // a fused cell: where the forward's share ends
        int64_t wait;  // of the time before it, how long the rank was idle for want of a message
    };
    struct Message {
        Task made_by;                        // F or I (of a B too)
        int from, to;                        // ranks
        int64_t made, sent, arrived, taken;  // taken: the cell that reads it starts
    };
    struct Rank {
        int64_t busy = 0, first_start = 0, last_end = 0;
        int peak_forward = 0;                                 // micro-batches whose F is done and whose W is not
        int peak_weight = 0;                                  // whose I is done and whose W is not
        int peak_queue_forward = 0, peak_queue_backward = 0;  // messages that arrived and are not taken, at most
        // Idle time by where it is: before the rank's first backward task, after its last forward task, between.
        int64_t warm_up = 0, steady = 0, drain = 0;
        int64_t span_idle() const { return last_end - first_start - busy; }
    };
    int64_t makespan = 0;
    std::vector<Rank> ranks;
    std::vector<std::vector<Span>> spans;  // by rank and cell
    std::vector<Message> messages;         // in the order in which they are sent

    double util_step() const;  // busy / (ranks x makespan)
    double util_span() const;  // busy / sum of each rank's own span
};

PipelineRun simulate(const PipelineSchedule&, const PipelineCosts&);  // throws on deadlock

}  // namespace rz
