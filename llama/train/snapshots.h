#pragma once
// --snapshot-every: checkpoints in the memory of this host, in the folder of comm/restart.h, for ranks that start again
// after one has died. A snapshot of step S counts before step S + 2 begins; the one before it goes then, or on several
// hosts (neighbours.h), each of which holds a copy of another's slices, when the next is made.

#include <memory>
#include <string>

#include "comm/process.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/report/log.h"
#include "llama/train/train_state.h"
#include "llama/train/run_guard.h"
#include "llama/train/neighbours.h"
#include "llama/train/options_train.h"

namespace rz {

// Refuses --max-restarts and --snapshot-every where nothing would start the ranks again.
void check_restarts(const TrainOptions&);
// Rank 0: what ranks that start again continue.
void begin_restarts(const std::string& out);
// Collective: ranks that start again continue the run in its folder, whatever the first start was asked for.
void continue_run(TrainOptions&, Process&);

CheckpointStore snapshot_store();
bool is_snapshot(const std::string& checkpoint_folder);

// In files: one that counts, and the next. held: slices of this rank and of others that it keeps a copy of.
int64_t snapshot_bytes(int64_t held);
// Collective, before training: throws where a host's memory for files is too small.
void check_snapshot_memory(const TrainOptions&, Process&, const Zero&);

class Snapshots {
   public:
    // Collective; all outlive this. `keeps`: this start came from one, which stays until the next counts.
    Snapshots(Process&, TrainState&, RunGuard&, Log&, SaveOptions of_checkpoints, const std::string& out, bool keeps);
    ~Snapshots();

    // Collective: copies the state, and makes a snapshot of the copy while training continues.
    void take(Manifest);
    // Collective, after each step: the last one counts now.
    void settle();

   private:
    int64_t bytes() const;

    Process& process_;
    TrainState& core_;
    RunGuard& health_;
    Log& log_;
    SnapshotHosts hosts_;
    std::unique_ptr<Neighbours> neighbours_;  // nullptr: one host
    CheckpointWriter writer_;
    bool under_way_ = false, told_ = false;
};

}  // namespace rz
