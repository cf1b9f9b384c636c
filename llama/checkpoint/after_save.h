#pragma once
// --after-save: a command of the user for each checkpoint, on a thread of rank 0.
//
// The checkpoint's writer makes the file checkpoints/.after-save-STEP before the checkpoint appears; it goes once the
// command has succeeded. A checkpoint that has it is not collected, and a start of the run begins with those that an
// earlier one left. Whatever the command does, training continues.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llama/checkpoint/checkpoint_store.h"

namespace rz {

class AfterSave {
   public:
    AfterSave(std::string command, CheckpointStore store);
    // Ends a command that is under way.
    ~AfterSave();
    AfterSave(const AfterSave&) = delete;
    AfterSave& operator=(const AfterSave&) = delete;

    // A checkpoint is there. Those that failed before are tried again first.
    void saved(int64_t step);
    // For people, since the last call.
    std::vector<std::string> lines();
    // Waits until all is done, at most so long. Lines are left by what could not be done.
    void finish(double seconds);

   private:
    void work();
    bool run_once(int64_t step, std::string& problem);
    void run(int64_t step);

    std::string command_;
    CheckpointStore store_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<int64_t> waiting_;
    std::vector<int64_t> failed_;
    std::vector<std::string> lines_;
    bool busy_ = false, ends_ = false;
    std::thread thread_;
};

// --before-resume, in the foreground: returns "" or how it failed after its retries. `run` is the folder --out.
std::string run_before_resume(const std::string& command, const std::string& run, double seconds);

}  // namespace rz
