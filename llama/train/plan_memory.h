#pragma once
// Dry run of one rank on the planned device (kernels/runtime/planned.h): what a run builds, and steps of it,
// without memory or work. Constructors and program are the run's own, so no size is written twice.

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "comm/planned_transport.h"
#include "kernels/fp8/prepare_products.h"
#include "kernels/runtime/memory.h"
#include "llama/model/config.h"
#include "llama/train/options_train.h"
#include "llama/train/traffic.h"

namespace rz {

struct PlannedMemory {
    std::array<int64_t, int(MemKind::count_)> peak{};  // of each kind, on the device
    int64_t total = 0;                                 // the most at once
    // Pinned, beside a GPU's; 0 on the CPU, where it is in `total`.
    std::array<int64_t, int(MemKind::count_)> host_peak{};
    int64_t host = 0;
    int64_t snapshots = 0;  // of the host's: --snapshot-every's copy of the state, and two in files, another rank's too
    int64_t from_host = 0, to_host = 0;  // bytes over the bus in a step, of what is offloaded
    int64_t in_host = 0;                 // that the host's AdamW reads and writes in a step
    Traffic sent = {};                   // in a step, by axis
};

// One line each: what crosses the bus in a step, and what that alone takes on three kinds of it, a prediction. Empty
// where nothing does.
std::string host_copies_text(const PlannedMemory&);

// A job that nobody starts.
struct PlannedJob {
    DeviceKind kind = DeviceKind::cpu;  // whose choices are made: cpu or cuda
    int ranks = 1;
    int ranks_per_node = 0;       // 0: all on one
    int capability = 0;           // of a GPU (kernels/runtime/capability.h); 0: not known
    int multiprocessors = 0;      // of a GPU; 0: not known
    int64_t gemm_workspace = 0;   // bytes that each stream with matrix products takes on its device (kernels/gemm)
    bool alone = false;           // without a pipeline only the rank that is asked for, which stands for its tp peers
    int64_t most_bytes = 0;       // > 0: a rank that takes more in its first step is planned no further
    bool finishes = true;         // the run comes to its end: what its last files need is counted
    bool resumes = false;         // it begins with a checkpoint: what reading one takes is counted
    int64_t prompt = 0;           // tokens that samples begin with; 0: no sample is drawn
    PlannedNetwork network = {};  // empty: messages take no time
    std::function<Ticks(const OpCall&, const Stream&)> cost = {};  // empty: nor do ops
};

// An op of a step on the compute stream.
struct PlannedOp {
    std::string name;  // as op timers name it
    int64_t calls = 0;
    Ticks time = 0;
};

struct PlannedRank {
    int rank = 0;
    PlannedMemory memory = {};
    int64_t first_sent = 0, sent = 0;  // bytes by the collectives and links of the first step, and of each other
    std::vector<PlannedOp> ops = {};   // by name
    ProductShapes products = {};       // of training, evaluation and samples
    std::string attention = {};        // how its backward pass multiplies, where there is a choice
    Ticks step = 0;                    // time of a step between others of its kind
    // Bytes sent by a step with statistics (--stats-every); 0 without them.
    int64_t watched_sent = 0;
    Ticks watched_step = 0;
    // Time of a step in the mean of those with statistics and without.
    Ticks mean_step(int64_t stats_every) const {
        return stats_every > 0 ? step + (watched_step - step) / stats_every : step;
    }
};

// Rank `rank` and the ranks that hold the model with it (tp x pp), ascending; all other ranks are taken to do what
// these do. To the byte what the ledger counts at the end of such a run, and what its steps send, but for what CUDA's
// libraries take by themselves.
std::vector<PlannedRank> plan_ranks(const TrainOptions&, const ModelConfig&, const PlannedJob&, int rank);

// The most tokens that samples of such a run may begin with, from its first start: --prompt is not tokenised, and a
// token stands for a byte at least. 0: it draws none.
int64_t most_prompt_tokens(const TrainOptions&);

// Plans one rank.
PlannedMemory plan_memory(const TrainOptions&, const ModelConfig&, DeviceKind, int rank, int ranks);

}  // namespace rz
