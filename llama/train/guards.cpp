#include "llama/train/guards.h"

#include <algorithm>
#include <cmath>

#include "kernels/runtime/check.h"
#include "llama/base/json.h"

namespace rz {

static double median(std::vector<double> x) {
    const size_t half = x.size() / 2;
    std::nth_element(x.begin(), x.begin() + long(half), x.end());
    if (x.size() % 2 == 1) return x[half];
    return 0.5 * (x[half] + *std::max_element(x.begin(), x.begin() + long(half)));
}

// A loss that stays high has no single step that stands out: a mean z of the last eight at 0.3 of a spike's is one as
// well (dev/results/outcomes.md). A single step counts for so much at most.
constexpr long kRecent = 8;
constexpr double kLasting = 0.3, kMostOfOne = 6;

double SpikeDetector::observe(double x) {
    if (!std::isfinite(x)) return 0;
    double z = 0;
    if (window_.size() >= kLeast) {
        std::vector<double> values(window_.begin(), window_.end());
        const double middle = median(values);
        for (double& v : values) v = std::abs(v - middle);
        const double scale = std::max({1.4826 * median(values), floor_ * std::abs(middle), 1e-12});
        z = (x - middle) / scale;
        double sum = std::min(z, kMostOfOne);
        for (auto v = window_.end() - (kRecent - 1); v != window_.end(); ++v)
            sum += std::min((*v - middle) / scale, kMostOfOne);
        z = std::max(z, sum / kRecent / kLasting);
    }
    window_.push_back(x);
    if (window_.size() > kWindow) window_.pop_front();
    return z;
}

double SpikeDetector::deviations(double x) const {
    if (!std::isfinite(x) || window_.size() + 1 < kWindow / 2) return 0;
    double mean = 0, squares = 0;
    for (const double v : window_) mean += v;
    mean /= double(window_.size());
    for (const double v : window_) squares += (v - mean) * (v - mean);
    if (x <= mean) return 0;
    return (x - mean) / std::sqrt(squares / double(window_.size() - 1));
}

Json SpikeDetector::to_json() const { return Json(std::vector<double>(window_.begin(), window_.end())); }

void SpikeDetector::from_json(const Json& json, const std::string& where) {
    require(json.is_array() && json.size() <= kWindow, "%s: a window of at most %zu numbers is expected, found %s",
            where.c_str(), kWindow, json_excerpt(json).c_str());
    std::deque<double> window;
    for (const Json& v : json) window.push_back(json_number(v, "window", -1e300, 1e300, where));
    window_ = std::move(window);
}

constexpr double kOutlier = 6;  // OLMo-core's sigma_factor

bool Guards::is_outlier(double loss, double grad_norm) const {
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) return false;  // the device skips the update
    return loss_.deviations(loss) > kOutlier || norm_.deviations(grad_norm) > kOutlier;
}

Verdict Guards::observe(int64_t step, double loss, double grad_norm, double adapting_scale, bool left_out) {
    Verdict v;
    v.skipped = !std::isfinite(loss) || !std::isfinite(grad_norm);
    if (v.skipped && std::isfinite(loss) && adapting_scale > 0) {
        ++overflows_;
        v.note = format("overflow at loss scale %g, update skipped", adapting_scale);
        return v;
    }
    if (v.skipped) {
        ++skipped_;
        ++in_a_row_;
        v.note = format("update skipped (%ld so far)", skipped_);
        if (options_.max_skips > 0 && in_a_row_ >= options_.max_skips)
            v.give_up =
                format("the loss or the gradient was not finite %ld steps in a row, up to step %ld (--max-skips %ld)",
                       in_a_row_, step, options_.max_skips);
        return v;
    }
    in_a_row_ = 0;
    if (options_.spike_z <= 0) return v;
    v.left_out = left_out;
    if (left_out)
        v.note = format("loss %.1f deviations above its mean, norm %.1f: update left out (%ld so far)",
                        loss_.deviations(loss), norm_.deviations(grad_norm), ++left_out_);
    v.loss_z = loss_.observe(loss);
    v.norm_z = norm_.observe(grad_norm);
    v.spike = v.loss_z >= options_.spike_z;
    if (!v.spike) return v;
    ++spikes_;
    const std::string more = v.note.empty() ? "" : "; " + v.note;
    v.note = format("spike of the loss, z %.1f (of the norm %.1f)", v.loss_z, v.norm_z) + more;
    if (options_.on_spike == OnSpike::stop || options_.on_spike == OnSpike::rollback)
        v.give_up = format("%s at step %ld (--on-spike %s, --spike-z %g)", v.note.c_str(), step,
                           name_of(options_.on_spike), options_.spike_z);
    return v;
}

Json Guards::to_json() const {
    return {{"skipped", skipped_},     {"skipped_in_a_row", in_a_row_}, {"spikes", spikes_},
            {"overflows", overflows_}, {"loss", loss_.to_json()},       {"norm", norm_.to_json()},
            {"left_out", left_out_}};
}

void Guards::from_json(const Json& json, const std::string& where) {
    Guards read(options_);
    auto count = [&](const char* key) { return json_int_at(json, key, 0, INT64_MAX, where); };
    read.skipped_ = count("skipped");
    read.in_a_row_ = count("skipped_in_a_row");
    read.spikes_ = count("spikes");
    if (json_find(json, "overflows")) read.overflows_ = count("overflows");  // older manifests do not have these
    if (json_find(json, "left_out")) read.left_out_ = count("left_out");
    read.loss_.from_json(json_at(json, "loss", where), where + ": loss");
    read.norm_.from_json(json_at(json, "norm", where), where + ": norm");
    *this = std::move(read);
}

// The rank with the largest, and the median of the others.
static size_t slowest_of(const std::vector<double>& x, double* others) {
    const size_t slowest = size_t(std::max_element(x.begin(), x.end()) - x.begin());
    std::vector<double> rest = x;
    rest.erase(rest.begin() + long(slowest));
    *others = median(std::move(rest));
    return slowest;
}

int StragglerDetector::over_windows() {
    for (const size_t steps : {size_t(20), size_t(50), kWindow}) {
        if (steps_ < int64_t(steps)) break;
        std::vector<double> medians;
        for (const std::vector<double>& w : window_) {
            std::vector<double> last;
            for (size_t i = 1; i <= steps; ++i) last.push_back(w[size_t(steps_ - int64_t(i)) % kWindow]);
            medians.push_back(median(std::move(last)));
        }
        const size_t r = slowest_of(medians, &window_others_);
        window_seconds_ = medians[r];
        std::vector<double> own = window_[r], deviations;
        own.resize(std::min(kWindow, size_t(steps_)));
        const double middle = median(own);
        for (const double x : own) deviations.push_back(std::abs(x - middle));
        const double excess = window_seconds_ - window_others_;
        if (window_seconds_ > (2 - 0.9 * double(steps) / kWindow) * window_others_ && excess > 5e-3 &&
            excess > 5 * median(std::move(deviations)))
            return int(r);
    }
    return -1;
}

int StragglerDetector::observe(const std::vector<double>& own_seconds) {
    if (own_seconds.size() < 2) return -1;
    if (mean_.size() != own_seconds.size()) {
        *this = {};
        mean_ = own_seconds;
        window_.assign(own_seconds.size(), std::vector<double>(kWindow));
    }
    for (size_t r = 0; r < mean_.size(); ++r) {
        mean_[r] = 0.7 * mean_[r] + 0.3 * own_seconds[r];
        window_[r][size_t(steps_) % kWindow] = own_seconds[r];
    }
    if (++steps_ % 10 == 0) slow_ = over_windows();  // medians of all ranks' steps
    if (steps_ < 5) return -1;
    const size_t slowest = slowest_of(mean_, &others_);
    seconds_ = mean_[slowest];
    if (seconds_ > 2 * others_ && seconds_ > others_ + 5e-3) return int(slowest);
    seconds_ = window_seconds_, others_ = window_others_;
    return slow_;
}

}  // namespace rz
