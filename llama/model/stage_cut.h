#pragma once
// Which units a pipeline stage holds: contiguous runs, each unit exactly once; the largest cost of a stage is minimal.
// Balance matters more than the schedule: at 4 ranks and 16 micro-batches a head of half a stage's forward, left on the
// last stage, costs 1f1b 42 % and zb-v 46 % of the step.

#include <string>

#include "llama/model/config.h"
#include "llama/model/recompute.h"
#include "llama/parallel/program.h"
#include "llama/parallel/simulate.h"

namespace rz {

// FLOPs of one token of a sequence of T.
struct UnitFlops {
    int64_t forward, input, weight;
    int64_t total() const { return forward + input + weight; }
};

// FLOPs of each unit: 0 the embedding (a lookup), blocks, the norm with the head. The head is all input half: logits
// are made, used and dropped there; and so is what a block recomputes.
std::vector<UnitFlops> unit_flops(const ModelConfig&, int64_t T, Recompute recompute = Recompute::none);

// Least largest cost; among those, least sum of squares. Each stage holds a block, the first the embedding too, the
// last norm and head; needs as many blocks as stages.
std::vector<StageUnits> cut_stages(const std::vector<UnitFlops>&, int stages);
// The cut with these numbers of blocks, which must be as many as there are stages, at least one each, and the model's
// together.
std::vector<StageUnits> cut_stages(const std::vector<int64_t>& blocks_of, int64_t blocks, int stages);
std::string text_of(const std::vector<StageUnits>& cut, int64_t blocks);  // "3,4,4,1"

// Ticks for simulate(): FLOPs of each stage's units.
PipelineCosts costs_of(const std::vector<StageUnits>&, const std::vector<UnitFlops>&);

}  // namespace rz
