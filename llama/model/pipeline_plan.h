#pragma once
// Plans pipeline parallelism for a model: schedule, cut, each rank's programs, and what they should cost.

#include "llama/model/param_table.h"
#include "llama/parallel/pipeline_program.h"
#include "llama/model/stage_cut.h"

namespace rz {

struct PipelineOptions {
    int pp = 1;
    ScheduleChoice schedule = {};   // none: zb-v where it exists and nothing is recomputed, else 1f1b
    int stages_per_rank = 0;        // 0: the schedule's own
    std::vector<int64_t> cut = {};  // blocks of each stage; empty: balanced by FLOPs
    GatherFor gather = GatherFor::step;
    int gather_window = 3;  // stages, for GatherFor::window
    Recompute recompute = Recompute::none;
    int window = 0;               // micro-batches in flight at most; 0: as the schedule has it
    bool may_accumulate = false;  // locally, where copies can't be reduced in each micro-batch; else refused
    bool one_lane = false;        // all that a rank sends and receives is on one stream
    int64_t T = 0;
};

// Units that two ranks of the pp axis hold: their gradients are added before the data axis sums them, and one of the
// two counts and writes them. DualPipe's ranks hold two copies of the model; a tied head whose two uses are on the
// first and the last rank is held by both.
struct UnitCopies {
    int peer = -1;            // -1: there are none
    std::vector<int> units;   // ascending
    std::vector<int> copies;  // of them, those that the peer counts and writes
};

struct PipelinePlan {
    ScheduleChoice choice;
    PipelineSchedule schedule;
    std::vector<StageUnits> cut;
    PipelineCosts costs;                  // FLOPs of a token
    std::vector<UnitCopies> copies;       // by rank
    std::vector<RankProgram> training;    // by rank: a step
    std::vector<RankProgram> evaluation;  // by rank: forward only, one micro-batch
    PipelineRun predicted;                // of the step, by FLOPs, messages free

    // For the log: schedule, cut, predicted utilisation and what the cut costs, how to reach 90 %.
    std::vector<std::string> text(int64_t blocks) const;
};

// Refuses with the nearest valid value: shapes that the schedule does not exist for, stages without a block, copies
// whose gradients would be reduced in each micro-batch, unless they may be accumulated.
PipelinePlan plan_pipeline(const PipelineOptions&, const ModelConfig&, const ParamTable&, DType param_dtype,
                           int64_t micro_batches, const ShardPolicy&);

}  // namespace rz
