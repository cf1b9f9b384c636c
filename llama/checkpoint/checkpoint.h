#pragma once
// A checkpoint's tensors between the ranks and the files. The files hold whole tensors under Hugging Face's names, in
// the order of the table, so they do not depend on how many ranks wrote them nor on how many read them:
//
//   model.safetensors             parameters, in --dtype
//   optimizer/master.safetensors  master weights, unless they are the parameters
//   optimizer/m.safetensors       AdamW's moments
//   optimizer/v.safetensors       of what AdamW updates: Muon's matrices have none
//   optimizer/row_v.safetensors   with NorMuon: of each row of Muon's matrices
//   optimizer/ema.safetensors     with --ema: the average of the weights, in fp32
//
// A file that would be larger than --max-shard-mib is one for each unit instead (tensor_files() in llama/model/hf.h),
// the model's with an index.
//
// Every rank writes and reads what it owns, in parallel; nothing is gathered. Several hosts need a shared file system.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/process.h"
#include "llama/checkpoint/checkpoint_store.h"
#include "llama/model/hf.h"
#include "llama/model/config.h"
#include "llama/model/param_table.h"
#include "llama/base/safetensors.h"
#include "zero/state.h"
#include "zero/zero.h"

namespace rz {

std::string path_of(StatePart);  // of one file of all tensors

// A rank's copy of its part of the state, and where its bytes go in a checkpoint's files.
struct CopyLayout {
    struct Run {
        int64_t file, offset, bytes, at;  // at: in the copy
    };
    std::vector<std::string> files;
    std::vector<Run> runs;  // ascending
    int64_t bytes = 0;
};

struct SaveOptions {
    std::string run_folder;
    int64_t keep = 2;        // newest checkpoints that stay; 0: all
    int64_t keep_every = 0;  // of older ones, those whose step is a multiple stay too; 0: none
    int64_t save_every = 0;  // those of other steps go first; 0: by age alone
    bool background = true;  // write a copy meanwhile; takes its memory at once. false: training waits
    TokenizerFiles tokenizer = {};
    bool mark = false;                            // for --after-save (after_save.h)
    double timeout_s = 600;                       // that training waits for a rank whose files do not answer
    int64_t shard_above = kShardAbove;            // bytes of a file; 0: one file of all tensors
    std::function<void()> await_records = [] {};  // returns when all that was logged before it is in its files
    // Each makes and completes a folder of its own, in which are the parts of its host's ranks: with several, the rest
    // of the files are holes, and the checkpoint before goes only when the next is made.
    std::vector<int> makers = {0};
    // On the thread of every save, once this rank's part is in the folder; "": it never will be.
    std::function<void(const void* copy, const std::string& folder)> mirror = {};
};

struct SaveReport {
    int64_t step = -1;
    std::string folder, error;  // error empty: the checkpoint is there, read back and verified
    int64_t bytes = 0;
    double stall_seconds = 0;          // that training waited, on this rank
    double write_seconds = 0;          // until it was complete
    bool not_finite = false;           // the error: the state itself holds NaN or infinity
    std::vector<int64_t> unseen = {};  // steps whose checkpoints were deleted before --after-save succeeded for them
    // This rank's traffic in the temporary folder: files opened, bytes written and read.
    struct Traffic {
        int64_t opens = 0, written = 0, read = 0;
    } traffic = {};
};

class CheckpointWriter {
   public:
    // Collective. All arguments outlive this. `compute` is the stream on which the state is final. Where the copy does
    // not fit into memory, this rank's training waits for its saves, and note() says so.
    CheckpointWriter(Process& process, Device device, Stream& compute, const Zero& zero, const ParamTable& table,
                     const ModelConfig& config, SaveOptions options);
    ~CheckpointWriter();  // waits for the save under way

    const std::string& note() const { return note_; }
    CopyLayout layout() const;

    // Collective. Copies the state as it is after the work enqueued so far and writes it. A save still under way is
    // waited for. What can't be saved (disk full) is reported, not thrown: training continues, and no half checkpoint
    // stays. Nor does one of a state that is not finite.
    void save(Manifest manifest);
    // Collective, between steps: how far the ranks are with the save under way. When all have written their parts,
    // rank 0 completes the checkpoint; when one has failed the others stop. Waits for no file.
    void agree() { agree(/*late=*/false); }
    // Saves that have ended since the last call.
    std::vector<SaveReport> reports();
    // The save under way on this rank: the step, and the seconds since a call to the file system last returned.
    struct Progress {
        int64_t step = -1;  // -1: none is under way
        double silent_seconds = 0;
    };
    Progress progress() const;
    // Collective: waits for the save under way; whether the last one succeeded (false if there was none).
    bool finish();

   private:
    struct Job;
    enum class SavePhase : int32_t;
    struct PartFile {
        StateArray array;
        std::vector<TensorFile> files;
        int64_t at;  // of this rank's copy, bytes
    };
    bool makes() const;  // a folder
    bool on_several_hosts() const { return options_.makers.size() > 1; }
    void for_each_piece(const OwnedRange&, const StateArray&, const std::function<void(const TensorRun&)>&) const;
    void plan();
    void reserve_copy();
    void take_copy();
    void begin(Job& job, void (CheckpointWriter::*work)(Job&), SavePhase without);
    SavePhase attempt(Job& job, SavePhase good, const std::function<void()>& body);
    void write(Job& job);
    void prepare(Job& job);
    void await_folder(Job& job);
    void write_share(Job& job);
    void write_file(Job& job, const PartFile& part, const TensorFile& in, uint64_t* hashes);
    void conclude(Job& job);
    void complete(Job& job, const std::vector<uint64_t>& hashes);
    void agree(bool late);
    void settle();  // collective: ends the save under way
    void end(bool saved);

    Process& process_;
    Device device_;
    Stream& compute_;
    const Zero& zero_;
    const ParamTable& table_;
    const ModelConfig& config_;
    SaveOptions options_;
    CheckpointStore store_;
    std::vector<OwnedRange> share_;  // of this rank alone
    std::vector<PartFile> parts_;
    int64_t copy_bytes_ = 0;
    Buffer copy_;
    std::string note_;
    std::unique_ptr<Job> job_, stuck_;  // stuck_: given up, and its thread has not come back
    std::thread thread_;
    std::vector<SaveReport> reports_;
    bool last_ok_ = false;
    int64_t last_good_ = -1;         // step of the newest that succeeded
    bool all_in_background_ = true;  // every rank has its copy
};

struct LoadReport {
    std::vector<std::string> notes;  // a line for every type that was converted
    int64_t bytes_read = 0;          // of tensors, by this rank
};

// Collective: reads the state of a checked checkpoint into what each rank owns, and publishes it. Returns what is wrong
// with the files (the same text on every rank; the state is then undefined, and another checkpoint may be read), or "".
// Ranks of the data axis that own the same read a share each, and have the others' from them; what several of the
// tp axis hold (norm weights, shared heads) and DualPipe's copies each of them reads. `grown`: the model has more rows
// than the checkpoint.
struct GrownRows {
    const ParamTable& stored;  // the checkpoint's own table
    const HfWeights& weights;  // its weights, read for the larger table: what new rows hold. Their moments are zero
};
constexpr int64_t kLoadPiece = int64_t(1) << 20;  // elements read at a time, into one of two buffers
std::string load_state(const std::string& folder, const Manifest& manifest, const ParamTable& table, Process& process,
                       Device device, Stream& compute, Zero& zero, LoadReport* report,
                       const GrownRows* grown = nullptr);

// Bytes on this rank of the copy that a save in the background writes from.
int64_t copy_of_state_bytes(const Zero& zero);

// Offsets of the shares of the ranks that own the very same range.
std::vector<int64_t> share_offsets(const Zero& zero, const OwnedRange&);
// The part of what this rank keeps that it alone writes, but for runs that another holder owns.
std::vector<OwnedRange> own_share(const Zero& zero);

// Shape of a tensor in an array's files; empty: it is not in them.
std::vector<int64_t> shape_in(const StateArray&, const ParamTable&, const Tensor&);
// Part of an array for a run of an owned range's elements: `first` and `count` in the tensor of its files, `local` from
// the range's array on. May have none.
TensorRun run_in(const StateArray&, const OwnedRange&, const ParamTable&, const TensorRun&);

// Collective: the first text of any rank that is not empty, on all of them, with the rank where there are several.
std::string first_problem(Process& process, const std::string& own);
// Collective: what fails on one rank is thrown on all.
void on_all(Process& process, const std::function<void()>& body);

}  // namespace rz
