#pragma once
// Selects the checkpoint and the options to resume with.

#include <optional>
#include <string>
#include <vector>

#include "comm/process.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/train/options_train.h"
#include "llama/train/schedule.h"

namespace rz {

// A folder of a checkpoint or snapshot, not looked into.
struct SavedStep {
    int64_t step = 0;
    std::string folder;
};

struct ResumePoint {
    std::string folder;
    Manifest manifest;
    bool may_fall_back = false;           // --resume auto: an older one will do if this one's tensors are damaged
    std::vector<SavedStep> older = {};    // of the same run, descending
    std::vector<std::string> notes = {};  // rank 0: lines for the user
    bool rolls_back = false;              // its last rollback is what brought the run here
};

// Collective. --resume auto takes the newest checkpoint in --out whose manifest, sizes and small files are right, of
// ranks that start again also the newest snapshot; a step or a folder must be right. Nothing if the run begins. Throws
// if --out holds checkpoints and nothing was said about them.
// `saved_step`: of the last checkpoint that run_status.json tells of, or -1. A run that begins finds nothing of another
// in --out.
std::optional<ResumePoint> find_checkpoint(const TrainOptions&, Process&, int64_t saved_step);
// Collective: the checkpoint of a step in --out.
ResumePoint checkpoint_at(const TrainOptions&, Process&, int64_t step);
// Rank 0, with the lock: moves all that lies in the folder into one inside it, and returns its name; "" if there was
// nothing.
std::string set_aside(const std::string& out);
// Collective: the newest good one among `point.older`; throws if there is none. `why` is what was wrong with the point.
ResumePoint fall_back(Process&, const ResumePoint& point, const std::string& why);

// Collective: what a run that went wrong at step `from` goes back to: the newest good checkpoint --rollback-steps
// before it, or the oldest one before it. Nothing if there is none.
std::optional<ResumePoint> find_rollback(const TrainOptions&, Process&, int64_t from);

// The options of the resumed run: the checkpoint's flags where none were given. The tokens of an update stay what
// they were unless --batch-tokens is given: --batch shrinks if it has to. Returns lines for the user.
std::vector<std::string> adopt_options(TrainOptions&, const Manifest&, int64_t ranks);

// The learning rates of these options, as a run has them that was resumed from this manifest (all zero: begun).
Schedule schedule_of(const TrainOptions&, const Manifest&);
// The schedule of a run that is resumed from `m`. Where its rate would not continue from the last one, throws showing
// both unless the options say what is meant (--lr-continue, --rewarm, --allow-lr-jump, --branch; a branch changes them
// to its decay).
Schedule resumed_schedule(TrainOptions&, const Manifest& m);

// The checkpoint's model. Throws with a table of differences if flags ask for another.
ModelConfig resumed_config(const TrainOptions&, const ResumePoint&, int64_t data_vocab);

}  // namespace rz
