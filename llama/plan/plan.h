#pragma once
// `train_llama plan`: what a run would take on machines that are not here. Memory is what plan_ranks() counts
// (llama/train/plan_memory.h), so to the byte what the ledger of such a run counts; what lies outside the ledger is an
// estimate of the machine's file, named apart.

#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/nccl_memory.h"
#include "llama/base/machine.h"
#include "llama/train/options_plan.h"
#include "llama/train/plan_memory.h"

namespace rz {

// What is planned: a run of these options on so many ranks of a machine.
struct PlanCase {
    TrainOptions options;
    ModelConfig config;
    Machine machine;
    int ranks = 1;
    std::string host_memory_by = {};  // what says how much memory a host has

    DeviceKind kind() const { return machine.cpu ? DeviceKind::cpu : DeviceKind::cuda; }
    int capability() const { return machine.cpu ? 0 : int(std::lround(10 * machine.compute_capability)); }
    int64_t ranks_on_node() const { return std::min<int64_t>(ranks, machine.ranks_per_node); }
    int64_t capacity() const { return machine.memory_bytes(ranks_on_node()); }
    int64_t host_capacity() const { return machine.host_memory_bytes(); }  // of a node; 0: unknown
    // Bytes of a rank outside the ledger, at least and at most, without NCCL's.
    int64_t outside_min() const;
    int64_t outside_max() const;
    bool nccl_is_taken = false;  // NCCL has its memory: capacity() is what it left
};

enum class Fits {
    yes,    // whatever lies outside the ledger
    tight,  // only if less than Plan::outside_max does
    no
};

struct Plan {
    std::vector<PlannedRank>
        ranks;  // those that are planned, ascending: all of a small job, else some that stand for all
    const PlannedRank& largest() const;
    Fits fits = Fits::no;
    NcclNeeds nccl = {};                       // of the rank that needs most
    int64_t outside_min = 0, outside_max = 0;  // of the ledger, NCCL's with it
    int64_t left = 0;                          // of the largest rank, with outside_max; negative: missing
    int64_t host = 0;                          // pinned by the ranks of a node, each as much as the one that pins most
    bool host_fits = true;                     // into the node's memory, where that is known; else fits is no

    // Time, a prediction: the slowest of rank 0's pipeline, ops and messages in a discrete-event simulation in which
    // streams overlap as the run's do. 0 and empty if it was not asked for.
    double step_seconds = 0;
    const PlannedRank& slowest() const;
    std::set<std::string> unknown_ops;  // that no cost is known of: they count as nothing
};

struct PlanHow {
    bool timed = true;
    bool one_rank = false;  // rank 0 and its pipeline, which takes the most, stands for all
    bool if_fits = false;   // what does not fit is planned no further than that; it has no time then
};
// Throws what the run would refuse.
Plan make_plan(const PlanCase&, const PlanHow& = {});
// Where the ranks stand when they are on the machine's nodes, as a run over NCCL has it.
Grid grid_of_gpus(const PlanCase&);

int64_t tokens_per_step(const PlanCase&);
// Ranks that can own a part of a unit, to the next power of two: beyond, ranks own nothing and shard no further.
int64_t most_owners(const PlanCase&);
double peak_flops(const PlanCase&);  // of a rank, that MFU is measured against; 0: unknown
// Model FLOPs of all ranks over their peak (training_flops_per_token: causal attention counted, recomputation not).
double mfu(const PlanCase&, const Plan&);

// Other flags for the same run.
struct Change {
    std::string text;  // what differs: "--zero 3 --recompute block"
    PlanCase to;
    Plan plan;
    std::vector<std::pair<std::string, std::string>> flags = {};  // that differ, and their values
    bool same_numerics = true;                                    // numbers are kept and multiplied in the same types
};
Change changed(const PlanCase& from, const PlanCase& to, Plan);
struct Changes {
    std::optional<Change> same, other;  // numerics
};

// The largest --batch that fits with the same --batch-tokens (or, without it, the same number of micro-batches); none
// if not even one sequence does.
std::optional<Change> largest_batch(const PlanCase&);
// For a run that does not fit: the change of fewest flags that does; the micro-batch is the first to change.
Changes nearest_fit(const PlanCase&);

// By less than that a prediction tells nothing.
constexpr double kFaster = 1.01;
// For a run that fits: the change of one flag that gives most tokens per second and fits.
Changes fastest_change(const PlanCase&, const Plan&);
// Changes one flag after the other, none that was given and none of the numerics, while that is faster.
Change climbed(const PlanCase& from, Change);

// Whether a rank has a part of the model or of the sequence.
inline bool is_in_parts(const TrainOptions& o) { return o.tp > 1 || o.pp > 1 || o.cp > 1; }

// Of what the flags that were not given can be (zero, shard size, recompute, micro-batch, Adam's type, collectives, tp,
// pp and its schedule): those that fit, and that nothing beats in both speed and memory; of equal ones those of fewer
// flags. The fastest first; it is climbed(). `tried` and `fit` count; `tell` hears of progress.
struct SearchResult {
    std::vector<Change> same, other;  // numerics; what is in `other` is not beaten by `same` either
    int64_t tried = 0, fit = 0;
};
SearchResult search(const PlanCase&, const std::function<void(int64_t done, int64_t of)>& tell);

int plan_command(const PlanOptions&);

}  // namespace rz
