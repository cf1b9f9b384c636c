#pragma once
// The training data: one set of shards, or several in the shares of a mix (mix.h). Each set is shuffled by itself and
// begins again when it is used up, so small sets repeat more often.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llama/data/data_loader.h"
#include "llama/data/mix.h"

namespace rz {

struct DataSet {
    std::string name;  // the last part of its folder
    DataLoader data;
};

class DataMix : public SampleSource {
   public:
    // Sets of one sequence length and vocabulary, as many as the plan has.
    DataMix(std::vector<DataSet> sets, MixPlan plan);

    // From now on; what was sampled before is the plan's to know.
    void set_plan(MixPlan plan);
    const MixPlan& plan() const { return plan_; }
    const std::vector<DataSet>& sets() const { return sets_; }

    int64_t tokens() const;    // in all shards
    bool has_targets() const;  // whether a shard says which tokens are targets
    // As DataLoader::written; sets of a mix are written already.
    int64_t written(int64_t end) const { return sets_.size() == 1 ? sets_[0].data.written(end) : INT64_MAX; }

    int64_t seq_len() const override { return sets_[0].data.seq_len(); }
    int64_t vocab() const override { return sets_[0].data.vocab(); }
    void batch(int64_t position, int64_t count, int32_t* inputs, int32_t* targets) const override;
    int64_t targets(int64_t position, int64_t count) const override;

    // The set, and the number of the sample in it, at a position of the stream.
    std::pair<int, int64_t> sample_at(int64_t position) const;
    // Epochs of each set: how often its samples before `position` went through it.
    std::vector<double> epochs(int64_t position) const;
    DataFingerprint fingerprint(int64_t position = INT64_MAX) const;  // as DataLoader::fingerprint

   private:
    std::vector<DataSet> sets_;
    MixPlan plan_;
};

}  // namespace rz
