#pragma once
// What outlives the ranks of a job: a folder in the memory of a host (/dev/shm), made by what starts them again when
// one has died: --ranks N --max-restarts M, or dev/run/supervise.sh. It is its owner's alone (mode 0700) and goes with
// what made it; one whose maker was killed goes when the next is made. Ranks find its path in the environment.
//
//   run            out of the ranks that began in it (llama/train/snapshots.h)
//   checkpoints/   snapshots
//
// A maker holds a lock on the folder (flock), also while it removes it.

#include <string>

namespace rz {

constexpr const char* kRestartVariable = "RINGZERO_RESTART";

class RestartFolder {
   public:
    // The one that is named in the environment, or a new one.
    RestartFolder();
    ~RestartFolder();
    RestartFolder(const RestartFolder&) = delete;
    const std::string& path() const { return path_; }
    bool has_begun() const;  // ranks have taken a run's folder: a start that fails before would fail again

   private:
    std::string path_;
    int lock_ = -1;  // of a new one
};

// Of the job that this process belongs to; "" if nobody starts its ranks again, or not from this host. Throws if it is
// not this user's alone.
std::string restart_folder();

}  // namespace rz
