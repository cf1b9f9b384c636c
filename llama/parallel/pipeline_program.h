#pragma once
// From a schedule to each rank's program. Passes, in this order:
//
//   messages   the schedule is simulated. A send stands after the cell that made its tensor; a recv before the first
//              cell that starts after the tensor was sent. So the k-th send of a lane is the k-th recv, and a recv is
//              posted when the tensor comes, not when it is needed.
//   slots      a micro-batch takes a slot of its stage when its input is received (or, without one, at its forward) and
//              keeps it until its input gradient is done and sent; a weight slot from then until its weight gradient is
//              done. The least recently freed slot first. One counts as free when, in the simulation, its last user has
//              ended, so a recv never waits for it.
//   reduces    after the last instruction that adds to a unit's gradients. That instruction is cut into one a unit, so
//              that the reduces overlap it.
//   gathers    where parameters are sharded: for the step, a window of stages, or each use.
//
// A lane is a link to or from one pp rank (comm/mesh.h): Instr::lane is that rank. A tensor between two stages of one
// rank is not sent: the forward of the upper stage reads it from the slot of the lower one, and the last instruction of
// the upper stage's input gradient writes it there.

#include "llama/parallel/pipeline.h"
#include "llama/parallel/program.h"
#include "llama/parallel/simulate.h"

namespace rz {

// How long gathered parameters are kept.
enum class GatherFor : uint8_t {
    step,    // each unit once a step
    window,  // of `window` stages; the one whose next use is farthest goes first
    op,      // each use: the least memory, two gathers for each micro-batch
};

template <>
inline constexpr auto kNames<GatherFor> =
    std::to_array<Named<GatherFor>>({{GatherFor::step, "step"}, {GatherFor::window, "window"}, {GatherFor::op, "op"}});

struct PipelineProgramOptions {
    std::vector<StageUnits> cut;      // by stage
    std::vector<int64_t> unit_bytes;  // of all units
    bool tied = false;
    std::vector<std::vector<int>> shared = {};  // by rank: units that another rank holds too; none: of no rank
    ShardPolicy shard;
    GatherFor gather = GatherFor::step;
    int window = 3;  // stages, for GatherFor::window
};

// The tasks of fused cells one after the other, as the executor runs them: a fused cell pays where there is
// communication inside it to hide, which a dense model without tensor parallelism has not.
PipelineSchedule unfused(const PipelineSchedule&);

// By rank; checked, also together. `costs` place messages and size slots: programs are right whatever they are.
std::vector<RankProgram> pipeline_programs(const PipelineSchedule&, const PipelineCosts&,
                                           const PipelineProgramOptions&);

// Runs the programs of all ranks together, with messages that no one buffers: a lane carries the next tensor when the
// sender's instruction has run and the receiver's recv is next and its slot is free. Empty, or who waits for what: an
// odd message, a deadlock.
std::string find_rendezvous_error(const std::vector<RankProgram>&, bool one_lane = false);

}  // namespace rz
