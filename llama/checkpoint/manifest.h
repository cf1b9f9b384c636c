#pragma once
// manifest.json of a checkpoint: what the files are, how to resume the run. It is written last: a folder without it is
// no checkpoint.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/dtype.h"
#include "llama/data/shard_sums.h"

namespace rz {

// Version 2 has a checksum of its own text; version 1 is still read. Fields that are not known are ignored, so that a
// later version only has to raise the number if an older program must not read it.
constexpr int kManifestVersion = 2;
constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
    std::string path;  // relative to the checkpoint, within it
    int64_t bytes = 0;
    uint64_t hash = 0;  // text_hash of the file; of a tensor file: of its header
    // Tensor files only: their type, and sum_hash of each tensor.
    bool holds_tensors = false;
    DType dtype = DType::f32;
    std::map<std::string, uint64_t> tensors;

    bool operator==(const ManifestFile&) const = default;
};

// A return to an earlier state: the batches after `to`, up to and beyond the step `from` that went wrong, were left
// out.
struct Rollback {
    int64_t from = 0, to = 0;
    int64_t samples = 0;  // of the data stream, left out
    std::string reason;
    bool operator==(const Rollback&) const = default;
};

// The loss scale of a run (kernels/loss_scale.h); scale 0: it has none.
struct LossScaleRecord {
    double scale = 0;
    int64_t good = 0, patience = 0;
    bool operator==(const LossScaleRecord&) const = default;
};

struct Manifest {
    std::string run_id;      // of the run that wrote it
    std::string commit;      // of the program
    std::string written_at;  // UTC, ISO 8601
    std::string device;
    int64_t step = 0;
    int64_t updates = 0;  // made up to step: those that were not skipped
    int64_t samples = 0;  // of the data stream that were consumed
    int64_t tokens = 0;
    uint64_t data_hash = 0;  // of all tokens so far, in order (BatchFeeder::data_hash)
    int64_t validations = 0;
    // How the learning rate continues after a resume, as in Schedule; 0: as the flags say.
    int64_t lr_from_step = 0, lr_rewarm = 0;
    double lr_from_rate = 0;
    double seconds = 0;               // of training, over all starts
    std::vector<Rollback> rollbacks;  // of the run so far
    bool reports_due = false;  // validation, evaluation and sample after this step are not made: it was asked to stop
    int64_t ranks = 1, zero = 0;
    int64_t nodes = 1;  // that the data axis lies on: with hier the order of sums depends on it
    std::map<std::string, std::string>
        flags;                     // how the run was asked for, by flag: what a resumed run takes unless told otherwise
    std::string data;              // JSON: DataFingerprint
    std::vector<ShardSum> shards;  // of training and validation data, as far as their sums were known
    LossScaleRecord loss_scale;
    std::string guards;        // JSON: state of the guards; "{}" if there is none
    std::string gemm_choices;  // lines of kernels/gemm/gemm_tuning.h; empty: none were tuned
    std::vector<ManifestFile> files;

    const ManifestFile* find(std::string_view path) const;  // nullptr if there is none
    std::string to_json() const;
    // Checks every field as if an enemy wrote it; throws starting with `where`.
    static Manifest from_json(std::string_view text, const std::string& where);
    bool operator==(const Manifest&) const = default;
};

}  // namespace rz
