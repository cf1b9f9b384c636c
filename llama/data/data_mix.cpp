#include "llama/data/data_mix.h"

#include <algorithm>

#include "kernels/runtime/check.h"

namespace rz {

DataMix::DataMix(std::vector<DataSet> sets, MixPlan plan) : sets_(std::move(sets)), plan_(std::move(plan)) {
    for (const DataSet& s : sets_)
        require(s.data.seq_len() == sets_[0].data.seq_len() && s.data.vocab() == sets_[0].data.vocab(),
                "%s has another sequence length or vocabulary than %s", s.name.c_str(), sets_[0].name.c_str());
    set_plan(std::move(plan_));
}

void DataMix::set_plan(MixPlan plan) {
    require(plan.sets() == int(sets_.size()), "a mix of %d sets for %zu", plan.sets(), sets_.size());
    plan_ = std::move(plan);
}

int64_t DataMix::tokens() const {
    int64_t n = 0;
    for (const DataSet& s : sets_) n += s.data.tokens();
    return n;
}

bool DataMix::has_targets() const {
    return std::any_of(sets_.begin(), sets_.end(), [](const DataSet& s) { return s.data.has_targets(); });
}

void DataMix::batch(int64_t position, int64_t count, int32_t* inputs, int32_t* targets) const {
    if (sets_.size() == 1) return sets_[0].data.batch(position, count, inputs, targets);
    for (int64_t i = 0; i < count; ++i) {
        const MixPlan::SetSample p = plan_.at(position + i);
        sets_[size_t(p.set)].data.batch(p.index, 1, inputs + i * seq_len(), targets + i * seq_len());
    }
}

int64_t DataMix::targets(int64_t position, int64_t count) const {
    if (sets_.size() == 1) return sets_[0].data.targets(position, count);
    if (!has_targets()) return count * seq_len();
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
        const MixPlan::SetSample p = plan_.at(position + i);
        n += sets_[size_t(p.set)].data.targets(p.index, 1);
    }
    return n;
}

std::pair<int, int64_t> DataMix::sample_at(int64_t position) const {
    if (sets_.size() == 1) return {0, sets_[0].data.sample_at(position)};
    const MixPlan::SetSample p = plan_.at(position);
    return {int(p.set), sets_[size_t(p.set)].data.sample_at(p.index)};
}

std::vector<double> DataMix::epochs(int64_t position) const {
    std::vector<double> out;
    const std::vector<int64_t> taken = plan_.taken(position);
    for (size_t k = 0; k < sets_.size(); ++k) out.push_back(double(taken[k]) / double(sets_[k].data.samples()));
    return out;
}

DataFingerprint DataMix::fingerprint(int64_t position) const {
    DataFingerprint f = sets_[0].data.fingerprint(position);
    if (sets_.size() == 1) return f;
    f.shards.clear();
    for (const DataSet& s : sets_) {
        const DataFingerprint one = s.data.fingerprint();
        f.shards.insert(f.shards.end(), one.shards.begin(), one.shards.end());
        f.sets.push_back({s.name, int64_t(one.shards.size())});
    }
    for (const MixStage& stage : plan_.stages()) f.stages.push_back({stage.first, stage.shares.text});
    return f;
}

}  // namespace rz
