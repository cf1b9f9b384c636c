#include "llama/data/mix.h"

#include <algorithm>
#include <numeric>

#include "kernels/runtime/request.h"
#include "llama/base/text.h"

namespace rz {
namespace {

constexpr int64_t kMillion = 1000000;
constexpr size_t kMostSets = 64;

// Millionths; -1 if it is no such decimal.
int64_t millionths(const std::string& text) {
    const size_t point = std::min(text.find('.'), text.size());
    const std::string whole = text.substr(0, point), rest = point < text.size() ? text.substr(point + 1) : "";
    const auto digits = [](const std::string& s) { return s.find_first_not_of("0123456789") == std::string::npos; };
    if (whole.size() + rest.size() == 0 || whole.size() > 3 || rest.size() > 6 || !digits(whole) || !digits(rest))
        return -1;
    return (whole.empty() ? 0 : std::stoll(whole)) * kMillion +
           std::stoll("0" + rest + std::string(6 - rest.size(), '0'));
}

// The same proportions in thousandths that sum to 1000, by largest remainder.
std::string nearest_shares(const std::vector<int64_t>& parts) {
    const double sum = double(std::accumulate(parts.begin(), parts.end(), int64_t(0)));
    std::vector<int64_t> out;
    std::vector<std::pair<double, size_t>> rest;
    int64_t left = 1000;
    for (size_t i = 0; i < parts.size(); ++i) {
        const double exact = 1000 * double(parts[i]) / sum;
        out.push_back(int64_t(exact));
        left -= out.back();
        rest.push_back({exact - double(out.back()), i});
    }
    std::sort(rest.begin(), rest.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (int64_t i = 0; i < left; ++i) ++out[rest[size_t(i)].second];
    std::vector<std::string> text;
    for (const int64_t v : out) text.push_back(format("%g", double(v) / 1000));
    return joined(text);
}

}  // namespace

MixShares MixShares::parse(const std::vector<std::string>& text, const std::string& where) {
    MixShares s{.text = text, .parts = {}};
    int64_t sum = 0, common = kMillion;
    for (const std::string& t : text) {
        const int64_t part = millionths(t);
        require_request(part >= 0 && part <= kMillion,
                        "%s: the share '%s' is not a number from 0 to 1 with at most 6 digits after the point",
                        where.c_str(), t.c_str());
        s.parts.push_back(part);
        sum += part;
        common = std::gcd(common, part);
    }
    require_request(sum > 0, "%s: no set has a share above 0", where.c_str());
    require_request(sum == kMillion, "%s: weights %s sum to %g, not to 1\n  nearest: %s", where.c_str(),
                    joined(text).c_str(), double(sum) / kMillion, nearest_shares(s.parts).c_str());
    for (int64_t& part : s.parts) part /= common;
    s.period = kMillion / common;
    return s;
}

// Sample n (from 1) goes to the set, among those that would else fall behind by more than allowed, which would do so
// first. In integers: the set's share of n samples less its count, in units of 1 / (D (2 K - 2)).
MixPlan::Table MixPlan::make_table(const MixShares& shares) {
    const int64_t D = shares.period;
    std::vector<int64_t> used, count(shares.parts.size(), 0);
    for (size_t k = 0; k < shares.parts.size(); ++k)
        if (shares.parts[k] > 0) used.push_back(int64_t(k));
    const int64_t two = 2 * int64_t(used.size()) - 2;
    Table t{.set = {}, .before = {}, .base = std::vector<int64_t>(shares.parts.size(), 0)};
    for (int64_t n = 1; n <= D; ++n) {
        int64_t best = -1, best_room = 0;
        for (const int64_t k : used) {
            const int64_t part = shares.parts[size_t(k)], behind = n * part - D * count[size_t(k)];
            if (two * behind < D) continue;
            const int64_t room = (two - 1) * D - two * behind;  // before it is too far behind, per part
            if (best < 0 || room * shares.parts[size_t(best)] < best_room * part) best = k, best_room = room;
        }
        if (best < 0) best = used[0];  // a single set
        t.set.push_back(uint8_t(best));
        t.before.push_back(int32_t(count[size_t(best)]++));
    }
    return t;
}

MixPlan::MixPlan(std::vector<MixStage> stages) : stages_(std::move(stages)) {
    require(!stages_.empty() && stages_[0].first == 0, "a mix begins with the first sample");
    for (size_t i = 0; i < stages_.size(); ++i) {
        const MixStage& stage = stages_[i];
        require(stage.shares.parts.size() == stages_[0].shares.parts.size() && !stage.shares.parts.empty(),
                "stage %zu of a mix has %zu shares, the first %zu", i, stage.shares.parts.size(),
                stages_[0].shares.parts.size());
        require(i == 0 || stage.first >= stages_[i - 1].first, "stage %zu of a mix begins before the one before it", i);
        std::vector<int64_t> base(stage.shares.parts.size(), 0);
        if (i > 0) {
            const int64_t length = stage.first - stages_[i - 1].first;
            const Table& last = tables_.back();
            const MixShares& shares = stages_[i - 1].shares;
            for (size_t k = 0; k < base.size(); ++k)
                base[k] = last.base[k] + checked_mul(length / shares.period, shares.parts[k], "samples of a mix");
            for (int64_t j = 0; j < length % shares.period; ++j) ++base[last.set[size_t(j)]];
        }
        tables_.push_back(make_table(stage.shares));
        tables_.back().base = std::move(base);
    }
}

const MixPlan::Table& MixPlan::table(int64_t sample, int64_t& within) const {
    require(sample >= 0, "data position %ld is negative", sample);
    const auto next = std::upper_bound(stages_.begin(), stages_.end(), sample,
                                       [](int64_t s, const MixStage& stage) { return s < stage.first; });
    const size_t i = size_t(next - stages_.begin()) - 1;
    within = sample - stages_[i].first;
    return tables_[i];
}

MixPlan::SetSample MixPlan::at(int64_t sample) const {
    int64_t within = 0;
    const Table& t = table(sample, within);
    const MixShares& shares = stages_[size_t(&t - tables_.data())].shares;
    const int64_t period = within / shares.period, j = within % shares.period;
    const int set = t.set[size_t(j)];
    return {set, t.base[size_t(set)] + period * shares.parts[size_t(set)] + t.before[size_t(j)]};
}

std::vector<int64_t> MixPlan::taken(int64_t sample) const {
    int64_t within = 0;
    const Table& t = table(sample, within);
    const MixShares& shares = stages_[size_t(&t - tables_.data())].shares;
    std::vector<int64_t> out = t.base;
    for (size_t k = 0; k < out.size(); ++k) out[k] += within / shares.period * shares.parts[k];
    for (int64_t j = 0; j < within % shares.period; ++j) ++out[t.set[size_t(j)]];
    return out;
}

MixRequest parse_mix(const std::string& data) {
    MixRequest mix;
    const std::vector<std::string> parts = split(data, ',');
    for (const std::string& part : parts) {
        const size_t colon = part.rfind(':');
        if (parts.size() == 1 && (colon == std::string::npos || millionths(part.substr(colon + 1)) < 0))
            return {{data}, {"1"}};
        require_request(colon != std::string::npos && colon > 0 && colon + 1 < part.size(),
                        "--data %s: '%s' has no share; a mix is FOLDER:SHARE,FOLDER:SHARE, such as a:0.7,b:0.3",
                        data.c_str(), part.c_str());
        mix.folders.push_back(part.substr(0, colon));
        mix.shares.push_back(part.substr(colon + 1));
        require_request(std::count(mix.folders.begin(), mix.folders.end(), mix.folders.back()) == 1,
                        "--data %s: %s stands in it twice\n  name it once, with the sum of its shares", data.c_str(),
                        mix.folders.back().c_str());
    }
    require_request(mix.folders.size() <= kMostSets, "--data: %zu sets; a mix has at most %zu", mix.folders.size(),
                    kMostSets);
    return mix;
}

std::vector<MixChange> parse_mix_changes(const std::string& text, size_t sets) {
    std::vector<MixChange> changes;
    if (text.empty()) return changes;
    for (const std::string& part : split(text, ';')) {
        const size_t colon = part.find(':');
        const std::string step = part.substr(0, std::min(colon, part.size()));
        require_request(colon != std::string::npos && !step.empty() && step.size() < 16 &&
                            step.find_first_not_of("0123456789") == std::string::npos,
                        "--data-weights-at %s: '%s' is not STEP:SHARE,SHARE, such as 1000:0.5,0.5", text.c_str(),
                        part.c_str());
        MixChange change{std::stoll(step), split(std::string_view(part).substr(colon + 1), ',')};
        require_request(change.shares.size() == sets,
                        "--data-weights-at %s: %zu shares at step %s, but --data has %zu sets", text.c_str(),
                        change.shares.size(), step.c_str(), sets);
        const int64_t least = changes.empty() ? 2 : changes.back().step + 1;
        require_request(change.step >= least, "--data-weights-at %s: step %s comes too early\n  nearest: %ld",
                        text.c_str(), step.c_str(), least);
        MixShares::parse(change.shares, "--data-weights-at");
        changes.push_back(std::move(change));
    }
    return changes;
}

}  // namespace rz
