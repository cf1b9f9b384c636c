#pragma once
// train_llama schedule: a pipeline schedule without a run. Draws it, times it, compares all of them, writes and reads
// PyTorch's text. Needs no MPI and no device.

#include <string>

#include "llama/parallel/simulate.h"

namespace rz {

struct ScheduleStudy {
    int pp = 0;  // 0: of a file
    int micro_batches = 0;
    int stages_per_rank = 0;
    ScheduleChoice schedule{.kind = PipelineKind::zb_v};
    double forward = 1, input = 1, weight = 1;  // F, I, W of 1/pp of the model
    double message = 0;
    bool one_lane = false;
    bool compare = false;
    int window = 0;        // micro-batches in flight at most; 0: as the schedule has it
    std::string csv, svg;  // files; "-": standard output
    int columns = 0;       // 0: what fits
};

int schedule_command(const ScheduleStudy&);

// The fewest micro-batches, at most 64 pp, with which the step keeps ranks busy for `utilisation`; 0: none do.
int micro_batches_for(PipelineKind, int pp, int stages_per_rank, double utilisation);

}  // namespace rz
