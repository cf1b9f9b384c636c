#pragma once
// Snapshots of ranks on several hosts (snapshots.h). Each host has a folder in its memory with the slices of its ranks
// and a copy of those of the host before it, which come over TCP or MPI on a group and a stream of their own. The files
// are whole checkpoints with holes; beside them stands whose slices are there:
//
//   RESTART/checkpoints/step_000000300/shares/7      rank 7's: which bytes of which files (CopyLayout, as JSON)
//
// If a host is lost, ranks that start again on another get theirs from the host that has the copy.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/process.h"
#include "llama/checkpoint/checkpoint.h"
#include "llama/train/courier.h"

namespace rz {

// Ranks that have the same folder are a host.
class SnapshotHosts {
   public:
    explicit SnapshotHosts(Process&);  // collective; refuses where a rank has none
    bool several() const { return makers().size() > 1; }
    bool makes() const { return first_[size_t(rank_)] == rank_; }  // its host's folders
    std::vector<int> makers() const;                               // the first rank of each host
    int maker(int rank) const { return first_[size_t(rank)]; }
    std::vector<int> members(int maker) const;
    // A rank of the next host, which keeps a copy of this rank's slices.
    int keeper(int rank) const;
    std::vector<int> kept_by(int keeper) const;

   private:
    template <class Which>
    std::vector<int> ranks_where(const Which&) const;
    int rank_;
    std::vector<int> first_;
};

class Neighbours {
   public:
    // Collective. `own`: of this rank's copy.
    Neighbours(Process&, const SnapshotHosts&, CopyLayout own);
    ~Neighbours();
    int64_t bytes_kept() const;  // of other ranks
    int64_t bytes_on_the_way() const;
    // All ranks, each on one thread: sends `copy` to its keeper while what it keeps arrives and goes into the snapshot
    // that is being made. folder "": this rank's part failed, and nothing is written.
    void exchange(const void* copy, const std::string& folder);

   private:
    int rank_, keeper_;
    CopyLayout own_;
    std::vector<int> kept_;
    std::vector<CopyLayout> theirs_;
    std::unique_ptr<Courier> courier_;
};

// Collective, before a snapshot is looked for: leaves in every host's folder the newest snapshot of which all slices
// are somewhere, with those of its ranks; none where there is no such one.
void restore_snapshots(Process&);

}  // namespace rz
