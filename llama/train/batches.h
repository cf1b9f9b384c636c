#pragma once
// Which tokens a step trains on: the paths that were asked for, the open shards, and each micro-batch of this rank as a
// pure function of step and place on the data axis.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "llama/data/batch_feeder.h"
#include "llama/data/data_loader.h"
#include "llama/data/data_mix.h"
#include "llama/model/hf.h"
#include "llama/tokenizer/tokenizer.h"
#include "llama/train/options_train.h"

namespace rz {

// Sources of tokens, as asked for by --data or by --train-data and --val-data.
struct DataPaths {
    struct Set {  // of --data
        std::string name;
        std::vector<std::string> train, val;
        double val_bytes_per_token = 0;                       // 0: unknown
        std::string growing = {};                             // the folder, if it is still being written
        std::vector<int64_t> train_sums = {}, val_sums = {};  // TokenShard::sum() of each, or -1
    };
    std::vector<Set> sets = {{}};
    std::vector<std::string> shares = {"1"};  // of each set, from the first step on
    std::vector<MixChange> changes = {};
    std::string tokenizer;                // path, or empty
    int64_t vocab = 0;                    // 0: unknown
    int64_t doc_token = -1;               // the dataset's, which begins each document; -1: unknown
    int64_t bos = -1;                     // begins a text of the data's, and ends the one before; -1: unknown
    int64_t eos = -1;                     // another end token of the tokenizer's; -1: none is known
    std::string about;                    // a line for the user, or empty
    TokenizerFiles tokenizer_files = {};  // for checkpoints and final weights: rank 0 reads them when the run begins
};
DataPaths find_data(const TrainOptions&);
// The model of a run whose data need not be here: their vocabulary is the preset's then, and `note` says so.
ModelConfig planned_config(const TrainOptions&, std::string& note);
// The mask that --doc-mask and --doc-token ask for with these data. Throws if they do not go together.
DocumentMask document_mask(const TrainOptions&, const DataPaths&, const ModelConfig&);

struct DataSources {
    DataPaths paths;
    std::unique_ptr<DataMix> train = {};
    struct Validation {  // of each set that has some
        std::string name;
        double share;            // of the validation loss
        double bytes_per_token;  // 0: unknown
        DataLoader data;
    };
    std::vector<Validation> val = {};
    size_t train_shards() const;
    std::vector<std::string> files() const;  // of training and validation
    int64_t val_tokens() const;
    std::optional<Tokenizer> tokenizer = {};  // where samples are asked for
    DocumentMask documents = {};
};
// Opens what the options ask for. Throws with what to give if something is missing.
DataSources open_data(const TrainOptions&, DataPaths, const ModelConfig&);

// Begin of a run in the data: `samples` of the stream were passed before the step after `step`.
struct DataPosition {
    int64_t step = 0, samples = 0, tokens = 0;
};

class Batches {
   public:
    // dp, cp: this rank's place on those axes. counts: whether it is the one of its tp, cp and pp peers, which read the
    // same, whose tokens are counted. same_plan, held and read_ahead as in BatchFeeder. The sources outlive this.
    Batches(const DataSources&, AxisRank dp, AxisRank cp, bool counts, int64_t batch, int64_t micro_batches, Device,
            Stream& compute, bool same_plan, int64_t held = 1, int read_ahead = 0);

    // How many batches the host fills while the device works.
    static int64_t ahead(int64_t micro_batches) { return std::min<int64_t>(2 * micro_batches, 128) - 1; }

    void start_from(const DataPosition& p) { from_ = p; }
    // The micro-batches of a step that training() is called for, in this order; else all, ascending.
    void set_order(std::vector<int64_t> order) { order_ = std::move(order); }
    // Unmasked targets of the step, over all ranks: read from the shards, so that every rank knows them beforehand.
    int64_t targets_of(int64_t step) const;
    bool has_targets() const { return sources_.train->has_targets(); }  // some tokens may be none
    // {"a":0.25,"b":3.1}: how often the step's end has gone through each set; "" if there is only one.
    std::string epochs_json(int64_t step) const;
    // {"first":0,"count":8,"samples":{"a":[17,3],..}}: which samples of which set the step trains on, over all ranks.
    // Sample n of a set are the tokens from n * T on of its shards, without what a shard has beyond its last sample.
    std::string samples_json(int64_t step) const;
    // The shares of the steps to come, after what a resumed run has seen. Between start_from() and the first step.
    MixPlan mix_plan(const DataFingerprint* resumed) const;
    int64_t samples_per_step() const { return batch_ * micro_batches_ * dp_.size; }
    int64_t tokens_per_step() const { return samples_per_step() * sources_.train->seq_len(); }
    int64_t samples_before(int64_t step) const { return from_.samples + (step - 1 - from_.step) * samples_per_step(); }
    int64_t tokens_after(int64_t step) const { return from_.tokens + (step - from_.step) * tokens_per_step(); }

    // On their way to the device, read ahead from the first call on: steps follow each other, and so do their
    // micro-batches in the order that was set. Valid for work enqueued before the `held`-th call after this one.
    DeviceBatch training(int64_t step, int64_t micro_batch);
    // The same, out of turn and counted nowhere: of a step that will be computed again.
    DeviceBatch rehearsal(int64_t step, int64_t micro_batch);
    DeviceBatch validation(size_t set, int64_t first, int64_t end);
    // sum_hash of the training batches since the last call, 0 where they are another rank's to count.
    uint64_t take_hash();
    // Attention's work on the training batches since the last call; 0 where they are another rank's to count.
    struct Attended {
        double samples = 0;  // without document masks that many would cost as much
        double tiles = 0, tiles_skipped = 0;
    };
    Attended take_attended();
    // Seconds that training() waited for data since the last call.
    double take_waited() { return feeder_.take_waited(); }
    bool documents() const { return bool(sources_.documents); }

   private:
    // Position of the first sample of this rank's micro-batch.
    int64_t position(int64_t step, int64_t micro_batch) const {
        return samples_before(step) + (micro_batch * dp_.size + dp_.rank) * batch_;
    }

    const DataSources& sources_;
    AxisRank dp_;
    bool counts_;
    int64_t batch_, micro_batches_;
    DataPosition from_;
    std::vector<int64_t> order_;
    BatchFeeder feeder_;
    uint64_t hash_ = 0;
    Attended attended_;
};

}  // namespace rz
