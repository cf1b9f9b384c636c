#pragma once
// How a run starts: its id, the folder that all ranks see, the state of a checkpoint, and the manifest that the next
// checkpoint gets.

#include <string>

#include "llama/data/data_mix.h"
#include "llama/data/shard_sums.h"
#include "llama/report/log.h"
#include "llama/train/batches.h"
#include "llama/train/train_state.h"
#include "llama/train/run_guard.h"
#include "llama/train/resume.h"

namespace rz {

// Collective: a random number in hex, the same on all ranks.
std::string choose_run_id(Process&);
// Collective: throws if a rank was started with other flags than rank 0, but for those of its own machine.
void check_same_flags(const TrainOptions&, Process&);
// Collective: a folder in runs_folder() that is not there yet, by date and time; nothing is made.
std::string choose_run_folder(Process&);
// Collective: throws if what rank 0 writes into `out` is not seen by every rank. Nothing if `out` is empty.
void check_folder_is_shared(const std::string& out, const std::string& run_id, Process&);

// The data's end tokens become the model's: a text that it generates ends there.
void name_end_tokens(ModelConfig&, const DataPaths&);
// Rank 0: what final/ and checkpoints carry beside weights and config.json: what came with the model in `model` (empty:
// there is none), and the data's tokenizer. Throws if the model has another tokenizer, unless --allow-tokenizer-change.
TokenizerFiles carried_files(const TrainOptions&, const DataPaths&, const std::string& model, const ModelConfig&);

// Collective: the state of the checkpoint, or of an older one that may be used and that `from` is then, into what this
// rank owns; guards into health. Returns the manifest, with `samples` where the data continue. Changes no file.
Manifest load_checkpoint(ResumePoint& from, const TrainOptions&, const DataMix& data, Process&, TrainState&, RunGuard&);
// Rank 0: renames the checkpoints after `step`, so that no run resumes from them, and says how to take them back.
void abandon_newer(const std::string& out, int64_t step, const std::string& run_id);

// On a thread; beside what dataset.json says, but with --allow-data-change.
void start_sums(ShardSums&, const DataPaths&, bool may_differ);
void report_damage(const ShardSums&, RunGuard&);  // ends the run where start_sums() has found some
const char* why_dtype(const TrainOptions&);
std::string where_kept(const TrainOptions&);  // a line, unless --out says it
void announce_data(const DataSources&, Log&);
void tell_of_rollback(Log&, const Rollback&, size_t count, int64_t most);

}  // namespace rz
