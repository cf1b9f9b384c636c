#pragma once
// The folder that holds the checkpoints of one run:
//
//   RUN/checkpoints/step_000000300/          model.safetensors, config.json, tokenizer files: opens in transformers as
//   it lies
//                                            optimizer/{master,m,v}.safetensors, manifest.json
//   RUN/checkpoints/latest                   the newest one's name: a hint for people and scripts, never read
//   RUN/checkpoints/.tmp-step_...-ID         one that is being written
//   RUN/checkpoints/.trash-...               one that is being deleted
//   RUN/checkpoints/.after-save-300          --after-save has not succeeded for that step: it is not deleted
//   RUN/checkpoints/step_...-abandoned-ID    newer than the one that a run was told to resume from
//
// Functions here are for one rank; none is collective.

#include <cstdint>
#include <string>
#include <vector>

#include "llama/checkpoint/manifest.h"

namespace rz {

constexpr int64_t kMostHeld = 8;  // checkpoints that wait for --after-save

class CheckpointStore {
   public:
    explicit CheckpointStore(const std::string& run_folder) : folder_(run_folder + "/checkpoints") {}

    const std::string& folder() const { return folder_; }
    std::string path(int64_t step) const;
    std::string temporary(int64_t step, const std::string& id) const;
    // Steps that have a folder with a manifest, ascending; nothing about them has been checked. Here and below, what
    // can't be looked at throws: only what is not there counts as missing.
    std::vector<int64_t> steps() const;
    // Steps that have a folder, with a manifest or without.
    std::vector<int64_t> folders() const;

    // Marks a step for --after-save, before its checkpoint appears; which are marked, ascending.
    void mark(int64_t step) const;
    void unmark(int64_t step) const;
    std::vector<int64_t> marked() const;

    // Deletes what a killed run left half written or half deleted, and marks of no checkpoint. Only while no other run
    // uses the folder.
    void clean() const;
    // Makes temporary(step, id), complete and synced, the checkpoint of `step`; one of the same step is replaced by it
    // in one move. Writes `latest`.
    void publish(int64_t step, const std::string& id) const;
    // Deletes all but the newest `keep` and every multiple of `every`, and never `published`. A step that is no
    // multiple of `save_every` goes before those that are: a run that was stopped there keeps what an undisturbed one
    // does. What is marked stays as well, but of more than `most_held` (1 at least) only the oldest and the newest;
    // returns the others' steps, as far as they were deleted. keep 0 keeps all, every 0 no multiples.
    std::vector<int64_t> collect(int64_t keep, int64_t every, int64_t published = -1, int64_t save_every = 0,
                                 int64_t most_held = kMostHeld) const;
    // Renames checkpoints newer than `step`, so that no run resumes from them; returns their steps.
    std::vector<int64_t> abandon_after(int64_t step, const std::string& id) const;

   private:
    std::string marker(int64_t step) const;
    void remove(const std::string& name) const;
    std::string folder_;
};

// The model that `from` means: of a run's folder its final weights, or the newest checkpoint of one that is not at its
// end; else as resolve_model().
std::string model_folder(const std::string& from);

// Reads the manifest and compares the sizes of all files and the hashes of the small ones. Throws an Error naming the
// file, what was expected and what was found.
Manifest check_checkpoint(const std::string& folder);

}  // namespace rz
